"""The token endpoint, where codes and refresh tokens become access tokens, and the one where they are revoked."""

import re
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolloutlab.service.oauth.authentication import authenticate
from rolloutlab.service.oauth.form import form
from rolloutlab.service.oauth.grants import Grants, Issued
from rolloutlab.service.oauth.refusal import NOT_KEPT, OAuthRefusal
from rolloutlab.service.oauth.registration import Register
from rolloutlab.service.oauth.resources import Resource, named

_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")


class TokenEndpoint:
    """Answers clients, not browsers."""

    def __init__(self, resources: tuple[Resource, ...], register: Register, grants: Grants) -> None:
        self._resources = resources
        self._register = register
        self._grants = grants

    async def answer(self, request: Request) -> Response:
        """Tokens (OAuth 2.1, 3.2); OAuthRefusal for anything that earns none."""
        said = await form(request)
        return await run_in_threadpool(self._issue, request, said)

    async def revoke(self, request: Request) -> Response:
        """Revocation (RFC 7009): 200 also for a token that is none."""
        said = await form(request)
        await run_in_threadpool(self._revoke, request, said)
        return Response(status_code=200, headers=NOT_KEPT)

    def _issue(self, request: Request, said: dict[str, str]) -> Response:
        client_id = authenticate(request, said, self._register)
        match said.get("grant_type"):
            case "authorization_code":
                issued = self._redeem(client_id, said)
            case "refresh_token":
                issued = self._refresh(client_id, said)
            case None:
                raise OAuthRefusal("invalid_request", "the parameter grant_type is missing")
            case _:
                raise OAuthRefusal("unsupported_grant_type", "grant_type may be authorization_code or refresh_token")
        return JSONResponse(_told(issued), headers=NOT_KEPT)

    def _redeem(self, client_id: str, said: dict[str, str]) -> Issued:
        verifier = _needed(said, "code_verifier")
        if not _VERIFIER.fullmatch(verifier):
            raise OAuthRefusal("invalid_grant", "code_verifier has 43 to 128 letters, digits and - . _ ~")
        resource = named(self._resources, said.get("resource"))
        code = _needed(said, "code")
        return self._grants.redeem(code, client_id, verifier, said.get("redirect_uri"), resource.uri)

    def _refresh(self, client_id: str, said: dict[str, str]) -> Issued:
        resource = named(self._resources, said["resource"]).uri if "resource" in said else None
        scopes = said["scope"].split() if "scope" in said else None
        return self._grants.refresh(_needed(said, "refresh_token"), client_id, scopes, resource)

    def _revoke(self, request: Request, said: dict[str, str]) -> None:
        client_id = authenticate(request, said, self._register)
        self._grants.revoke(_needed(said, "token"), client_id)


def _needed(said: dict[str, str], name: str) -> str:
    if name not in said:
        raise OAuthRefusal("invalid_request", f"the parameter {name} is missing")
    return said[name]


def _told(issued: Issued) -> dict[str, Any]:
    refresh = {"refresh_token": issued.refresh} if issued.refresh else {}
    scope = " ".join(issued.scopes)
    return {
        "access_token": issued.access,
        "token_type": "Bearer",
        "expires_in": issued.lifetime,
        "scope": scope,
        **refresh,
    }
