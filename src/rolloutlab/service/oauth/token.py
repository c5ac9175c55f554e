"""The token endpoint, where codes and refresh tokens become access tokens, and the one where they are revoked."""

import base64
import binascii
import re
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_plus

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolloutlab.service.oauth.client_documents import is_document_url
from rolloutlab.service.oauth.clients import Register
from rolloutlab.service.oauth.errors import NOT_KEPT, OAuthRefusal
from rolloutlab.service.oauth.grants import Grants, Issued
from rolloutlab.service.oauth.metadata import Resource, named
from rolloutlab.service.oauth.params import form


def authenticate(request: Request, said: Mapping[str, str], register: Register) -> str:
    """The id of the client that a request comes from.

    The id of a client with a document is taken as it is: it has no secret, and what it redeems is bound to that id.

    Raises:
        OAuthRefusal: invalid_client (401): it is unknown, or does not authenticate as it registered; invalid_request:
            it does so in two ways.
    """
    header = request.headers.get("authorization")
    basic = _basic(header) if header else None
    if basic and "client_secret" in said:
        raise OAuthRefusal("invalid_request", "the client authenticates in two ways")
    if basic and said.get("client_id", basic[0]) != basic[0]:
        raise OAuthRefusal("invalid_request", "client_id is not the one of the header")
    client_id, secret = basic or (said.get("client_id", ""), said.get("client_secret"))
    method = "client_secret_basic" if basic else "client_secret_post" if secret else "none"
    if method == "none" and is_document_url(client_id):
        return client_id
    client = register.get(client_id)
    if client is None or method != client.auth_method:
        raise _unknown(basic is not None)
    if method != "none" and not secrets.compare_digest((secret or "").encode(), register.secret(client.id).encode()):
        raise _unknown(basic is not None)
    return client.id


def _basic(header: str) -> tuple[str, str]:
    """Id and secret of an Authorization header, each encoded as in a form (RFC 6749, 2.3.1)."""
    scheme, _, given = header.partition(" ")
    try:
        client_id, colon, secret = base64.b64decode(given.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError) as error:
        raise _unknown(basic=True) from error
    if scheme.lower() != "basic" or not colon:
        raise _unknown(basic=True)
    return unquote_plus(client_id), unquote_plus(secret)


def _unknown(basic: bool) -> OAuthRefusal:
    headers = {"WWW-Authenticate": 'Basic realm="rolloutlab"'} if basic else {}
    return OAuthRefusal("invalid_client", "the client is unknown, or did not authenticate", 401, headers)


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
