"""Templates of OpenAI graders: `{{ sample.output_text }}`, `{{ item.labels[0].name }}`."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.store.models import StoredTrajectory

NAMESPACES = ("item", "sample")
SAMPLE = ("output_text", "output_json", "output_tools", "choices", "output_audio")
"""The parts of `sample`."""
_REFERENCE = re.compile(r"\{\{((?:(?!\{\{).)*?)\}\}", re.DOTALL)
_STEP = re.compile(r"\.([\w$@:-]+)|\[(\d+)\]|\[\"([^\"]*)\"\]|\['([^']*)'\]")


class MissingPartError(Exception):
    """A completion or a row does not have what a template refers to. path: as it is in the template."""

    def __init__(self, path: str) -> None:
        super().__init__(f"there is no {path}")
        self.path = path


class Template:
    """A parsed template.

    Raises:
        InputError: a reference in it is not `item.NAME` or `sample.NAME`, with steps of names and indices.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.references = [_steps(match[1].strip()) for match in _REFERENCE.finditer(text)]

    @property
    def columns(self) -> list[str]:
        """The columns of the row that the template uses."""
        return [str(steps[1]) for steps in self.references if steps[0] == "item"]

    def fill(self, values: Mapping[str, Any]) -> str:
        """Fill in values, which are not templates themselves. Values that are no texts are written as JSON.

        Raises:
            MissingPartError: a value is missing.
        """
        steps = iter(self.references)
        return _REFERENCE.sub(lambda match: _text(_look_up(next(steps), values, match[1].strip())), self.text)


def sample_of(trajectory: StoredTrajectory) -> dict[str, Any]:
    """Return the `sample` of a trajectory: its last completion, with `output_json` if its text is JSON."""
    choices = [choice.to_wire() for choice in trajectory.choices[-1:]]
    message = choices[0]["message"] if choices else {}
    sample = {
        "output_text": trajectory.answer,
        "output_tools": message.get("tool_calls") or [],
        "choices": [{key: value for key, value in choice.items() if key != "logprobs"} for choice in choices],
    }
    if message.get("audio"):
        sample["output_audio"] = message["audio"]
    with suppress(ValueError, RecursionError):
        sample["output_json"] = json.loads(trajectory.answer)
    return sample


def _steps(reference: str) -> list[str | int]:
    head = re.match(r"[A-Za-z_]+", reference)
    namespace, steps = head[0] if head else "", list[str | int]()
    place = len(namespace)
    while step := _STEP.match(reference, place):
        name = next((part for part in (step[1], step[3], step[4]) if part is not None), None)
        steps.append(int(step[2]) if name is None else name.strip())
        place = step.end()
    known = namespace == "item" or (steps and steps[0] in SAMPLE and (steps[0] != "output_text" or len(steps) == 1))
    if namespace not in NAMESPACES or not steps or place != len(reference) or not known:
        names = ", ".join(f"{{{{sample.{name}}}}}" for name in SAMPLE)
        raise InputError(f"{{{{{reference}}}}} is not a reference of a grader", hint=f"{{{{item.COLUMN}}}}, {names}")
    return [namespace, *steps]


def _look_up(steps: Sequence[str | int], value: Any, path: str) -> Any:
    for step in steps:
        inside = range(len(value)) if isinstance(value, list) else value if isinstance(value, Mapping) else ()
        if step not in inside:
            raise MissingPartError(path)
        value = value[step]
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
