"""Columns of rolloutlab's JSONL and Parquet files: stored trajectories as named columns, and back, without loss.

The columns are the properties of the specification's Trajectory, its place in the lab, and its sampling settings.
Other properties are in `extra`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from rolloutlab.api.wire import trajectories as wire
from rolloutlab.api.wire.base import Integer, Number, Wire
from rolloutlab.api.wire.chat import Choice, MessageOrChoice
from rolloutlab.api.wire.errors import locate
from rolloutlab.errors import InputError
from rolloutlab.store.models import Group, Recorded, StoredCollection, StoredTrajectory
from rolloutlab.trajectories.files.jsonl import Document, dump_line, write_lines

W = TypeVar("W", bound=Wire)

FURTHER = (
    "tools",
    "additional_histories",
    "metrics",
    "auto_metrics",
    "metadata",
    "logs",
    "initial_policy_version",
    "final_policy_version",
)
"""Properties of the specification's Trajectory that the lab stores unchanged."""

_MAX_INTEGER = 2**53


class Line(wire.Trajectory):
    """The columns of one trajectory. Only the conversation is required, because other tools do not write the rest."""

    reward: Number | None = None  # type: ignore[assignment]
    collection: str | None = None
    generation: Integer | None = Field(default=None, ge=1, lt=_MAX_INTEGER)
    group: Integer | None = Field(default=None, ge=0, lt=_MAX_INTEGER)
    position: Integer | None = Field(default=None, ge=0, lt=_MAX_INTEGER)
    prompt: Integer | None = Field(default=None, ge=0)
    row: dict[str, Any] = {}
    model: str = ""
    step: Integer | None = Field(default=None, ge=0, lt=_MAX_INTEGER)
    sampling: dict[str, Any] = {}
    components: dict[str, Number] = {}
    source: str | None = None
    extra: dict[str, Any] = {}


def to_columns(collection: StoredCollection, group: Group, trajectory: StoredTrajectory) -> dict[str, Any]:
    """Convert a trajectory to columns of JSON. `prompt` is the number of messages that its group shares."""
    further = {name: trajectory.extra[name] for name in FURTHER if name in trajectory.extra}
    unknown = {name: value for name, value in trajectory.extra.items() if name not in FURTHER}
    return {
        "collection": collection.name,
        "generation": collection.generation,
        "group": group.position,
        "position": int(trajectory.name.rpartition("/")[2]),
        "row": dict(group.row),
        "model": trajectory.model,
        "step": trajectory.step,
        "sampling": dict(trajectory.sampling),
        "reward": trajectory.reward,
        "components": dict(trajectory.components),
        "source": trajectory.source,
        "start_time": trajectory.created_at,
        "prompt": len(group.prompt),
        "messages_and_choices": [item.to_wire() for item in trajectory.items],
        **further,
        **({"extra": unknown} if unknown else {}),
    }


def from_columns(place: str, columns: Any, name: str | None) -> Recorded:
    """Read a trajectory from its columns; raise InputError with the place if one is wrong.

    place: where it is in the file. columns: its columns. name: its collection; by default the one that it names.
    """
    line = validate(Line, columns, place)
    items = line.messages_and_choices
    prompt = prompt_length(items) if line.prompt is None else line.prompt
    if prompt > len(items) or any(isinstance(item, Choice) for item in items[:prompt]):
        raise InputError(f"{place}: prompt: {prompt} is more than its messages before a Choice", hint='"prompt": 1')
    collection = name or line.collection or raise_without_name(place)
    places = line.group is not None and line.position is not None
    unknown = line.model_extra or {}
    return Recorded(
        place,
        collection,
        (line.group or 0) if places else group_key_of(items[:prompt], line.group),
        items[:prompt],  # type: ignore[arg-type]
        items[prompt:],
        None if name else line.generation,
        line.position if places else None,
        _check_finite(place, "row", line.row),
        line.model,
        line.step,
        _check_finite(place, "sampling", line.sampling),
        line.start_time,
        line.reward,
        _check_finite(place, "components", columns.get("components") or {}),
        line.source,
        _check_finite(
            place, "extra", {**{key: columns[key] for key in FURTHER if key in columns}, **line.extra, **unknown}
        ),
    )


def validate(kind: type[W], value: Any, place: str) -> W:
    """Parse a value as a `kind`; raise InputError with the path of the first part that is wrong."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = locate(error.errors()[:1], value)[0]
        path = ".".join(map(str, first.loc)) or kind.__name__.lower()
        raise InputError(f"{place}: {path}: {first.msg}", hint="docs/exchange.md has the formats") from error


def raise_without_name(place: str) -> str:
    """Raise the InputError for a file that does not name its collection. It never returns a text."""
    file = place.partition(",")[0]
    raise InputError(f"{file} does not name its collection", hint=f"%import {file} NAME")


def prompt_length(items: list[MessageOrChoice], is_sampled: Callable[[MessageOrChoice], bool] | None = None) -> int:
    """Count the messages of the prompt: those before the first Choice, or else before the first assistant message.

    is_sampled: tells which message is the policy's, instead of these two rules.
    """
    choices: Callable[[MessageOrChoice], bool] = lambda item: isinstance(item, Choice)  # noqa: E731
    tests = [is_sampled] if is_sampled else [choices, lambda item: getattr(item, "role", "") == "assistant"]
    for test in tests:
        if any(map(test, items)):
            return next(i for i, item in enumerate(items) if test(item))
    return len(items)


def group_key_of(prompt: list[MessageOrChoice], group: int | None = None) -> str:
    """Return the key of a group: a hash of its prompt, and of its number if it has one."""
    return sha256(json.dumps([group, [item.to_wire() for item in prompt]]).encode()).hexdigest()


def _check_finite(place: str, column: str, value: Mapping[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise InputError(f"{place}: {column}: a number is larger than any float", hint="null") from error
    return dict(value)


def write_jsonl(path: Path, groups: Iterable[tuple[StoredCollection, Group]], *, gzipped: bool) -> None:
    """Write the trajectories of groups, a line each."""
    lines = (to_columns(collection, group, each) for collection, group in groups for each in group.trajectories)
    write_lines(path, (dump_line(line) for line in lines), gzipped=gzipped)


def read_rows(documents: Iterable[Document], name: str | None) -> Iterator[Recorded]:
    """Read the trajectories of lines, for the collections that the lines name, or for `name`.

    Raises:
        InputError: a line is wrong; or `name` is given, and the lines name more than one collection.
    """
    seen: set[object] = set()
    for place, value in documents:
        yield from_columns(place, value, name)
        seen.add((value.get("collection"), value.get("generation")))
        if name and len(seen) > 1:
            file = place.partition(",")[0]
            raise InputError(f"{place}: another collection begins", hint=f"%import {file} gives each its own name")
