"""Bearer tokens at a protected resource (OAuth 2.1, 5.2; RFC 6750, 8707, 9728)."""

import secrets
from collections.abc import Collection

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from rolloutlab.service.oauth.grants import Grants, TokenInfo
from rolloutlab.service.oauth.metadata import Resource, sort_scopes

OWNER = "the owner of the lab"


def from_owner(request: Request) -> bool:
    """Whether an authenticated request has the lab's own token, not one of OAuth, and comes from this machine."""
    local = request.client is not None and request.client.host in {"127.0.0.1", "::1"}
    return local and getattr(request.state, "has_lab_token", False)


class Guard:
    """Checks the token of a request. key: a static token that is accepted as well, with every scope."""

    def __init__(self, resource: Resource, grants: Grants, key: str | None = None) -> None:
        self._resource = resource
        self._grants = grants
        self._key = key

    async def authenticate(self, request: Request) -> TokenInfo:
        """Return what the token of a request allows.

        Raises:
            HTTPException: 401 without a valid token, 400 with a second one in the query.
        """
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        token = credentials.strip() if scheme.lower() == "bearer" else ""
        if token and "access_token" in request.query_params:
            raise self._error(400, "invalid_request", "a token in the query is not supported")
        if not token:
            raise self._error(401)
        if self._key is not None and secrets.compare_digest(token.encode(), self._key.encode()):
            request.state.has_lab_token = True
            return TokenInfo(OWNER, OWNER, self._resource.scopes)
        if info := await run_in_threadpool(self._grants.access, token, self._resource.uri):
            return info
        raise self._error(401, "invalid_token", "the token is expired, revoked or not valid for this resource")

    def require(self, info: TokenInfo, scopes: Collection[str]) -> None:
        """Raise unless a token has these scopes.

        Raises:
            HTTPException: 403. Its challenge lists the scopes with those already granted, for a step-up authorization.
        """
        if missing := sort_scopes(set(scopes) - set(info.scopes)):
            description = f"the scope {' '.join(missing)} is required"
            raise self._error(403, "insufficient_scope", description, sort_scopes({*info.scopes, *scopes}))

    def _error(
        self, status: int, error: str = "", description: str = "", scopes: tuple[str, ...] | None = None
    ) -> HTTPException:
        scope = " ".join(self._resource.basic if scopes is None else scopes)
        params = {"error": error, "error_description": description} if error else {}
        challenge = {**params, "scope": scope, "resource_metadata": self._resource.metadata_url}
        header = "Bearer " + ", ".join(f'{name}="{value}"' for name, value in challenge.items())
        detail = "a valid bearer token is required" if status == 401 else description
        return HTTPException(status, detail, headers={"WWW-Authenticate": header, "Cache-Control": "no-store"})
