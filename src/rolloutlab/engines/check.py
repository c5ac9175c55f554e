"""Conformance of an engine, measured: `rolloutlab engine check`."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import torch

from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.engines import naive
from rolloutlab.engines.engine import Engine, HasTrials, SlopedStep, partial_of
from rolloutlab.engines.report import Measurement
from rolloutlab.engines.sampling_check import (
    TIMEOUT,
    aggregate,
    in_turns,
    sampled_divergence,
    sampled_step,
    sequence,
    sequences,
    step_of,
    stop_fault,
    stop_of,
)
from rolloutlab.engines.step_check import LIMIT, clip_gap, gradient_gaps, momentum_gap
from rolloutlab.errors import Cancelled, InputError, PolicyError
from rolloutlab.fsutil import remove
from rolloutlab.objective.options import Options
from rolloutlab.policy.checkpoints import open_draft, read_state, seal
from rolloutlab.policy.decode import Completion, CompletionRequest
from rolloutlab.policy.model import base_of, describe, load_policy
from rolloutlab.policy.source import source_of
from rolloutlab.policy.steps import Step, TrainingSequence
from rolloutlab.policy.task import Callbacks, Task
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.settings import ModelSettings

_RATE = 1e-3
_TOKENS, _COMPLETIONS, _STEPS = 16, 8, 4
_COMPARED = ("loss", "grad_norm")
_REQUEST, _ASKED = 1032, 2
"""More sequences than any client sends in one request; and how often a task may ask before it is cancelled."""
_CUTS = (0, 6, 12, 18)
"""Where the text below is cut, for prompts after which more or fewer tokens are likely."""
_CHANCE = math.log(1e-5)
"""The logprob of completions above which two may be the same by chance."""
_OFFSETS = (0.05, -0.6, 0.9, 2.1, -0.1, 0.3)
"""Log ratios of the tokens whose gradients are compared: on both sides of every bound that the options below set, and
near none of them."""
_TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on; nothing else moves in the field today."
_LOSS = """
def loss(new, old, advantage, weight, history):
    return -(weight * advantage * (new - old).clamp(max=1.0).exp()).mean() + 0.01 * (new - old).square().mean()
