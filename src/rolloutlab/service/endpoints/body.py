"""Request bodies: strict JSON, parsed and validated off the event loop."""

import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pydantic
from fastapi import FastAPI, HTTPException, Request
from fastapi.encoders import jsonable_encoder
from pydantic.json_schema import models_json_schema
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from rolloutlab.api.wire.base import Wire
from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.api.wire.errors import ChatProblem, HTTPValidationError, Problem, ValidationError, locate
from rolloutlab.api.wire.fine_tuning import CreateSFTTrainingJob
from rolloutlab.api.wire.json_size import too_large
from rolloutlab.api.wire.training import CreateTrainingJob, DeleteCheckpoints, RegisterModel
from rolloutlab.api.wire.trajectories import LogprobsRequest
from rolloutlab.errors import Cancelled
from rolloutlab.fsutil import flush

M = TypeVar("M", bound=Wire)
MAX_ERRORS = 50
"""The most validation errors that are reported of one body."""
BODIES = (ChatRequest, CreateSFTTrainingJob, CreateTrainingJob, DeleteCheckpoints, LogprobsRequest, RegisterModel)
ERRORS = (ChatProblem, HTTPValidationError, Problem)
_NOT_JSON = (b"NaN", b"Infinity")
"""Not JSON, but pydantic's JSON parser accepts them in fields that a model does not declare."""
MAX_BYTES = 64_000_000
"""The limit of a body that is read as a whole. Bodies of training jobs are streamed to files, and may have any size."""
_CHUNK = 1 << 20
_COMPONENTS = "#/components/schemas/{model}"


class InvalidBodyError(Exception):
    """A body is not valid: a 422, or a 400 on the chat side."""

    def __init__(self, errors: list[ValidationError]) -> None:
        super().__init__(errors)
        self.errors = errors


def invalid_option(name: str, message: str, field: str = "experimental_config") -> InvalidBodyError:
    """Make the error for an option that is valid by itself, but not in this job. field: the field with the options."""
    loc: list[str | int] = ["body", field, name]
    return InvalidBodyError([ValidationError(loc=loc, msg=message, type="value_error")])


def reads(model: type[M]) -> Callable[[Request], Coroutine[Any, Any, M]]:
    """Make a FastAPI dependency that reads the body as a `model`, or raises InvalidBodyError."""

    async def read(request: Request) -> M:
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                if len(body) > MAX_BYTES:
                    raise HTTPException(413, f"the body is larger than {MAX_BYTES:,} bytes")
        except ClientDisconnect as error:
            raise Cancelled from error
        return await run_in_threadpool(parse, model, bytes(body))

    return read


async def spool(request: Request, path: Path) -> str:
    """Stream a body to a file, flush it to disk, and return its SHA-256 in hexadecimal digits.

    Raises:
        OSError: the file cannot be written, for instance because the disk is full.
        Cancelled: the client disconnected.
    """
    digest = hashlib.sha256()
    try:
        with path.open("wb") as file:
            async for chunk in _chunks(request):
                await run_in_threadpool(file.write, chunk)
                await run_in_threadpool(digest.update, chunk)
        await run_in_threadpool(flush, path)
    except ClientDisconnect as error:
        raise Cancelled from error
    return digest.hexdigest()


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    """Yield the body in chunks large enough to pay for the switch to a thread."""
    chunk = bytearray()
    async for part in request.stream():
        chunk += part
        if len(chunk) >= _CHUNK:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk)


def parse(model: type[M], text: bytes, path: tuple[str | int, ...] = ("body",)) -> M:
    """Validate a JSON text, or raise InvalidBodyError. path: where the text is within the body."""
    if why := too_large(text):
        raise InvalidBodyError([ValidationError(loc=list(path), msg=why, type="too_large")])
    if not any(name in text for name in _NOT_JSON):
        with suppress(pydantic.ValidationError):
            return model.model_validate_json(text)
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidBodyError([ValidationError(loc=list(path), msg=str(error), type="json_invalid")]) from error
    try:  # validate again, from Python values: only then do errors have the `input` by which `locate` finds the path
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        raise InvalidBodyError(locate(error.errors(include_url=False)[:MAX_ERRORS], value, path)) from error


def describe(model: type[Wire], example: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the `requestBody` of an endpoint in the OpenAPI document."""
    return {"requestBody": {"required": True, **refer(model, example)}}


def refer(model: type[Wire], example: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the `content` of a body in the OpenAPI document. FastAPI would read the model again for each endpoint."""
    schema = {"$ref": _COMPONENTS.format(model=model.__name__)}
    return {"content": {"application/json": {"schema": schema, **({"example": example} if example else {})}}}


def add_schemas(app: FastAPI) -> None:
    """Add the schemas that `refer` names to the application's OpenAPI document."""
    fastapi_document = app.openapi
    bodies: list[tuple[type[Wire], Any]] = [(model, "validation") for model in BODIES]
    problems: list[tuple[type[Wire], Any]] = [(model, "serialization") for model in ERRORS]

    def openapi() -> dict[str, Any]:
        document = fastapi_document()
        _, received = models_json_schema(bodies, ref_template=_COMPONENTS)
        _, sent = models_json_schema(problems, ref_template=_COMPONENTS)
        components = document.setdefault("components", {}).setdefault("schemas", {})
        answers = jsonable_encoder(sent["$defs"], exclude_none=True)  # as FastAPI shows its own
        components.update(received["$defs"] | answers | components)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
