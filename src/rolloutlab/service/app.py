"""The HTTP application: its routes, and who may call them."""

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.middleware.trustedhost import TrustedHostMiddleware

from rolloutlab.api.http.proof import proof
from rolloutlab.policy.forward import Scorer
from rolloutlab.policy.sampler import Sampler
from rolloutlab.service.endpoints import chat, logprobs, models, training_jobs
from rolloutlab.service.endpoints.body import add_schemas
from rolloutlab.service.endpoints.completer import Completer
from rolloutlab.service.endpoints.errors import CHAT, TRAINING, add_refusals
from rolloutlab.service.job_queue import Jobs
from rolloutlab.service.listen import PLAIN_HOSTS
from rolloutlab.service.mcp.app import McpApp
from rolloutlab.service.mcp.lab import LabTools
from rolloutlab.service.model_registry import Registry
from rolloutlab.service.oauth.bearer import Guard
from rolloutlab.service.oauth.errors import OAuthRefusal, answer_refusal
from rolloutlab.service.oauth.metadata import SERVICE
from rolloutlab.service.oauth.server import AuthorizationServer
from rolloutlab.service.usage import Ledger

_NONCE = r"^[0-9a-f]{16,128}$"
_THIS_MACHINE = tuple(f"[{host}]" if ":" in host else host for host in PLAIN_HOSTS)


def make_app(
    registry: Registry,
    sampler: Sampler,
    jobs: Jobs,
    ledger: Ledger,
    token: str,
    identity: dict[str, str],
    authority: AuthorizationServer,
    memory: LabTools,
) -> FastAPI:
    """The application over its parts.

    token: what a caller but of a health check must bear, or a token that the authority issued. identity: what a health
    check says besides `status`: on this machine all of it, elsewhere its `instance`; with a `nonce` it also proves that
    the service knows the token. memory: the lab, as the context server shows it; that needs the application's lifespan.
    """
    local = _host(authority.issuer) in _THIS_MACHINE
    hosts = _THIS_MACHINE if local else (_host(authority.issuer),)
    context = McpApp(memory, authority.guards_context(), authority.issuer, hosts)
    described: dict[str, Any] = {"openapi_url": "/openapi.json" if local else None, "docs_url": None, "redoc_url": None}
    app = FastAPI(title="rolloutlab", version="1.0.0", lifespan=context.lifespan, **described)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.router.routes += [*authority.routes(), context.route()]
    app.add_exception_handler(OAuthRefusal, answer_refusal)
    bearer = [Depends(_bearer(authority.guards_api(token)))]
    completer = Completer(registry, sampler, ledger)
    app.include_router(chat.router(registry, completer), dependencies=bearer, responses=CHAT)
    for router in (
        chat.usage_router(ledger),
        logprobs.router(registry, Scorer(registry.policy)),
        models.router(registry, jobs),
        models.lost_router(registry),
        training_jobs.router(jobs),
    ):
        app.include_router(router, dependencies=bearer, responses=TRAINING)

    @app.get("/v1/health", tags=["health"], responses={400: CHAT[400]})
    async def health(nonce: Annotated[str | None, Query(pattern=_NONCE)] = None) -> dict[str, str]:
        known = {"version": version("rolloutlab"), **identity}
        proved = {"proof": proof(token, nonce, authority.issuer)} if nonce else {}
        return {"status": "ok", **{name: known[name] for name in known if local or name == "instance"}, **proved}

    add_schemas(app)
    add_refusals(app)
    return app


def _host(url: str) -> str:
    """The host of an address, as a Host header has it."""
    parts = urlsplit(url)
    return parts.netloc.removesuffix(f":{parts.port}")


def _bearer(guard: Guard) -> Callable[..., Awaitable[None]]:
    scheme = HTTPBearer(auto_error=False)

    async def check(
        request: Request, _documented: Annotated[HTTPAuthorizationCredentials | None, Depends(scheme)]
    ) -> None:
        guard.demand(await guard.access(request), (SERVICE,))

    return check
