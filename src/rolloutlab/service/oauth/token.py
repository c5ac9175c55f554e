"""Token endpoint (OAuth 2.1, 3.2) and revocation endpoint (RFC 7009)."""

import base64
import binascii
import re
import secrets
from collections.abc import Mapping
from urllib.parse import unquote_plus

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolloutlab.service.oauth.client_documents import is_document_url
from rolloutlab.service.oauth.clients import ClientRegistration
from rolloutlab.service.oauth.errors import NO_STORE, OAuthError
from rolloutlab.service.oauth.grants import Grants, Issued
from rolloutlab.service.oauth.metadata import Resource, select_resource
from rolloutlab.service.oauth.params import read_form

_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")


def authenticate(request: Request, params: Mapping[str, str], registration: ClientRegistration) -> str:
    """Return the id of the client that a request comes from.

    A client with a metadata document has no secret; its codes and tokens are bound to its id.

    Raises:
        OAuthError: invalid_client (401): it is unknown, or does not authenticate as registered; invalid_request: it
            uses two methods.
    """
    header = request.headers.get("authorization")
    basic = _parse_basic(header) if header else None
    if basic and "client_secret" in params:
        raise OAuthError("invalid_request", "the client uses two authentication methods")
    if basic and params.get("client_id", basic[0]) != basic[0]:
        raise OAuthError("invalid_request", "client_id differs from the Authorization header")
    client_id, secret = basic or (params.get("client_id", ""), params.get("client_secret"))
    method = "client_secret_basic" if basic else "client_secret_post" if secret else "none"
    if method == "none" and is_document_url(client_id):
        return client_id
    client = registration.get(client_id)
    if client is None or method != client.auth_method:
        raise _invalid_client(basic is not None)
    expected = registration.secret(client.id)
    if method != "none" and not secrets.compare_digest((secret or "").encode(), expected.encode()):
        raise _invalid_client(basic is not None)
    return client.id


def _parse_basic(header: str) -> tuple[str, str]:
    """Read id and secret from a Basic header, where each is form-encoded (RFC 6749, 2.3.1)."""
    scheme, _, credentials = header.partition(" ")
    try:
        client_id, colon, secret = base64.b64decode(credentials.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError) as error:
        raise _invalid_client(basic=True) from error
    if scheme.lower() != "basic" or not colon:
        raise _invalid_client(basic=True)
    return unquote_plus(client_id), unquote_plus(secret)


def _invalid_client(basic: bool) -> OAuthError:
    headers = {"WWW-Authenticate": 'Basic realm="rolloutlab"'} if basic else {}
    return OAuthError("invalid_client", "the client is unknown, or its authentication failed", 401, headers)


class TokenEndpoint:
    """Issues and revokes tokens. Every error is an OAuthError."""

    def __init__(self, resources: tuple[Resource, ...], registration: ClientRegistration, grants: Grants) -> None:
        self._resources = resources
        self._registration = registration
        self._grants = grants

    async def issue(self, request: Request) -> Response:
        """Issue tokens for a code or a refresh token."""
        params = await read_form(request)
        issued = await run_in_threadpool(self._issue, request, params)
        lifetime, scope = issued.lifetime, " ".join(issued.scopes)
        content = {"access_token": issued.access, "token_type": "Bearer", "expires_in": lifetime, "scope": scope}
        renewal = {"refresh_token": issued.refresh} if issued.refresh else {}
        return JSONResponse(content | renewal, headers=NO_STORE)

    async def revoke(self, request: Request) -> Response:
        """Revoke a token. The status is 200 for an unknown one too (RFC 7009, 2.2)."""
        params = await read_form(request)
        client_id = await run_in_threadpool(authenticate, request, params, self._registration)
        await run_in_threadpool(self._grants.revoke, _require(params, "token"), client_id)
        return Response(status_code=200, headers=NO_STORE)

    def _issue(self, request: Request, params: dict[str, str]) -> Issued:
        client_id = authenticate(request, params, self._registration)
        match params.get("grant_type"):
            case "authorization_code":
                return self._redeem(client_id, params)
            case "refresh_token":
                return self._refresh(client_id, params)
            case None:
                raise OAuthError("invalid_request", "the parameter grant_type is missing")
            case _:
                raise OAuthError("unsupported_grant_type", "grant_type must be authorization_code or refresh_token")

    def _redeem(self, client_id: str, params: dict[str, str]) -> Issued:
        verifier = _require(params, "code_verifier")
        if not _VERIFIER.fullmatch(verifier):
            raise OAuthError("invalid_grant", "code_verifier must be 43 to 128 letters, digits and - . _ ~")
        resource = select_resource(self._resources, params.get("resource"))
        code = _require(params, "code")
        return self._grants.redeem(code, client_id, verifier, params.get("redirect_uri"), resource.uri)

    def _refresh(self, client_id: str, params: dict[str, str]) -> Issued:
        resource = select_resource(self._resources, params["resource"]).uri if "resource" in params else None
        scopes = params["scope"].split() if "scope" in params else None
        return self._grants.refresh(_require(params, "refresh_token"), client_id, scopes, resource)


def _require(params: dict[str, str], name: str) -> str:
    if name not in params:
        raise OAuthError("invalid_request", f"the parameter {name} is missing")
    return params[name]
