"""The body of a training job in a file: validated on arrival and read for training, a trajectory at a time."""

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
from rolloutlab.objective.option_docs import contradictions
from rolloutlab.policy.job_reader import Garbled
from rolloutlab.service.endpoints.body import MAX_ERRORS, InvalidBodyError, M, invalid_option, parse
from rolloutlab.service.endpoints.json_stream import JsonStream, MalformedJsonError

T = TypeVar("T")
_ROUNDING = 1e-3
_MARK = "\ufdd0"
"""A Unicode noncharacter, which stands for undecodable text."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)


def check(path: Path) -> CreateTrainingJob:
    """Validate a job, and return it without its groups, of which only one trajectory at a time is in memory.

    Raises:
        InvalidBodyError: the file is not JSON, or not a job.
    """
    with path.open("rb") as file:
        return _Validator(JsonStream(file)).check_job()


def read(path: Path) -> tuple[ExperimentalTrainingConfig | None, Iterator[Iterator[Trajectory | Garbled]]]:
    """Return the options and the groups of a validated job.

    A trajectory with undecodable text is returned as Garbled, so that it alone is left out of the training. Groups and
    their trajectories are read lazily: use each before the next, as with `itertools.groupby`.
    """
    return _read_config(path), _read_all_groups(path)


class _Validator:
    """Validates a job piece by piece, and collects up to `MAX_ERRORS` errors."""

    def __init__(self, reader: JsonStream) -> None:
        self._reader = reader
        self._errors: list[ValidationError] = []

    def check_job(self) -> CreateTrainingJob:
        job = None
        try:
            job = self._parse_hollow(CreateTrainingJob, "trajectory_groups", self._check_group)
            self._reader.end()
        except MalformedJsonError as error:
            self._add([ValidationError(loc=["body", *error.path], msg=str(error), type="json_invalid")])
        if job is None or self._errors:
            raise InvalidBodyError(self._errors)
        for name, why, _ in contradictions(job.experimental_config.to_wire() if job.experimental_config else {}):
            raise invalid_option(name, why)
        return job

    def _check_group(self) -> None:
        self._parse_hollow(TrajectoryGroup, "trajectories", self._check_trajectory)

    def _check_trajectory(self) -> None:
        if trajectory := self._parse(Trajectory, _mark_undecodable(self._reader.value())):
            self._add(list(islice(_find_positive_logprobs(trajectory, ("body", *self._reader.path)), MAX_ERRORS)))

    def _parse_hollow(self, model: type[M], long: str, item: Callable[[], None]) -> M | None:
        """Validate an object, and apart from it each item of its array `long`, which is empty in the result."""
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
        except InvalidBodyError as error:
            self._add(error.errors)
            return None

    def _add(self, errors: list[ValidationError]) -> None:
        self._errors += errors
        if len(self._errors) >= MAX_ERRORS:
            raise InvalidBodyError(self._errors[:MAX_ERRORS])


def _find_positive_logprobs(trajectory: Trajectory, path: tuple[str | int, ...]) -> Iterator[ValidationError]:
    """Find logprobs of sampled tokens that are above 0 by more than rounding: no probability has them."""
    for i, history in enumerate(trajectory.histories()):
        base = (*path, "additional_histories", i - 1) if i else path
        for j, item in enumerate(history.messages_and_choices):
            if not isinstance(item, Choice) or item.logprobs is None:
                continue
            kind = "content" if item.logprobs.content else "refusal"
            for k, token in enumerate(item.sampled_tokens()):
                if token.logprob > _ROUNDING:
                    loc = [*base, "messages_and_choices", j, "logprobs", kind, k, "logprob"]
                    yield ValidationError(loc=loc, msg="A logprob should be at most 0", type="less_than_equal")


def _parse_trajectory(text: bytes) -> Trajectory | Garbled:
    marked = _mark_undecodable(text)
    trajectory = Trajectory.model_validate_json(marked)
    if marked == text:
        return trajectory
    return Garbled(trajectory, ".".join(map(str, _find_mark(from_json(marked)) or ("a name",))))


def _mark_undecodable(text: bytes) -> bytes:
    """Replace each run of invalid UTF-8 and each unpaired surrogate of a JSON text by a mark."""
    try:
        text.decode()
    except UnicodeDecodeError:
        text = re.sub("[\udc80-\udcff]+", _MARK, text.decode(errors="surrogateescape")).encode()
    if not _SURROGATE.search(text):
        return text
    return _ESCAPE.sub(lambda match: _MARK.encode() if _is_unpaired(match[0]) else match[0], text)


def _is_unpaired(escape: bytes) -> bool:
    """Whether an escape is an unpaired surrogate; `_ESCAPE` matches pairs as twelve characters."""
    return len(escape) == 6 and escape[2:3] in b"dD" and escape[3:4] in b"89abcdefABCDEF"


def _find_mark(value: Any) -> tuple[str | int, ...] | None:
    """Find the path of the first string with a mark. A mark in a name is not looked for."""
    if isinstance(value, str):
        return () if _MARK in value else None
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        if (path := _find_mark(each)) is not None:
            return (name, *path)
    return None


def _read_config(path: Path) -> ExperimentalTrainingConfig | None:
    with path.open("rb") as file:
        reader = JsonStream(file)
        for name in reader.members():
            if name == "trajectory_groups":
                deque(_read_groups(reader, bytes), maxlen=0)
            elif (text := reader.value()) != b"null" and name == "experimental_config":
                return ExperimentalTrainingConfig.model_validate_json(text)
    return None


def _read_all_groups(path: Path) -> Iterator[Iterator[Trajectory | Garbled]]:
    with path.open("rb") as file:
        reader = JsonStream(file)
        for name in reader.members():
            if name == "trajectory_groups":
                yield from _read_groups(reader, _parse_trajectory)
            else:
                reader.value()


def _read_groups(reader: JsonStream, parse_trajectory: Callable[[bytes], T]) -> Iterator[Iterator[T]]:
    """Yield the groups of the array at the reader's position."""
    for _ in reader.items():
        group = _read_group(reader, parse_trajectory)
        yield group
        deque(group, maxlen=0)  # skip what the caller has not read


def _read_group(reader: JsonStream, parse_trajectory: Callable[[bytes], T]) -> Iterator[T]:
    for name in reader.members():
        if name == "trajectories":
            for _ in reader.items():
                yield parse_trajectory(reader.value())
        else:
            reader.value()
