"""How a body is read: strict JSON of whole characters, parsed and validated off the event loop."""

import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pydantic
from fastapi import FastAPI, HTTPException, Request
from pydantic.json_schema import models_json_schema
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from rolloutlab.api.wire.base import Wire
from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.api.wire.errors import ValidationError, locate
from rolloutlab.api.wire.training import CreateTrainingJob, DeleteCheckpoints, RegisterModel
from rolloutlab.api.wire.trajectories import LogprobsRequest
from rolloutlab.errors import Cancelled
from rolloutlab.fsutil import flush

M = TypeVar("M", bound=Wire)

MOST_ERRORS = 50
"""As many are reported of one body."""

BODIES = (ChatRequest, CreateTrainingJob, DeleteCheckpoints, LogprobsRequest, RegisterModel)
"""What endpoints read."""

_NO_NUMBERS = (b"NaN", b"Infinity")
"""JSON does not have them, but pydantic reads them where a model does not say what is there."""

LARGEST = 64_000_000
"""Bytes of a body that is read as a whole; those of training jobs, which are not, may have any size."""

_PIECE = 1 << 20
_COMPONENTS = "#/components/schemas/{model}"


class InvalidBody(Exception):  # noqa: N818 - the answer is a 422, or a 400 on the chat side
    """A body is not what it must be; `found` has every place and what is wrong there."""

    def __init__(self, found: list[ValidationError]) -> None:
        super().__init__(found)
        self.found = found


def reads(model: type[M]) -> Callable[[Request], Coroutine[Any, Any, M]]:
    """A dependency of an endpoint: its body as a `model`, or InvalidBody."""

    async def read(request: Request) -> M:
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                if len(body) > LARGEST:
                    raise HTTPException(413, f"the body is larger than {LARGEST:,} bytes")
        except ClientDisconnect as error:
            raise Cancelled from error
        return await run_in_threadpool(parse, model, bytes(body))

    return read


async def spool(request: Request, path: Path) -> str:
    """Write a body to a file while it arrives, and flush it to disk; its SHA-256 in hexadecimal digits.

    Raises:
        OSError: it cannot be written, for instance because the disk is full. Cancelled: the client left half way.
    """
    digest = hashlib.sha256()
    try:
        with path.open("wb") as file:
            async for piece in _pieces(request):
                await run_in_threadpool(file.write, piece)
                await run_in_threadpool(digest.update, piece)
        await run_in_threadpool(flush, path)
    except ClientDisconnect as error:
        raise Cancelled from error
    return digest.hexdigest()


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """The body in pieces that are worth a thread's while."""
    piece = bytearray()
    async for part in request.stream():
        piece += part
        if len(piece) >= _PIECE:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def parse(model: type[M], text: bytes, place: tuple[str | int, ...] = ("body",)) -> M:
    """What a JSON text holds, or InvalidBody; `place` is where the text lies in the body."""
    if not any(name in text for name in _NO_NUMBERS):
        with suppress(pydantic.ValidationError):
            return model.model_validate_json(text)
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidBody([ValidationError(loc=list(place), msg=str(error), type="json_invalid")]) from error
    try:  # again, as values: only so do the errors hold what was refused, by which its path is found
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        raise InvalidBody(locate(error.errors(include_url=False)[:MOST_ERRORS], value, place)) from error


def describe(model: type[Wire], example: dict[str, Any] | None = None) -> dict[str, Any]:
    """The part of the OpenAPI document that says which body an endpoint reads, with an example of one."""
    content = {
        "schema": {"$ref": _COMPONENTS.format(model=model.__name__)},
        **({"example": example} if example else {}),
    }
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def add_schemas(app: FastAPI) -> None:
    """Put the schemas that `describe` refers to into the application's OpenAPI document."""
    known = app.openapi
    wanted: list[tuple[type[Wire], Any]] = [(model, "validation") for model in BODIES]

    def openapi() -> dict[str, Any]:
        document = known()
        _, schemas = models_json_schema(wanted, ref_template=_COMPONENTS)
        components = document.setdefault("components", {}).setdefault("schemas", {})
        components.update(schemas["$defs"] | components)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
