"""The FastAPI application: routes, authentication, allowed hosts."""

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.middleware.trustedhost import TrustedHostMiddleware

from rolloutlab.api.http.secrecy import proof
from rolloutlab.api.wire.engine import EngineStatus
from rolloutlab.engines.engine import Engine
from rolloutlab.policy.fine_tuning import default_rate
from rolloutlab.service.endpoints import chat, checkpoint_files, fine_tuning, logprobs, models, training_jobs
from rolloutlab.service.endpoints.body import add_schemas
from rolloutlab.service.endpoints.chat import Completer, Ledger
from rolloutlab.service.endpoints.errors import CHAT, TRAINING, add_error_handlers
from rolloutlab.service.job_queue import Jobs
from rolloutlab.service.listen import PLAIN_HOSTS
from rolloutlab.service.mcp.app import McpApp
from rolloutlab.service.mcp.lab import LabTools
from rolloutlab.service.model_registry import Registry
from rolloutlab.service.oauth.bearer import Guard
from rolloutlab.service.oauth.errors import OAuthError, error_response
from rolloutlab.service.oauth.metadata import SERVICE
from rolloutlab.service.oauth.server import AuthorizationServer

_NONCE = r"^[0-9a-f]{16,128}$"
_THIS_MACHINE = tuple(f"[{host}]" if ":" in host else host for host in PLAIN_HOSTS)


def make_app(
    registry: Registry,
    engine: Engine,
    jobs: Jobs,
    ledger: Ledger,
    token: str,
    identity: dict[str, str],
    authority: AuthorizationServer,
    lab: LabTools,
) -> FastAPI:
    """Make the application from its parts.

    A health check needs no token. If it has a `nonce`, the response also proves that the service knows the token.

    Args:
        registry: The models and their checkpoints.
        engine: Samples, scores and trains.
        jobs: The queue of training jobs.
        ledger: Counts the tokens of requests.
        token: A static bearer token, accepted in addition to those that `authority` issues.
        identity: The further fields of a health check. A service on this machine returns all of them; any other returns
            only `instance`.
        authority: Signs users in and issues tokens.
        lab: The tools of the MCP server, which runs in the application's lifespan.
    """
    local = _host(authority.issuer) in _THIS_MACHINE
    hosts = _THIS_MACHINE if local else (_host(authority.issuer),)
    mcp = McpApp(lab, authority.context_guard(), authority.issuer, hosts)
    urls: dict[str, Any] = {"openapi_url": "/openapi.json" if local else None, "docs_url": None, "redoc_url": None}
    app = FastAPI(title="rolloutlab", version="1.0.0", lifespan=mcp.lifespan, **urls)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.add_exception_handler(OAuthError, error_response)
    bearer = [Depends(_make_token_check(authority.api_guard(token)))]
    completer = Completer(registry, engine, ledger)
    common: dict[str, Any] = {"dependencies": bearer, "responses": TRAINING}
    routers = [
        chat.router(registry, completer, dependencies=bearer, responses=CHAT),
        chat.usage_router(ledger, **common),
        logprobs.router(registry, engine, **common),
        models.router(registry, jobs, **common),
        models.lost_router(registry, **common),
        checkpoint_files.router(registry, engine.base, on_this_machine=local, **common),
        training_jobs.router(jobs, **common),
        fine_tuning.router(engine.base, jobs, **common),
        _engine_router(engine, **common),
    ]
    routes = [route for router in routers for route in router.routes]  # include_router would build each a second time
    app.router.routes += [*authority.routes(), mcp.route(), *routes]

    @app.get("/v1/health", tags=["health"], responses={400: CHAT[400]})
    async def health(nonce: Annotated[str | None, Query(pattern=_NONCE)] = None) -> dict[str, str]:
        fields = {"version": version("rolloutlab"), **identity}
        public = fields if local else {name: fields[name] for name in fields if name == "instance"}
        return {"status": "ok", **public, **({"proof": proof(token, nonce, authority.issuer)} if nonce else {})}

    add_schemas(app)
    add_error_handlers(app)
    return app


def _engine_router(engine: Engine, **common: Any) -> APIRouter:
    """Make the router of GET /v1/preview/engine: the engine's name, status and unsupported options."""
    routes = APIRouter(prefix="/v1/preview", tags=["engine"], **common)
    notes = engine.base.notes()

    @routes.get("/engine")
    def engine_status() -> EngineStatus:
        known = {"status": dict(engine.status()), "unsupported": dict(engine.unsupported)}
        base = engine.base
        defaults: dict[str, Any] = {
            "learning_rate": base.learning_rate,
            "sft_learning_rate": default_rate(base),
            "groups_per_step": base.groups_per_step,
            "forks": True,
        }
        return EngineStatus(name=engine.name, notes=notes, **known, **defaults)

    return routes


def _host(url: str) -> str:
    """Return the host of a URL as in a Host header, without the port."""
    parts = urlsplit(url)
    return parts.netloc.removesuffix(f":{parts.port}")


def _make_token_check(guard: Guard) -> Callable[..., Awaitable[None]]:
    """Make a dependency that refuses a request unless its token has the scope of the service.

    The guard reads the token itself. `HTTPBearer` is there for the OpenAPI document alone.
    """
    scheme = HTTPBearer(auto_error=False)

    async def check(
        request: Request, _documented: Annotated[HTTPAuthorizationCredentials | None, Depends(scheme)]
    ) -> None:
        guard.require(await guard.authenticate(request), (SERVICE,))

    return check
