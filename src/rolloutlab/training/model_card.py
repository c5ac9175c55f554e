"""The model card of an exported checkpoint: README.md, with the metadata that the Hugging Face hub reads."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import escape_to_one_line
from rolloutlab.store.models import SubmittedJob
from rolloutlab.training.evaluation import Evaluation
from rolloutlab.training.models import Checkpoint
from rolloutlab.widgets.text import decimals

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_LOAD_ADAPTER = """from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained({base}, dtype="{dtype}")
model = PeftModel.from_pretrained(base, "FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")"""
_LOAD_MERGED = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")"""


@dataclass(frozen=True)
class CheckpointFacts:
    """What is known of a checkpoint, for its card.

    Attributes:
        checkpoint: The model and step.
        base: What `transformers` loads as the base: a folder or a hub name.
        dtype: The dtype in which its service has the base.
        merged: Whether the adapter is merged into the weights.
        jobs: The jobs of this lab that made it, oldest first, each with the step that it made, if that is known.
        foreign: Steps on the way to it that no job of this lab made.
        evaluation: What was measured of it.
        unmeasured: The cell that would measure it, if nothing was.
    """

    checkpoint: Checkpoint
    base: str
    dtype: str
    merged: bool
    jobs: Sequence[tuple[SubmittedJob, int | None]] = ()
    foreign: Sequence[int] = ()
    evaluation: Evaluation | None = None
    unmeasured: str = ""

    @property
    def hub_base(self) -> str | None:
        """The base as a name of the hub; None if it is a folder or a practice policy, which the hub does not have."""
        return self.base if _HUB_NAME.fullmatch(self.base) and not Path(self.base).exists() else None


def model_card(facts: CheckpointFacts) -> str:
    """Write the text of README.md."""
    parts = [*_metadata(facts), "", *_summary(facts), "", *_training(facts), "", *_held_out(facts), "", *_use(facts)]
    return "\n".join(parts) + "\n"


def _metadata(facts: CheckpointFacts) -> Iterator[str]:
    """Yield the lines of the hub's YAML. A JSON string is a YAML string."""
    yield "---"
    if facts.hub_base:
        yield f"base_model: {json.dumps(facts.hub_base)}"
        yield f"base_model_relation: {'finetune' if facts.merged else 'adapter'}"
    yield f"library_name: {'transformers' if facts.merged else 'peft'}"
    yield "pipeline_tag: text-generation"
    yield "tags:"
    yield from (f"- {tag}" for tag in ("rolloutlab", "lora", "reinforcement-learning"))
    yield "---"


def _summary(facts: CheckpointFacts) -> Iterator[str]:
    yield f"# {_text(str(facts.checkpoint))}"
    yield ""
    name = _text(facts.checkpoint.model.base or facts.base)
    of_folder = "" if facts.hub_base else ", a folder on the machine that exported it"
    if facts.merged:
        yield f"The weights of {name}{of_folder}, with the adapter of checkpoint {facts.checkpoint.step} merged in."
        yield f"They are in {facts.dtype}, as in the service that trained them."
    else:
        yield f"A LoRA adapter of {name}{of_folder}. It is checkpoint {facts.checkpoint.step} of its model."
        yield f"It was trained on the base in {facts.dtype}."


def _training(facts: CheckpointFacts) -> Iterator[str]:
    yield "## Training"
    yield ""
    if not facts.jobs and not facts.foreign:
        untrained = facts.checkpoint.step == 0
        yield "Checkpoint 0 is not trained: it answers as its base." if untrained else "No job of it is known."
        return
    if facts.jobs:
        yield "| checkpoint | trained on | job | options |"
        yield "|---|---|---|---|"
    for job, step in facts.jobs:
        on = ", ".join([*job.collections, *map(str, job.options.get("files", ()))])
        made = "not known" if step is None else str(step)
        cells = made, on, f"{job.id} ({job.created_at[:10]})", _options(job.options)
        yield f"| {' | '.join(map(_cell, cells))} |"
    if facts.foreign:
        steps = ", ".join(map(str, facts.foreign))
        yield ""
        yield f"No job of the lab that exported it made checkpoint {steps}: what it was trained on there is not known."


def _options(options: Mapping[str, Any]) -> str:
    """Write options as `learning_rate: 0.001`. The files of fine-tuning are shown beside the collections instead."""
    shown = [f"{name}: {json.dumps(value)}" for name, value in options.items() if name != "files"]
    return ", ".join(shown) or "all by default"


def _held_out(facts: CheckpointFacts) -> Iterator[str]:
    yield "## Held-out reward"
    yield ""
    result = facts.evaluation
    if result is None:
        yield "It was not measured. This cell of a notebook measures it, on rows that it was not trained on:"
        yield from ("", f"    {facts.unmeasured}")
        return
    sizes = f"{count(result.prompts, 'prompt')}, {count(result.completions, 'completion')}"
    low, high = result.interval or (None, None)
    within = f"95% interval {decimals(low)} to {decimals(high)}" if low is not None and high is not None else ""
    shown = f" ({within})" if within else " (too few prompts for an interval)"
    yield f"Mean reward {decimals(result.mean)}{shown}, on {sizes}: `{result.label}`."
    if result.trained:
        yield f"It was trained on {result.trained:,} of these prompts: this is not a held-out mean."
    yield from map(_text, result.notes)
    if result.compared:
        yield ""
        yield "Compared with checkpoint 0, on the same prompts and seeds:"
        yield ""
        yield from (f"    {_text(line)}" for line in result.compared)


def _use(facts: CheckpointFacts) -> Iterator[str]:
    yield "## Use"
    yield ""
    code = _LOAD_MERGED if facts.merged else _LOAD_ADAPTER.format(base=json.dumps(facts.base), dtype=facts.dtype)
    yield from ("```python", code, "```")


def _text(value: str) -> str:
    """Escape a text that a service or a user has written, so that it stays on one line."""
    return escape_to_one_line(value)


def _cell(value: str) -> str:
    return _text(value).replace("|", "\\|")
