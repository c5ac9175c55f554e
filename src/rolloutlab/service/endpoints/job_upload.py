"""The body of a training job in a file: checked when it arrives and read when it trains, a trajectory at a time."""

import re
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json, to_json

from rolloutlab.api.wire.chat import Choice
from rolloutlab.api.wire.errors import ValidationError
from rolloutlab.api.wire.training import CreateTrainingJob, ExperimentalTrainingConfig
from rolloutlab.api.wire.trajectories import Trajectory, TrajectoryGroup
from rolloutlab.policy.job_reader import Garbled
from rolloutlab.service.endpoints.body import MOST_ERRORS, InvalidBody, M, parse
from rolloutlab.service.endpoints.json_stream import JsonStream, MalformedJsonError

T = TypeVar("T")

_ROUNDING = 1e-3
_MARK = "\ufdd0"
"""A character that Unicode keeps for use inside programs."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)


def check(path: Path) -> CreateTrainingJob:
    """The job in a file without its groups, all of which have been validated and let go.

    Raises:
        InvalidBody: the file is not JSON, or not a job.
    """
    with path.open("rb") as file:
        return _Check(JsonStream(file)).job()


def read(path: Path) -> tuple[ExperimentalTrainingConfig | None, Iterator[Iterator[Trajectory | Garbled]]]:
    """The options and the groups of a job in a file that was checked.

    A trajectory in which bytes are no text is Garbled: it alone is left out.

    The groups are read once, as they are asked for: each must be used before the next, as with `itertools.groupby`.
    """
    return _config(path), _groups(path)


class _Check:
    """Validates a job piece by piece, and collects what is wrong up to some tens of errors."""

    def __init__(self, reader: JsonStream) -> None:
        self._reader = reader
        self._found: list[ValidationError] = []

    def job(self) -> CreateTrainingJob:
        job = None
        try:
            job = self._hollow(CreateTrainingJob, "trajectory_groups", self._group)
            self._reader.end()
        except MalformedJsonError as error:
            self._add([ValidationError(loc=["body", *error.path], msg=str(error), type="json_invalid")])
        if job is None or self._found:
            raise InvalidBody(self._found)
        return job

    def _group(self) -> None:
        self._hollow(TrajectoryGroup, "trajectories", self._trajectory)

    def _trajectory(self) -> None:
        if found := self._parse(Trajectory, _with_marks(self._reader.value())):
            self._add(list(islice(_impossible(found, ("body", *self._reader.path)), MOST_ERRORS)))

    def _hollow(self, model: type[M], long: str, item: Callable[[], None]) -> M | None:
        """Validate an object whose one long array is validated item by item, and is empty in what is returned."""
        if self._reader.peek() != b"{":
            return self._parse(model, self._reader.value())
        members = []
        for name in self._reader.members():
            text = b"[]"
            if name == long and self._reader.peek() == b"[":
                for _ in self._reader.items():
                    item()
            else:
                text = self._reader.value()
            members.append(to_json(name) + b":" + text)
        return self._parse(model, b"{" + b",".join(members) + b"}")

    def _parse(self, model: type[M], text: bytes) -> M | None:
        try:
            return parse(model, text, ("body", *self._reader.path))
        except InvalidBody as error:
            self._add(error.found)
            return None

    def _add(self, found: list[ValidationError]) -> None:
        self._found += found
        if len(self._found) >= MOST_ERRORS:
            raise InvalidBody(self._found[:MOST_ERRORS])


def _impossible(trajectory: Trajectory, place: tuple[str | int, ...]) -> Iterator[ValidationError]:
    """Logprobs of sampled tokens that are those of no probability, beyond what rounding explains."""
    for i, history in enumerate(trajectory.histories()):
        here = (*place, "additional_histories", i - 1) if i else place
        for j, item in enumerate(history.messages_and_choices):
            if not isinstance(item, Choice) or item.logprobs is None:
                continue
            kind = "content" if item.logprobs.content else "refusal"
            for k, token in enumerate(item.sampled_tokens()):
                if token.logprob > _ROUNDING:
                    loc = [*here, "messages_and_choices", j, "logprobs", kind, k, "logprob"]
                    yield ValidationError(loc=loc, msg="A logprob should be at most 0", type="less_than_equal")


def _trajectory(text: bytes) -> Trajectory | Garbled:
    whole = _with_marks(text)
    trajectory = Trajectory.model_validate_json(whole)
    if whole == text:
        return trajectory
    return Garbled(trajectory, ".".join(map(str, _marked(from_json(whole)) or ("a name",))))


def _with_marks(text: bytes) -> bytes:
    """JSON with a mark in the place of what is no text: bytes that are no UTF-8, and halves of surrogate pairs."""
    try:
        text.decode()
    except UnicodeDecodeError:
        text = re.sub("[\udc80-\udcff]+", _MARK, text.decode(errors="surrogateescape")).encode()
    if not _SURROGATE.search(text):
        return text
    return _ESCAPE.sub(lambda found: _MARK.encode() if _is_half(found[0]) else found[0], text)


def _is_half(escape: bytes) -> bool:
    """Whether an escape is half of a pair; whole pairs are twelve characters long."""
    return len(escape) == 6 and escape[2:3] in b"dD" and escape[3:4] in b"89abcdefABCDEF"


def _marked(value: Any) -> tuple[str | int, ...] | None:
    """Where the first text with a mark is, if there is one."""
    if isinstance(value, str):
        return () if _MARK in value else None
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        if (path := _marked(each)) is not None:
            return (name, *path)
    return None


def _config(path: Path) -> ExperimentalTrainingConfig | None:
    with path.open("rb") as file:
        reader = JsonStream(file)
        for name in reader.members():
            if name == "trajectory_groups":
                deque(_items_of(reader, bytes), maxlen=0)
            elif (text := reader.value()) != b"null" and name == "experimental_config":
                return ExperimentalTrainingConfig.model_validate_json(text)
    return None


def _groups(path: Path) -> Iterator[Iterator[Trajectory | Garbled]]:
    with path.open("rb") as file:
        reader = JsonStream(file)
        for name in reader.members():
            if name == "trajectory_groups":
                yield from _items_of(reader, _trajectory)
            else:
                reader.value()


def _items_of(reader: JsonStream, made: Callable[[bytes], T]) -> Iterator[Iterator[T]]:
    """The groups in the array at hand."""
    for _ in reader.items():
        group = _members_of(reader, made)
        yield group
        deque(group, maxlen=0)  # what nobody has asked for


def _members_of(reader: JsonStream, made: Callable[[bytes], T]) -> Iterator[T]:
    """The trajectories of the group at hand."""
    for name in reader.members():
        if name == "trajectories":
            for _ in reader.items():
                yield made(reader.value())
        else:
            reader.value()
