"""The HTTP application: its routes, and who may call them."""

import secrets
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.middleware.trustedhost import TrustedHostMiddleware

from rolloutlab.policy.sampler import Sampler
from rolloutlab.policy.scoring import Scorer
from rolloutlab.service import chat, logprobs, models, training_jobs
from rolloutlab.service.body import add_schemas
from rolloutlab.service.completer import Completer
from rolloutlab.service.jobs import Jobs
from rolloutlab.service.refusals import CHAT, TRAINING, add_refusals
from rolloutlab.service.registry import Registry
from rolloutlab.service.usage import Ledger

_HOSTS = ["127.0.0.1", "localhost", "[::1]"]


def make_app(
    registry: Registry, sampler: Sampler, jobs: Jobs, ledger: Ledger, token: str, identity: dict[str, str]
) -> FastAPI:
    """The application over its parts.

    token: what every caller but a health check must bear. identity: what a health check says besides `status`.
    """
    app = FastAPI(title="rolloutlab", version="1.0.0", docs_url=None, redoc_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS)
    bearer = [Depends(_bearer(token))]
    completer = Completer(registry, sampler, ledger)
    app.include_router(chat.router(registry, completer), dependencies=bearer, responses=CHAT)
    for router in (
        chat.usage_router(ledger),
        logprobs.router(registry, Scorer(registry.policy)),
        models.router(registry, jobs),
        training_jobs.router(jobs),
    ):
        app.include_router(router, dependencies=bearer, responses=TRAINING)

    @app.get("/v1/health", tags=["health"])
    async def health() -> dict[str, str]:
        return {"status": "ok", "version": version("rolloutlab"), **identity}

    add_schemas(app)
    add_refusals(app)
    return app


def _bearer(token: str) -> Callable[..., Awaitable[None]]:
    scheme = HTTPBearer(auto_error=False)

    async def check(given: Annotated[HTTPAuthorizationCredentials | None, Depends(scheme)]) -> None:
        if given is None or not secrets.compare_digest(given.credentials.encode(), token.encode()):
            raise HTTPException(401, "a valid bearer token is required", headers={"WWW-Authenticate": "Bearer"})

    return check