"""
_BOUNDS = {"epsilon": 0.3, "epsilon_high": 0.5}
GRADIENTS: dict[str, Mapping[str, Any]] = {
    "default": {},
    "epsilon": _BOUNDS,
    "ppo": {"ppo": True, "epsilon": 0.2, "epsilon_high": 0.2},
    "importance_sampling_level sequence": {"importance_sampling_level": "sequence"},
    "importance_sampling_level average": {"importance_sampling_level": "average", "ppo": True, **_BOUNDS},
    "importance_sampling_level geometric_average": {
        "importance_sampling_level": "geometric_average", "ppo": True, "epsilon": 0.9, "epsilon_high": 9.0,
    },
    "vendor_k2_tau": {"k2_tau": 0.5},
    "kl_penalty_coef": {"kl_penalty_coef": 0.3},
    "kl_ref_step": {"kl_penalty_coef": 1.0},
    "mask_prob_ratio": {"mask_prob_ratio": True, **_BOUNDS},
    "max_negative_advantage_importance_sampling_weight": {"max_weight": 1.5},
    "precalculate_logprobs": {"precalculate_logprobs": True},
    "truncated_importance_sampling": {"truncated_importance_sampling": 1.5, "precalculate_logprobs": True},
    "credit turn": {"credit": "turn"},
    "loss_aggregation token_mean": {"loss_aggregation": "token_mean"},
    "loss_aggregation constant": {"loss_aggregation": "constant", "loss_scale_factor": 30.0},
    "custom_loss": {},
}  # fmt: skip
"""The options of each gradient that is compared, by the name of an option on the wire."""


class _ProtocolError(Exception):
    """An engine has done what its protocol rules out."""


def load_reference(policy: str, model: ModelSettings, engine: Engine) -> tuple[naive.Naive | None, str]:
    """Load the same policy in this process, to compare an engine with; or return None, and why that is not possible."""
    if engine.name != "local" and not Path(source_of(policy)).is_dir():
        return None, f"the weights of {policy!r} are not in a folder of this machine"
    try:
        loaded = load_policy(policy, model)
    except PolicyError as error:
        return None, error.message
    # the fingerprint of an engine whose weights are elsewhere is that of its configuration alone
    known = engine.base.fingerprint
    if known != base_of(loaded).fingerprint and known != describe(policy, model)[0].fingerprint:
        return None, f"the weights of {policy!r} here are others than the engine's"
    return naive.Naive(loaded), ""


class Conformance:
    """Measurements of an engine, each independent of the others.

    reference: the same policy in this process; None if it cannot be loaded here. folder: an empty folder for
    checkpoints. tolerance: the largest gap that passes, absolute for logprobs and ratios, relative for gradients.
    """

    def __init__(self, engine: Engine, reference: naive.Naive | None, folder: Path, tolerance: float) -> None:
        self._engine = engine
        self._naive = reference
        self._folder = folder
        self._tolerance = tolerance

    def measurements(self) -> dict[str, Callable[[], Measurement]]:
        """Return what is measured, by the name of its line."""
        every: dict[str, Callable[[], Measurement]] = {"logprobs: scored as sampled": self._check_scores}
        if self._naive:
            every["logprobs: as in this process"] = self._as_here
        every |= {"logprobs: after training": self._check_later_scores, "first ratio": self._first_ratio}
        every["sampled distribution"] = self._distribution
        every |= {f"gradient: {name}": partial(self._gradient, name) for name in GRADIENTS}
        every |= {"accumulation": self._accumulation, "optimizer": self._optimizer}
        every |= {"clip and decay": self._clip_and_decay, "resume": self._resume}
        every |= {"seed: repeated": self._seed, "seed: another": self._other_seed, "stop": self._stop}
        every |= {"cancel: sampling": self._cancel_sampling, "cancel: training": self._cancel_training}
        every["cancel: inside a step"] = self._cancel_inside
        every |= {"throughput: sampling": self._sampling_speed, "throughput: training": self._training_speed}
        return every

    def run(self, progress: Callable[[str], None] = lambda _: None, only: Sequence[str] = ()) -> Iterator[Measurement]:
        """Yield the lines of the report as they are measured. An error of the engine fails its line.

        progress: called with each name. only: measure lines whose name contains one of these texts; () is all lines.

        Raises:
            InputError: there is no such line.
        """
        every = {name: each for name, each in self.measurements().items() if not only or any(o in name for o in only)}
        if not every:
            raise InputError(f"no line of the check has {' or '.join(map(repr, only))}", hint="--only gradient")
        for i, (name, measure) in enumerate(every.items(), start=1):
            progress(f"{i} of {len(every)}: {name}")
            try:
                yield replace(measure(), name=name)
            except _ProtocolError as error:
                yield Measurement(name, "fail", note=str(error))
            except Exception as error:  # noqa: BLE001 - an engine can fail in any way, and the other lines are worth having
                hint = f" -> {hint}" if (hint := getattr(error, "hint", None)) else ""
                yield Measurement(name, "fail", note=f"{type(error).__name__}: {error}"[:300] + hint)

    def _compare_gap(self, gap: float, note: str = "", limit: float | None = None) -> Measurement:
        """Return whether a gap passes. limit: the largest gap that does; None is the tolerance."""
        limit = limit or self._tolerance
        return Measurement("", "pass" if gap <= limit else "fail", gap, limit, note)  # NaN fails

    def _check_scores(self) -> Measurement:
        scored = self._engine.logprobs(None, sequences(self._sampled))
        return self._compare_gap(_gap([row.logprobs for row in self._sampled], scored))

    def _as_here(self) -> Measurement:
        assert self._naive
        sampled = sequences(self._sampled)
        return self._compare_gap(_gap(self._naive.base_logprobs(sampled), self._engine.logprobs(None, sampled)))

    def _check_later_scores(self) -> Measurement:
        sampled = sequences(self._sampled_later)
        base, scored = (self._engine.logprobs(at, sampled) for at in (None, self._started))
        changed = _gap(base, scored)
        if not changed > 0:
            raise _ProtocolError("training has changed no logprob")
        gap = _gap([row.logprobs for row in self._sampled_later], scored)
        return self._compare_gap(
            gap, f"moved by {changed:.2g}", min(self._tolerance, changed / 2)
        )  # so that scores of the base would fail

    def _first_ratio(self) -> Measurement:
        both = [self._train("ratio", self._initial, self._task([sampled_step(self._sampled)]))[-1], self._further[1]]
        gaps = [abs(float(metrics[name]) - 1) for metrics in both for name in ("ratio_mean", "ratio_max")]
        mean = max((float(metrics["ratio_mean"]) for metrics in both), key=lambda each: _size(abs(each - 1)))
        return self._compare_gap(max(gaps, key=_size), f"mean {mean:.6f}")

    def _distribution(self) -> Measurement:
        ids = self._engine.base.tokenizer.encode(_TEXT, add_special_tokens=False)
        gap, limit = sampled_divergence(self._engine, [(*self._prompt, *ids[:cut]) for cut in _CUTS])
        return self._compare_gap(gap, f"up to {limit:.1e} passes", limit)

    def _gradient(self, name: str) -> Measurement:
        options, source = Options(**GRADIENTS[name]), _LOSS if name == "custom_loss" else None
        wires = {name.partition(" ")[0], *GRADIENTS[name]}
        if why := next((why for wire, why in self._engine.unsupported.items() if wire in wires), ""):
            return Measurement("", "refused", note=why)
        reference = self._further[0] if name == "kl_ref_step" else None
        step = in_turns(self._step) if options.credit == "turn" else aggregate(self._step, options)
        task = replace(self._task([step], options, source), reference=reference)
        metrics = self._train(f"gradient {name}", self._started, task)[-1]
        if self._naive and not isinstance(self._engine, HasTrials):
            before, after = read_state(self._started), read_state(self._folder / f"gradient {name}")
            other = read_state(reference) if reference else None
            expected = self._naive.step(before, step, options, source, other)
            clipped = naive.clipped_gradients(expected, options.max_grad_norm)
            gap = naive.relative_gap(naive.gradients_between(before, after), clipped)
            gaps = {"gradient": gap, "norm": abs(float(metrics["grad_norm"]) / expected.norm - 1)}
            loss = expected.loss
        else:  # the tensors are elsewhere: compare with a custom loss that has the same derivatives
            loss, slope = self._slopes(task)
            gaps = {}
            if "custom_loss" not in self._engine.unsupported:
                own = f"def loss(new, *_):\n    return (torch.tensor({slope}).to(new) * new).sum()"
                same = self._train(f"own {name}", self._started, self._task([step], Options(), own))[-1]
                gaps["norm"] = abs(float(metrics["grad_norm"]) / float(same["grad_norm"]) - 1)
        gaps["loss"] = abs(float(metrics["loss"]) - loss) / max(abs(loss), 1e-2)
        worst = max(gaps, key=lambda each: _size(gaps[each]))
        return self._compare_gap(gaps[worst], f"{worst}; norm {metrics['grad_norm']:.4g}")

    def _slopes(self, task: Task) -> tuple[float, list[float]]:
        """Compute the loss of a task's only step, and its derivatives by the logprobs that the engine scores."""
        (step,), states = task.steps, (self._started, task.reference)
        new, other = ([value for each in self._engine.logprobs(at, step.tokens) for value in each] for at in states)
        loss, slope_T = naive.slopes(torch.tensor(new), step, task.options, other, task.loss_source)
        return loss, slope_T.tolist()

    def _accumulation(self) -> Measurement:
        """Compare a step with another that repeats its sequences until it needs several batches and requests.

        Its divisor is multiplied by the number of repetitions, so that the gradient is the same.
        """
        one = self._step
        several = math.ceil(4 * self._engine.base.batch_tokens / sum(map(len, one.tokens)))
        if isinstance(self._engine, HasTrials):
            several = max(several, math.ceil(_REQUEST / len(one.sequences)))
        many = Step(one.sequences * several, one.divisor * several, several)
        alone, together = (
            self._train(name, self._started, self._task([step]))[-1] for name, step in (("one", one), ("many", many))
        )
        gaps: dict[str, float] = {name: abs(together[name] / alone[name] - 1) for name in _COMPARED if name in alone}
        if not isinstance(self._engine, HasTrials):
            before, *after = (read_state(self._folder / name) for name in ("started", "one", "many"))
            first, second = (naive.gradients_between(before, each) for each in after)
            gaps["gradient"] = naive.relative_gap(second, first)
        elif "grad_norm" not in alone:
            return Measurement("", "measured", note="no norm is reported")
        worst = max(gaps, key=lambda each: _size(gaps[each]))
        return self._compare_gap(gaps[worst], f"{worst}; {len(many.sequences)} sequences against {len(one.sequences)}")

    def _optimizer(self) -> Measurement:
        if isinstance(self._engine, HasTrials):
            return self._check_trials(self._engine)
        self._train("optimizer", self._started, self._task([self._step]))
        return self._compare_gap(self._gap_to_adam("optimizer", Options()), "one step of AdamW")

    def _gap_to_adam(self, name: str, options: Options) -> float:
        """Compare the change of the adapter in a step with that of AdamW, by the moments in the checkpoint after it."""
        before, after = read_state(self._started), read_state(self._folder / name)
        moments = {name.replace(".default.", "."): each for name, each in after.optimizer.items()}
        expected = naive.adapter_after(before.adapter, moments, _RATE, options.weight_decay)
        changes = [
            {name: each.double() - before.adapter[name] for name, each in some.items()}
            for some in (after.adapter, expected)
        ]
        return naive.relative_gap(*changes)

    def _clip_and_decay(self) -> Measurement:
        wanted = {"max_grad_norm", "weight_decay"} & self._engine.unsupported.keys()
        if why := next((self._engine.unsupported[name] for name in wanted), ""):
            return Measurement("", "refused", note=why)
        if isinstance(self._engine, HasTrials):
            with self._engine.trial(self._started) as model:
                gap = clip_gap(model, self._sloped)
            if math.isnan(gap):
                return Measurement("", "measured", note="no norm is reported")
            return self._compare_gap(gap, f"clip; up to {LIMIT:g} passes", max(LIMIT, self._tolerance))
        free = Options(max_grad_norm=0.0, weight_decay=0.0)
        norm = float(self._train("free", self._started, self._task([self._step], free))[-1]["grad_norm"])
        clipped = Options(max_grad_norm=norm / 3, weight_decay=0.5)
        self._train("clipped", self._started, self._task([self._step], clipped))
        gaps = {}
        for name, most, options in (("free", norm, free), ("clipped", norm / 3, clipped)):
            between = naive.gradients_between(read_state(self._started), read_state(self._folder / name))
            gaps[f"{name} gradient"] = abs(naive.norm_of(between) / most - 1)
            gaps[f"{name} step"] = self._gap_to_adam(name, options)
        worst = max(gaps, key=lambda each: _size(gaps[each]))
        return self._compare_gap(gaps[worst], f"{worst}; norm {norm:.4g}, clipped at {norm / 3:.4g}")

    @property
    def _sloped(self) -> SlopedStep:
        """Sequences of different lengths, each with slopes as a custom loss may have them."""
        return [
            (tokens, torch.tensor([_OFFSETS[(i + t) % len(_OFFSETS)] / 8 for t in range(tokens.trainable)]))
            for i, tokens in enumerate(self._unlike)
        ]

    def _check_trials(self, engine: HasTrials) -> Measurement:
        step = self._sloped
        with engine.trial(self._started) as model:
            gaps = gradient_gaps(model, step)
        with engine.trial(self._initial) as model:
            gaps["momentum"] = momentum_gap(model, step)
        worst, most = max(gaps, key=lambda each: _size(gaps[each])), max(LIMIT, self._tolerance)
        norm = "; no norm is reported: the size of a step is not compared" if "sign" in gaps else ""
        return self._compare_gap(gaps[worst], f"{worst}; up to {most:g} passes{norm}", most)

    def _resume(self) -> Measurement:
        task = self._task(self._steps)
        whole = self._train("whole", self._initial, task)
        with suppress(Cancelled):
            self._train("stopped", self._initial, task, stop_after=_STEPS // 2)
        kept = partial_of(self._folder / ".stopped").exists()
        steps = self._train("stopped", self._initial, task)
        if len(steps) != len(whole):
            raise _ProtocolError(f"{len(steps)} gradient steps reported of {len(whole)}")
        both = [self._engine.logprobs(self._folder / name, self._step.tokens) for name in ("whole", "stopped")]
        note = f"stopped after {_STEPS // 2} of {_STEPS} steps, {'went on' if kept else 'started over'}"
        return self._compare_gap(_gap(*both), note)

    def _seed(self) -> Measurement:
        again = self._sample(seed=1)
        if [row.tokens for row in again] != [row.tokens for row in self._sampled]:
            raise _ProtocolError("the same seed gave other tokens")
        return self._compare_gap(_gap([row.logprobs for row in again], [row.logprobs for row in self._sampled]))

    def _other_seed(self) -> Measurement:
        if [row.tokens for row in self._sample(seed=2)] != [row.tokens for row in self._sampled]:
            return Measurement("", "pass")
        chance = sum(logprob for row in self._sampled for logprob in row.logprobs)
        if not chance > _CHANCE:
            raise _ProtocolError("another seed gave the same tokens")
        note = f"the same tokens, but these have a probability of {math.exp(chance):.2g}"
        return Measurement("", "measured", note=note)

    def _stop(self) -> Measurement:
        text = self._engine.base.renderer().text
        if not (stop := stop_of([text(row.tokens[:-1]) for row in self._sampled])):
            return Measurement("", "measured", note="no letter was sampled that a completion could end with")
        requests = [replace(request, stops=(stop,)) for request in self._requests(1)]
        rows = self._engine.sample(None, requests).result(TIMEOUT)
        if fault := stop_fault(self._engine, [*self._sampled, *rows]):
            raise _ProtocolError(fault)
        return Measurement("", "pass", note=f"the stop string was {stop!r}")

    def _cancel_sampling(self) -> Measurement:
        cancelled = Event()

        def wait(_: Completion) -> None:  # so that no completion ends before the request is cancelled
            cancelled.wait(TIMEOUT)

        future = self._engine.sample(None, self._requests(3, 64), wait)
        future.cancel()
        cancelled.set()
        begun = time.monotonic()
        with suppress(CancelledError):
            future.result(TIMEOUT)
            raise _ProtocolError("a cancelled request gave its completions")
        self._sample(seed=4)
        return Measurement("", "pass", note=f"the next request took {time.monotonic() - begun:.1f} s")

    def _cancel_training(self) -> Measurement:
        begun = time.monotonic()
        try:
            self._train("cancelled", self._initial, self._task(self._steps), stop_after=1)
        except Cancelled:
            return Measurement("", "pass", note=f"{time.monotonic() - begun:.1f} s")
        raise _ProtocolError("a cancelled task trained to its end")

    def _cancel_inside(self) -> Measurement:
        one = self._step
        several = math.ceil(8 * self._engine.base.batch_tokens / sum(map(len, one.tokens)))
        long = self._task([Step(one.sequences * several, one.divisor * several, several)])
        begun, asked = time.monotonic(), count()
        try:
            self._train("inside", self._initial, long, cancelled=lambda: next(asked) >= _ASKED)
        except Cancelled:
            return Measurement("", "pass", note=f"{time.monotonic() - begun:.1f} s")
        raise _ProtocolError("a task that was cancelled in its only step took the step")

    def _sampling_speed(self) -> Measurement:
        begun = time.monotonic()
        rows = [row for seed in (5, 6, 7, 8) for row in self._sample(seed=seed)]
        seconds = time.monotonic() - begun
        tokens = sum(len(row.tokens) for row in rows)
        return Measurement(
            "", "measured", note=f"{len(rows) / seconds:.1f} completions/s, {tokens / seconds:.0f} tokens/s"
        )

    def _training_speed(self) -> Measurement:
        begun = time.monotonic()
        self._train("speed", self._initial, self._task(self._steps))
        tokens = sum(step.trained for step in self._steps)
        return Measurement(
            "", "measured", note=f"{tokens / (time.monotonic() - begun):.0f} trained tokens/s, {_STEPS} steps"
        )

    @cached_property
    def _prompt(self) -> tuple[int, ...]:
        message = UserMessage(role="user", content="Say anything.")
        return tuple(self._engine.base.renderer().prompt([message]))

    def _requests(self, seed: int, tokens: int = _TOKENS) -> list[CompletionRequest]:
        most = min(tokens, self._engine.base.context - len(self._prompt))
        return [CompletionRequest(self._prompt, most, seed=seed, index=i) for i in range(_COMPLETIONS)]

    def _sample(self, *, seed: int, checkpoint: Path | None = None) -> list[Completion]:
        return self._engine.sample(checkpoint, self._requests(seed)).result(TIMEOUT)

    @cached_property
    def _sampled(self) -> list[Completion]:
        return self._sample(seed=1)

    @cached_property
    def _sampled_later(self) -> list[Completion]:
        return self._sample(seed=1, checkpoint=self._started)

    @cached_property
    def _step(self) -> Step:
        """Three answers of given tokens, with logprobs as if another policy had sampled them."""
        ids = self._engine.base.tokenizer.encode(_TEXT, add_special_tokens=False)
        parts = [ids[start : start + 12] for start in (0, 5, 9)]
        unscored = [sequence(self._prompt, part) for part in parts]
        scored = self._engine.logprobs(self._started, unscored)
        learned = []
        for i, (part, logprobs) in enumerate(zip(parts, scored, strict=True)):
            old = [min(0.0, each - _OFFSETS[(i + t) % len(_OFFSETS)]) for t, each in enumerate(logprobs)]
            trained = sequence(self._prompt, part, old)
            learned.append(TrainingSequence(trained, (1.0, -0.7, 0.4)[i], (1.0, 0.5, 2.0)[i]))
        return step_of(learned)

    @property
    def _unlike(self) -> list[TokenSequence]:
        """Sequences of different lengths."""
        ids = self._engine.base.tokenizer.encode(_TEXT, add_special_tokens=False)
        parts = [ids[start:end] for start, end in ((0, 12), (5, 10), (3, 21))]
        return [sequence(self._prompt, part) for part in parts]

    @property
    def _steps(self) -> list[Step]:
        """`_STEPS` steps, no two of which have the same gradient."""
        one, two, three = self._step.sequences
        return [step_of(each) for each in ([one], [one, two], [two, three], [one, two, three])]

    @cached_property
    def _initial(self) -> Path:
        """Checkpoint 0 of a model."""
        with open_draft(self._folder / "initial") as draft:
            self._engine.create_initial(draft)
            seal(draft, self._folder / "initial")
        return self._folder / "initial"

    @cached_property
    def _started(self) -> Path:
        """A checkpoint whose adapter is not zero."""
        self._train("started", self._initial, self._task([sampled_step(self._sampled)] * 2))
        return self._folder / "started"

    @cached_property
    def _further(self) -> tuple[Path, dict[str, Any]]:
        """The checkpoint one step after `_started`, trained on samples of `_started`, and the metrics of that step."""
        steps = self._train("further", self._started, self._task([sampled_step(self._sampled_later)]))
        return self._folder / "further", steps[-1]

    def _task(self, steps: list[Step], options: Options | None = None, loss_source: str | None = None) -> Task:
        return Task(steps, [_RATE] * len(steps), options or Options(), 1, {}, loss_source=loss_source)

    def _train(
        self,
        name: str,
        source: Path,
        task: Task,
        stop_after: float = float("inf"),
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[dict[str, Any]]:
        """Train a task to the checkpoint `name`; return the metrics of its steps.

        The task is cancelled after `stop_after` steps, or once `cancelled()` is true.
        """
        steps: list[dict[str, Any]] = []

        def report(kind: str, data: dict[str, object]) -> None:
            if kind == "gradient_step":
                steps.append(data)

        draft = self._folder / f".{name}"
        remove(draft)
        draft.mkdir()
        self._engine.train(source, draft, task, Callbacks(report, lambda: len(steps) >= stop_after or cancelled()))
        if not steps:
            raise _ProtocolError("no gradient step was reported")
        seal(draft, self._folder / name)
        return steps


def _gap(first: list[list[float]], second: list[list[float]]) -> float:
    """Return the largest difference of logprobs."""
    pairs = [zip(a, b, strict=True) for a, b in zip(first, second, strict=True)]
    return max((abs(a - b) for pair in pairs for a, b in pair), key=_size)


def _size(gap: float) -> float:
    """Return a key by which NaN is the largest of gaps."""
    return math.inf if math.isnan(gap) else gap
