"""How a refusal is worded: the chat side as OpenAI's clients read it, the training side as the specification says."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from rolloutlab.api.wire.errors import ChatProblem, HTTPValidationError, Problem, ValidationError, locate
from rolloutlab.errors import (
    Cancelled,
    CheckpointError,
    ConflictError,
    ContextError,
    InputError,
    LabError,
    NotFoundError,
    RenderingError,
    RolloutlabError,
    ServiceError,
)
from rolloutlab.service.endpoints.body import InvalidBody

_STATUS: dict[type[RolloutlabError], int] = {
    NotFoundError: 404,
    ConflictError: 409,
    InputError: 400,
    RenderingError: 422,
    CheckpointError: 410,
    LabError: 507,
    ServiceError: 503,
}
"""Any other error is the service's own: 500."""

_MEANINGS = {
    400: "something in the request cannot be served",
    401: "a valid bearer token is required",
    404: "there is no such model, checkpoint or job",
    409: "it contradicts what is there",
    410: "the checkpoint is damaged",
    413: "the body is too large",
    422: "the request is malformed, or the policy cannot read it; a chat gets a 400 then",
    503: "the service is being stopped",
    507: "the disk is full",
}

Responses = dict[int | str, dict[str, Any]]

CHAT: Responses = {status: {"model": ChatProblem, "description": said} for status, said in _MEANINGS.items()}
"""What the chat side documents."""

TRAINING: Responses = {
    status: {"model": HTTPValidationError if status == 422 else Problem, "description": said}
    for status, said in _MEANINGS.items()
}
"""What the training side documents."""


def add_refusals(app: FastAPI) -> None:
    """Answer every error in the words of its side."""
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(InvalidBody, _invalid_body)  # type: ignore[arg-type]
    app.add_exception_handler(RolloutlabError, _refused)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http_error)  # type: ignore[arg-type]
    app.add_exception_handler(Cancelled, _gone)
    app.add_exception_handler(Exception, _bug)


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    return _unprocessable(request, [_located(item, error.body) for item in error.errors()])


async def _invalid_body(request: Request, error: InvalidBody) -> Response:
    return _unprocessable(request, error.found)


def _unprocessable(request: Request, found: list[ValidationError]) -> Response:
    if _speaks_openai(request):
        first = found[0]
        where = ".".join(map(str, first.loc[1:])) or "body"
        return _chat_problem(400, f"{where}: {first.msg}", param=where)
    return JSONResponse({"detail": [item.to_wire() for item in found]}, 422)


def _located(item: dict[str, Any], body: object) -> ValidationError:
    source, *loc = item["loc"]
    if source != "body":
        return ValidationError(loc=[source, *loc], msg=str(item["msg"]), type=str(item["type"]))
    return locate([{**item, "loc": loc}], body, ("body",))[0]


async def _refused(request: Request, error: RolloutlabError) -> Response:
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    if _speaks_openai(request):
        return _chat_problem(400 if status == 422 else status, message, code=_code(error))
    if status == 422:
        return _unprocessable(request, [ValidationError(loc=["body"], msg=message, type="unreadable")])
    return JSONResponse({"detail": message}, status)


async def _http_error(request: Request, error: HTTPException) -> Response:
    if _speaks_openai(request):
        return _chat_problem(error.status_code, str(error.detail), headers=error.headers)
    return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)


async def _bug(request: Request, _error: Exception) -> Response:
    """Whatever else went wrong is in the log; the client learns that it is not its fault."""
    said = "the service failed; its log has the details"
    return _chat_problem(500, said) if _speaks_openai(request) else JSONResponse({"detail": said}, 500)


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)


def _code(error: RolloutlabError) -> str | None:
    """The code that OpenAI's clients look at."""
    if isinstance(error, ContextError):
        return "context_length_exceeded"
    return "model_not_found" if isinstance(error, NotFoundError) else None


def _speaks_openai(request: Request) -> bool:
    return not request.url.path.startswith("/v1/preview/")


def _chat_problem(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(body, status, headers=headers)
