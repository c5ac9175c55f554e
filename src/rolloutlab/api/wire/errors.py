"""Error bodies, and the path from a request's body to an invalid value in it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rolloutlab.api.wire.base import Integer, Wire
from rolloutlab.api.wire.chat import ROLES

_PARTS = ("text", "parts", "image_url", "input_audio", "file", "refusal")
_TAGS = frozenset([*ROLES, "choice", *_PARTS, "custom", "bool", "int", "float", "str"])
"""The tags of union members, which pydantic puts into a path between its steps."""


class ValidationError(Wire):
    loc: list[str | Integer]
    msg: str
    type: str


class HTTPValidationError(Wire):
    detail: list[ValidationError] | None = None


class Problem(Wire):
    """Any other error of the training side."""

    detail: str


class ChatError(Wire):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ChatProblem(Wire):
    """An error of the chat side, in the format of OpenAI's clients."""

    error: ChatError


def locate(errors: Iterable[Mapping[str, Any]], body: Any, prefix: tuple[str | int, ...] = ()) -> list[ValidationError]:
    """Convert pydantic's errors to errors with a `loc` that is a path into `body`.

    Pydantic's paths contain the tags of union members, which the client's body does not. They are left out, and an
    unknown tag is reported at the field that should contain it.
    """
    return [
        ValidationError(loc=[*prefix, *_find_path(error, body)], msg=str(error["msg"]), type=str(error["type"]))
        for error in errors
    ]


def _find_path(error: Mapping[str, Any], body: Any) -> list[str | int]:
    """Find the path that `loc` stands for: of its `_read_as_paths` that end at the invalid value, the longest."""
    missing = error["loc"][-1:] if error["type"] == "missing" else ()
    readings = _read_as_paths(error["loc"][: len(error["loc"]) - len(missing)], body)
    path, here = max(readings, key=lambda reading: (_same(reading[1], error["input"]), len(reading[0])))
    context = error.get("ctx") or {}
    tag = context.get("field") or str(context.get("discriminator", "")).strip("'")
    return [*path, *missing, *([tag] if tag and isinstance(here, Mapping) else [])]


def _read_as_paths(loc: Sequence[str | int], here: Any) -> Iterator[tuple[list[str | int], Any]]:
    """Yield every way to read `loc` as a path from `here`, with the value at its end. A part is a tag or a step."""
    if not loc:
        yield [], here
        return
    if loc[0] in _TAGS or not _holds(here, loc[0]):
        yield from _read_as_paths(loc[1:], here)
    if _holds(here, loc[0]):
        for path, end in _read_as_paths(loc[1:], here[loc[0]]):
            yield [loc[0], *path], end


def _holds(here: Any, part: str | int) -> bool:
    if isinstance(here, Mapping):
        return part in here
    return isinstance(here, list) and isinstance(part, int) and part < len(here)


def _same(value: Any, invalid: Any) -> bool:
    return value is invalid or (type(value) is type(invalid) and value == invalid)
