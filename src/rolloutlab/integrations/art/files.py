"""Format of `openpipe-art`: its `TrajectoryGroup` as JSON, one per line or all in an array.

It also reads what the library's `trajectory_logging` writes to Parquet, which has no logprobs. Trajectories without a
reward are not written: the library has none.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from rolloutlab.api.wire import trajectories as wire
from rolloutlab.api.wire.base import Wire
from rolloutlab.api.wire.chat import MessageOrChoice
from rolloutlab.store.models import Group, Recorded, StoredCollection
from rolloutlab.trajectories.files.columns import FURTHER, prompt_length, raise_without_name, validate
from rolloutlab.trajectories.files.jsonl import Document, dump_line, write_lines

_PLAIN = (str, int, float, bool, type(None))


writes_unscored = False


class ArtGroup(Wire):
    """An `art.TrajectoryGroup`, whose trajectories are not parsed yet."""

    trajectories: list[dict[str, Any]]
    metadata: dict[str, Any] = {}


def matches(document: Any) -> bool:
    """Whether a JSON value is a group with its trajectories."""
    return isinstance(document, dict) and "trajectories" in document and "messages_and_choices" not in document


def write(path: Path, groups: Iterable[tuple[StoredCollection, Group]], *, gzipped: bool, array: bool = False) -> None:
    """Write groups, one per line; `array` makes the file one JSON array of them."""
    lines = (dump_line(_group(group)) for _, group in groups)
    write_lines(path, _wrap_in_array(lines) if array else lines, gzipped=gzipped)


def read(documents: Iterable[Document], name: str | None) -> Iterator[Recorded]:
    """Yield the trajectories of groups, for the collection `name`. InputError names the place of a wrong one."""
    for number, (place, value) in enumerate(documents):
        group = validate(ArtGroup, value, place)
        parsed = [
            validate(wire.Trajectory, _rename_messages(raw), f"{place}: trajectories.{i}")
            for i, raw in enumerate(group.trajectories)
        ]
        prompts = [each.messages_and_choices[: prompt_length(each.messages_and_choices)] for each in parsed]
        beside = takewhile(lambda items: all(item == items[0] for item in items), zip(*prompts, strict=False))
        shared: list[MessageOrChoice] = [items[0] for items in beside]
        for raw, trajectory in zip(group.trajectories, parsed, strict=True):
            yield Recorded(
                place,
                name or raise_without_name(place),
                f"group {number}",
                shared,  # type: ignore[arg-type]  # no Choice comes before the first Choice
                trajectory.messages_and_choices[len(shared) :],
                row=group.metadata,
                model=_model(trajectory.metadata),
                created_at=trajectory.start_time,
                reward=trajectory.reward,
                extra={key: raw[key] for key in FURTHER if raw.get(key)} | (trajectory.model_extra or {}),
            )


def _group(group: Group) -> dict[str, Any]:
    return {
        "trajectories": [each.to_wire().to_wire() for each in group.trajectories if each.reward is not None],
        "metadata": {key: value for key, value in group.row.items() if isinstance(value, _PLAIN)},
    }


def _wrap_in_array(lines: Iterable[str]) -> Iterator[str]:
    opening = "["
    for line in lines:
        yield f"{opening}{line}"
        opening = ","
    yield "]"


def _rename_messages(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Give a trajectory's conversation the name of the specification. Parquet logs call it `messages`."""
    renamed = dict(raw)
    if "messages" in renamed:
        renamed.setdefault("messages_and_choices", renamed.pop("messages"))
    return renamed


def _model(metadata: Mapping[str, Any]) -> str:
    model = metadata.get("model")
    return model if isinstance(model, str) else ""
