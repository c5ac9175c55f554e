"""Answers that refuse a request, and the path from a body to the value that is wrong in it."""

from collections.abc import Iterable, Mapping
from typing import Any

from rolloutlab.wire.base import Wire


class ValidationError(Wire):
    loc: list[str | int]
    msg: str
    type: str


class HTTPValidationError(Wire):
    detail: list[ValidationError] | None = None


def locate(errors: Iterable[Mapping[str, Any]], body: Any, prefix: tuple[str | int, ...] = ()) -> list[ValidationError]:
    """Pydantic's errors with a `loc` that is a path into `body`.

    Pydantic puts the tag of the union member it tried into the path; a client that looks the path up in what it sent
    would miss. Such tags are left out, and an unknown tag is reported at the field that should have named one.
    """
    return [
        ValidationError(loc=[*prefix, *_path(error, body)], msg=str(error["msg"]), type=str(error["type"]))
        for error in errors
    ]


def _path(error: Mapping[str, Any], body: Any) -> list[str | int]:
    path: list[str | int] = []
    here = body
    last = len(error["loc"]) - 1
    for i, part in enumerate(error["loc"]):
        if _holds(here, part):
            here = here[part]
        elif not (error["type"] == "missing" and i == last):
            continue
        path.append(part)
    context = error.get("ctx") or {}
    tag = context.get("field") or str(context.get("discriminator", "")).strip("'")
    return [*path, tag] if tag and isinstance(here, Mapping) else path


def _holds(here: Any, part: str | int) -> bool:
    if isinstance(here, Mapping):
        return part in here
    return isinstance(here, list) and isinstance(part, int) and part < len(here)
