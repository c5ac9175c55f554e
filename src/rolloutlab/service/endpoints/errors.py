"""Error responses: chat endpoints in OpenAI's format, training endpoints in that of the specification."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from rolloutlab import errors
from rolloutlab.api.wire.errors import ChatProblem, HTTPValidationError, Problem, ValidationError, locate
from rolloutlab.service.endpoints.body import InvalidBodyError, refer

_STATUS: dict[type[errors.RolloutlabError], int] = {
    errors.NotFoundError: 404, errors.ConflictError: 409, errors.InputError: 400, errors.RenderingError: 422,
    errors.TemplateTimeError: 422, errors.CheckpointError: 410, errors.LabError: 507, errors.ServiceError: 503,
}  # fmt: skip
"""Any other error is the service's own: 500."""

_DESCRIPTIONS = {
    400: "something in the request is not supported",
    401: "a valid bearer token is required",
    404: "there is no such model, checkpoint or job",
    409: "it conflicts with the current state",
    410: "the checkpoint is damaged",
    413: "the body is too large",
    422: "the request is malformed, or the policy cannot render it; a chat gets a 400 then",
    503: "the service is being stopped",
    507: "the disk is full",
}

Headers = Mapping[str, str]
Responses = dict[int | str, dict[str, Any]]
CHAT: Responses = {status: {"description": text, **refer(ChatProblem)} for status, text in _DESCRIPTIONS.items()}
TRAINING: Responses = {
    status: {"description": text, **refer(HTTPValidationError if status == 422 else Problem)}
    for status, text in _DESCRIPTIONS.items()
}
"""Error responses in the OpenAPI document."""


def add_error_handlers(app: FastAPI) -> None:
    """Answer every exception in the format of its endpoint."""
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(InvalidBodyError, _invalid_body)  # type: ignore[arg-type]
    app.add_exception_handler(errors.RolloutlabError, _known_error)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http_error)  # type: ignore[arg-type]
    app.add_exception_handler(errors.Cancelled, _disconnected)
    app.add_exception_handler(Exception, _internal_error)


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    return _unprocessable(request, [_locate(item, error.body) for item in error.errors()])


async def _invalid_body(request: Request, error: InvalidBodyError) -> Response:
    return _unprocessable(request, error.errors)


def _unprocessable(request: Request, errors: list[ValidationError]) -> Response:
    if _is_chat_side(request):
        first = errors[0]
        param = ".".join(map(str, first.loc[1:])) or "body"
        return _chat_problem(400, f"{param}: {first.msg}", param=param)
    return JSONResponse({"detail": [item.to_wire() for item in errors]}, 422)


def _locate(item: dict[str, Any], body: object) -> ValidationError:
    source, *loc = item["loc"]
    if source != "body":
        return ValidationError(loc=[source, *loc], msg=str(item["msg"]), type=str(item["type"]))
    return locate([{**item, "loc": loc}], body, ("body",))[0]


async def _known_error(request: Request, error: errors.RolloutlabError) -> Response:
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
    message = error.with_hint
    if _is_chat_side(request):
        return _chat_problem(400 if status == 422 else status, message, code=_code(error))
    if status == 422:
        return _unprocessable(request, [ValidationError(loc=["body"], msg=message, type="unreadable")])
    return JSONResponse({"detail": message}, status)


async def _http_error(request: Request, error: HTTPException) -> Response:
    if _is_chat_side(request):
        return _chat_problem(error.status_code, str(error.detail), headers=error.headers)
    return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)


async def _internal_error(request: Request, _error: Exception) -> Response:
    """Answer after a bug. Starlette logs its traceback."""
    message = "the service failed; its log has the details"
    return _chat_problem(500, message) if _is_chat_side(request) else JSONResponse({"detail": message}, 500)


async def _disconnected(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)


def _code(error: errors.RolloutlabError) -> str | None:
    """Return OpenAI's code of an error, if it has one."""
    if isinstance(error, errors.ContextError):
        return "context_length_exceeded"
    return "model_not_found" if isinstance(error, errors.NotFoundError) else None


def _is_chat_side(request: Request) -> bool:
    return not request.url.path.startswith("/v1/preview/")


def _chat_problem(
    status: int, message: str, param: str | None = None, code: str | None = None, headers: Headers | None = None
) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(body, status, headers=headers)
