"""score_model and label_model graders: a model is asked about one completion, and its answer is parsed strictly."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.errors import InputError, RefusedError, RewardError
from rolloutlab.integrations.openai_graders.templates import Template
from rolloutlab.scoring.ask import Ask
from rolloutlab.store.models import StoredTrajectory
from rolloutlab.store.rewards import finite
from rolloutlab.trajectories.json_objects import find_json_objects

TRIES = 3
"""How often a model is asked before it counts as unusable."""
_SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "max_completions_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_completion_tokens",
    "reasoning_effort": "reasoning_effort",
}
"""Sampling parameters of graders, and their names in a request. The guide writes `max_completions_tokens`."""
_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text")
_SCORE = (
    'Answer with one JSON object and nothing else: {{"steps": ["..."], "result": a number from {low:g} to {high:g}}}'
)
_LABEL = 'Answer with one JSON object and nothing else: {{"label": one of {labels}}}'

Prepared = tuple[Callable[[StoredTrajectory, Mapping[str, Any]], float], list[str], float]
"""The function that grades, the columns it uses, and its lowest score."""


def score_model(spec: Mapping[str, Any], ask: Ask) -> Prepared:
    """Prepare a grader whose model gives a number in its `range` (default: 0 to 1)."""
    low, high = _range(spec.get("range", [0, 1]))

    def parse(answer: str) -> float:
        value = _find_value(answer, "result")
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"the result is not a number from {low:g} to {high:g}")
        return float(value)

    return _prepare(spec, ask, _SCORE.format(low=low, high=high), parse, low)


def label_model(spec: Mapping[str, Any], ask: Ask) -> Prepared:
    """Prepare a grader whose model gives one of its labels. The score is 1 for one of `passing_labels`, else 0."""
    labels, passing = spec["labels"], spec["passing_labels"]
    if not all(isinstance(each, list) and each and set(map(type, each)) == {str} for each in (labels, passing)):
        raise InputError("labels and passing_labels must be lists of strings", hint='"labels": ["good", "bad"]')
    if unknown := [label for label in passing if label not in labels]:
        raise InputError(f"the passing label {unknown[0]!r} is not in labels", hint=", ".join(labels))

    def parse(answer: str) -> float:
        label = _find_value(answer, "label") if answer.strip() not in labels else answer.strip()
        if label not in labels:
            raise ValueError(f"the label is not one of {', '.join(labels)}")
        return float(label in passing)

    return _prepare(spec, ask, _LABEL.format(labels=json.dumps(labels, ensure_ascii=False)), parse, 0.0)


def _range(given: Any) -> tuple[float, float]:
    if not isinstance(given, list) or len(given) != 2:
        raise InputError(f"range must be two numbers, not {given!r}", hint='"range": [0, 1]')
    low, high = (finite(end, "range") for end in given)
    if not low < high:
        raise InputError(f"range must be two numbers, the lower one first, not {given!r}", hint='"range": [0, 1]')
    return low, high


def _prepare(spec: Mapping[str, Any], ask: Ask, form: str, parse: Callable[[str], float], lowest: float) -> Prepared:
    messages = [_message(each) for each in spec["input"]] if isinstance(spec["input"], list) else None
    if not messages or not isinstance(spec["model"], str):
        raise InputError(
            "a model grader needs a model and messages", hint='"input": [{"role": "user", "content": ...}]'
        )
    options = _options(spec.get("sampling_params") or {})

    def grade(trajectory: StoredTrajectory, values: Mapping[str, Any]) -> float:
        filled = [{"role": role, "content": [_fill(p, values) for p in parts]} for role, parts in messages]
        head = {"role": "system", "content": form}
        return _ask_until_parsed(
            trajectory, {"model": spec["model"], **options}, [head, *map(_plain, filled)], ask, parse
        )

    columns = [c for _, parts in messages for _, template in parts for c in template.columns]
    return grade, columns, lowest


def _ask_until_parsed(
    trajectory: StoredTrajectory,
    request: Mapping[str, Any],
    messages: list[Any],
    ask: Ask,
    parse: Callable[[str], float],
) -> float:
    """Ask a model, and parse its answer. After an invalid answer, say what is wrong and ask again."""
    problem: Exception | None = None
    for _ in range(TRIES):
        try:
            completion = ask(trajectory, ChatRequest.model_validate({**request, "messages": messages}))
        except RefusedError as error:
            message = f"the grader's model refused the request about {trajectory.name}: {error.message}"
            raise RewardError(message, hint='lab.grader(..., model="lab/judge"), another one') from error
        answer = completion.choices[0].message.content or ""
        try:
            return parse(answer)
        except ValueError as error:
            problem = error
        again = {
            "role": "user",
            "content": f"In your answer {problem}. Answer again, with nothing but the JSON object.",
        }
        messages = [*messages, {"role": "assistant", "content": answer or "(nothing)"}, again]
    raise RewardError(f"the grader's model gave no usable answer for {trajectory.name} in {TRIES} tries: {problem}")


def _find_value(answer: str, key: str) -> Any:
    """Find the value of a key in the one JSON object that has it; without one, return an answer that is JSON itself."""
    answer = answer.rpartition("</think>")[2]
    having = [value for value in find_json_objects(answer) if key in value]
    if len(having) == 1:
        return having[0][key]
    if having:
        raise ValueError("more than one JSON object has a result")
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        raise ValueError(f"no JSON object has {key!r}") from None


def _message(given: Any) -> tuple[str, list[tuple[str, Template]]]:
    """Read an input message; return its role, and the type and template of each part."""
    if not isinstance(given, Mapping) or given.get("role") not in _ROLES or "content" not in given:
        raise InputError(f"{given!r} is not an input message", hint='{"role": "user", "content": "..."}')
    content = given["content"]
    return given["role"], [_part(each) for each in (content if isinstance(content, list) else [content])]


def _part(given: Any) -> tuple[str, Template]:
    if isinstance(given, str):
        return "text", Template(given)
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind in _TEXTS and isinstance(given.get("text"), str):
        return "text", Template(given["text"])
    if kind == "input_image" and isinstance(given.get("image_url"), str):
        return "image_url", Template(given["image_url"])
    raise InputError(f"{kind!r} is not a part of a message that is supported", hint="input_text, input_image")


def _fill(part: tuple[str, Template], values: Mapping[str, Any]) -> dict[str, Any]:
    kind, template = part
    text = template.fill(values)
    return {"type": kind, kind: text if kind == "text" else {"url": text}}


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Join the parts of a message that has only texts, because fewer services take parts."""
    parts: Sequence[Mapping[str, Any]] = message["content"]
    if all(part["type"] == "text" for part in parts):
        return {**message, "content": "".join(part["text"] for part in parts)}
    return message


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    for name in given:
        if name not in _SAMPLING:
            raise InputError(f"{name!r} is not a sampling parameter of graders", hint=", ".join(_SAMPLING))
    return {_SAMPLING[name]: value for name, value in given.items() if value is not None}
