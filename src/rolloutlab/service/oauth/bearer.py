"""Who may use a protected resource: a valid token of its own, in a header (OAuth 2.1, 5.2; RFC 6750, 8707, 9728)."""

import secrets
from collections.abc import Collection

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from rolloutlab.service.oauth.grants import Grants, TokenInfo
from rolloutlab.service.oauth.metadata import Resource, in_order

OWNER = "the owner of the lab"


class Guard:
    """Checks what a request bears. key: a token that is not of OAuth and allows everything here, where there is one."""

    def __init__(self, resource: Resource, grants: Grants, key: str | None = None) -> None:
        self._resource = resource
        self._grants = grants
        self._key = key

    async def access(self, request: Request) -> TokenInfo:
        """What the token of a request allows.

        Raises:
            HTTPException: 401 without a valid one, 400 where another one is in the address.
        """
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        token = given.strip() if scheme.lower() == "bearer" else ""
        if token and "access_token" in request.query_params:
            raise self._refused(400, "invalid_request", "a token does not belong into an address")
        if not token:
            raise self._refused(401)
        if self._key is not None and secrets.compare_digest(token.encode(), self._key.encode()):
            return TokenInfo(OWNER, OWNER, self._resource.scopes)
        found = await run_in_threadpool(self._grants.access, token, self._resource.uri)
        if found is None:
            raise self._refused(401, "invalid_token", "the token is not valid here, or not any more")
        return found

    def demand(self, access: TokenInfo, needed: Collection[str]) -> None:
        """Go on only with some scopes.

        Raises:
            HTTPException: 403; its challenge names them and those that were granted before, for a step-up.
        """
        if missing := in_order(set(needed) - set(access.scopes)):
            said = f"this needs the scope {' '.join(missing)}"
            raise self._refused(403, "insufficient_scope", said, in_order({*access.scopes, *needed}))

    def _refused(
        self, status: int, error: str = "", description: str = "", scopes: tuple[str, ...] | None = None
    ) -> HTTPException:
        scope = " ".join(self._resource.basic if scopes is None else scopes)
        said = {"error": error, "error_description": description} if error else {}
        challenge = {**said, "scope": scope, "resource_metadata": self._resource.metadata_url}
        header = "Bearer " + ", ".join(f'{name}="{value}"' for name, value in challenge.items())
        detail = "a valid bearer token is required" if status == 401 else description
        return HTTPException(status, detail, headers={"WWW-Authenticate": header, "Cache-Control": "no-store"})
