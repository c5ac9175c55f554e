"""The report of `rolloutlab engine check`: a table for a person, or JSON."""

import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rolloutlab.sanitize import escape_control_chars

Result = Literal["pass", "fail", "refused", "measured"]
_ADVICE = {
    "logprobs: scored as sampled": "the sampler rounds otherwise than the trainer: in bfloat16 try --tolerance 0.2;"
    " else train with precalculate_logprobs: true",
    "logprobs: as in this process": "the engine has other weights, another precision or another chat template: give it"
    " the same --policy and --dtype",
    "logprobs: after training": "the sampler has other weights than the checkpoint that it is asked for, or rounds"
    " otherwise than the trainer: see that it loads adapters",
    "first ratio": "the first step does not begin on policy: train with precalculate_logprobs: true",
    "sampled distribution": "tokens are drawn at another temperature, top_p, top_k or with a penalty: see the defaults"
    " of the sampler, such as a generation_config.json",
    "gradient": "the engine computes another loss: leave this option out on it",
    "accumulation": "a step of several batches or requests is not that of their sum: a smaller groups_per_step",
    "optimizer": "steps are of another size: choose the learning rate anew on this engine",
    "clip and decay": "max_grad_norm or weight_decay has another effect: leave them out on this engine",
    "resume": "a job of a service that was killed ends in another checkpoint: train it again",
    "seed: repeated": "the same seed does not repeat completions on this engine",
    "seed: another": "completions do not depend on the seed: each sampling of a prompt gives the same again",
    "stop": "completions go on after a stop string or an end token: what is trained has text that no reader sees",
    "cancel": "what is cancelled goes on computing on the engine",
    "throughput": "nothing can be sampled or trained: see the log of the engine",
}
"""What a failure means and what to do, by the beginning of a line's name."""
_WIDTH = 80
_BELOW: dict[str, Any] = {"width": _WIDTH, "initial_indent": " " * 19, "subsequent_indent": " " * 19}


@dataclass(frozen=True)
class Measurement:
    """A line of the report. gap: the largest difference; up to `limit` it passes. note: figures, or an error."""

    name: str
    result: Result
    gap: float | None = None
    limit: float | None = None
    note: str = ""

    @property
    def advice(self) -> str:
        """What a failure means and what to do; empty for other results."""
        fits = (f"{name}: {text}" for name, text in _ADVICE.items() if self.name.startswith(name))
        return next(fits, "") if self.result == "fail" else ""

    def table_lines(self) -> list[str]:
        """Write `pass      2.6e-06  name (note)`, with a long note on lines of its own."""
        result = "FAIL" if self.result == "fail" else self.result
        line = f"{result:8}  {'' if self.gap is None else f'{self.gap:.1e}':>7}  {self.name}"
        beside = f"{line} ({self.note})" if self.note else line
        return [beside] if len(beside) <= _WIDTH else [line, *textwrap.wrap(self.note, **_BELOW)]


@dataclass(frozen=True)
class Report:
    """What `engine check` measured. not_compared: why nothing was compared with this process; empty if it was."""

    engine: str
    policy: str
    status: Mapping[str, str]
    unsupported: Mapping[str, str]
    lines: tuple[Measurement, ...]
    not_compared: str = ""

    @property
    def passed(self) -> bool:
        """Whether no line fails. Options that the engine refuses by name count as passed."""
        return all(line.result != "fail" for line in self.lines)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values. A gap that is not a finite number is null."""
        report = {**asdict(self), "passed": self.passed}
        for line, measured in zip(report["lines"], self.lines, strict=True):
            line["gap"] = line["gap"] if math.isfinite(line["gap"] or 0.0) else None
            line["advice"] = measured.advice
        return report

    def table(self) -> str:
        """Write what was measured, and a line per measurement. Lines that can be wrapped have at most 80 columns."""
        status = "".join(f", {name} {value}" for name, value in self.status.items())
        limit = next((f"{line.limit:.1e}" for line in self.lines if line.limit), "")
        rows = [*textwrap.wrap(f"engine {self.engine}, policy {self.policy}{status}", _WIDTH), ""]
        rows += [f"{'result':8}  {'gap':>7}  check{limit and f' (a gap of up to {limit} passes)'}"]
        rows += [row for line in self.lines for row in line.table_lines()]
        others = [f"{name} is not honoured: {why}" for name, why in self.unsupported.items()]
        others += [f"nothing is compared with this process: {self.not_compared}"] if self.not_compared else []
        failed = [line.advice for line in self.lines if line.result == "fail"]
        others += [f"{len(failed)} of {len(self.lines)} failed:" if failed else "nothing failed"]
        others += [f"  -> {advice}" for advice in dict.fromkeys(failed)]
        rows += ["", *(row for other in others for row in textwrap.wrap(other, _WIDTH, subsequent_indent="     "))]
        return escape_control_chars("\n".join(rows))
