"""The HTTP application: routes, who may call, and how a refusal is worded on each side."""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from rolloutlab.errors import (
    Cancelled,
    CheckpointError,
    ConflictError,
    InputError,
    LabError,
    NotFoundError,
    RenderingError,
    RolloutlabError,
)
from rolloutlab.policy.sampler import Sampler
from rolloutlab.service import chat, models, training_jobs
from rolloutlab.service.body import InvalidBody, StrictRoute, add_schemas
from rolloutlab.service.jobs import Jobs
from rolloutlab.service.registry import Registry
from rolloutlab.wire.problem import ValidationError, locate
from rolloutlab.wire.training import CreateTrainingJob, DeleteCheckpoints, RegisterModel

_STATUS: dict[type[RolloutlabError], int] = {
    NotFoundError: 404,
    ConflictError: 409,
    InputError: 400,
    RenderingError: 400,
    CheckpointError: 410,
    LabError: 507,
}
_HOSTS = ["127.0.0.1", "localhost", "[::1]"]


def make_app(registry: Registry, sampler: Sampler, jobs: Jobs, token: str, identity: dict[str, str]) -> FastAPI:
    """The application over its parts.

    token: what every caller but a health check must bear. identity: what a health check says besides `status`.
    """
    app = FastAPI(title="rolloutlab", version="1.0.0", docs_url=None, redoc_url=None)
    app.router.route_class = StrictRoute
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS)
    bearer = [Depends(_bearer(token))]
    app.include_router(chat.router(registry, sampler), dependencies=bearer)
    app.include_router(models.router(registry, jobs), dependencies=bearer)
    app.include_router(training_jobs.router(jobs), dependencies=bearer)

    @app.get("/v1/health", tags=["health"])
    async def health() -> dict[str, str]:
        return {"status": "ok", "version": version("rolloutlab"), **identity}

    add_schemas(app, [CreateTrainingJob, RegisterModel, DeleteCheckpoints])
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(InvalidBody, _invalid_body)  # type: ignore[arg-type]
    app.add_exception_handler(RolloutlabError, _refused)  # type: ignore[arg-type]
    app.add_exception_handler(StarletteHTTPException, _http_error)  # type: ignore[arg-type]
    app.add_exception_handler(Cancelled, _gone)
    app.add_exception_handler(Exception, _bug)
    return app


def _bearer(token: str) -> Callable[..., Awaitable[None]]:
    scheme = HTTPBearer(auto_error=False)

    async def check(given: Annotated[HTTPAuthorizationCredentials | None, Depends(scheme)]) -> None:
        if given is None or not secrets.compare_digest(given.credentials.encode(), token.encode()):
            raise HTTPException(401, "a valid bearer token is required", headers={"WWW-Authenticate": "Bearer"})

    return check


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    return _unprocessable(request, [_located(item, error.body) for item in error.errors()])


async def _invalid_body(request: Request, error: InvalidBody) -> Response:
    return _unprocessable(request, error.found)


def _unprocessable(request: Request, found: list[ValidationError]) -> Response:
    if _speaks_openai(request):
        first = found[0]
        where = ".".join(map(str, first.loc[1:])) or "body"
        return _openai_error(400, f"{where}: {first.msg}", "invalid_request_error", where)
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
        return _openai_error(status, message, "invalid_request_error" if status < 500 else "server_error")
    return JSONResponse({"detail": message}, status)


async def _http_error(request: Request, error: StarletteHTTPException) -> Response:
    if _speaks_openai(request):
        return _openai_error(error.status_code, str(error.detail), "invalid_request_error", headers=error.headers)
    return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)


async def _bug(request: Request, _error: Exception) -> Response:
    """Whatever else went wrong is in the log; the client learns that it is not its fault."""
    said = "the service failed; its log has the details"
    return _openai_error(500, said, "server_error") if _speaks_openai(request) else JSONResponse({"detail": said}, 500)


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)


def _speaks_openai(request: Request) -> bool:
    """The chat side answers errors as OpenAI's clients read them, the training side as the specification says."""
    return not request.url.path.startswith("/v1/preview/")


def _openai_error(
    status: int, message: str, kind: str, param: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    body = {"error": {"message": message, "type": kind, "param": param, "code": None}}
    return JSONResponse(body, status, headers=headers)
