"""Grants: tokens for one resource, their exchange, refresh and revocation (RFC 6749, RFC 7009, RFC 8707)."""

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote_plus, urlencode

from pydantic import ValidationError

from rolloutlab.api.http.ip_scope import NetworkScope
from rolloutlab.api.http.urls import canonical_resource
from rolloutlab.auth.discovery import DiscoveredResource, ServerMetadata, TokenAnswer
from rolloutlab.auth.registration import RegisteredClient
from rolloutlab.auth.sans_io import Flow, Request, Response
from rolloutlab.auth.urls import check_endpoint, covers, host
from rolloutlab.errors import SignInError


class TokenRefusedError(SignInError):
    """The token endpoint issued no token. code: its error code (RFC 6749, 5.2), if any."""

    def __init__(self, message: str, code: str | None) -> None:
        super().__init__(message)
        self.code = code


def code_request(
    authority: ServerMetadata, client: RegisteredClient, code: str, *, redirect_uri: str, resource: str, verifier: str
) -> Request:
    """Make the request that exchanges a code for tokens (RFC 6749, 4.1.3; RFC 7636, 4.5; RFC 8707, 2.2).

    Args:
        authority: The authorization server.
        client: The client that has requested the code.
        code: The code.
        redirect_uri: The redirect URI of the authorization request.
        resource: The resource that tokens are for.
        verifier: The PKCE verifier of that request.
    """
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect_uri,
        "code_verifier": verifier,
        "resource": resource,
    }
    return _post(authority.token_endpoint, client, form)


def refresh_request(token_endpoint: str, client: RegisteredClient, refresh_token: str, *, resource: str) -> Request:
    """Make the request that refreshes tokens (RFC 6749, 6), with unchanged scope."""
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": resource}
    return _post(token_endpoint, client, form)


def revocation_request(endpoint: str, client: RegisteredClient, token: str, kind: str) -> Request:
    """Make the request that revokes a token (RFC 7009, 2.1). kind: `refresh_token` or `access_token`."""
    return _post(endpoint, client, {"token": token, "token_type_hint": kind})


def tokens_of(endpoint: str, response: Response) -> TokenAnswer:
    """Read the tokens of a response, or raise TokenRefusedError if it has no valid ones."""
    try:
        tokens = TokenAnswer.model_validate(response.document())
    except ValidationError as error:
        code, document = response.error(), response.document()
        if document and document.get("access_token"):
            odd = ", ".join(dict.fromkeys(str(each["loc"][0]) for each in error.errors()))
            raise TokenRefusedError(f"{host(endpoint)} issued a token with an invalid {odd}", code) from None
        reason = code or f"status {response.status}"
        raise TokenRefusedError(f"{host(endpoint)} issued no token: {reason}", code) from None
    if not all("!" <= character <= "~" for character in tokens.access_token):  # RFC 6749, A.12
        raise TokenRefusedError(f"{host(endpoint)} issued a token that no header can contain", None)
    if tokens.token_type.lower() != "bearer":
        raise TokenRefusedError(f"{host(endpoint)} issued a token that is not a bearer token", None)
    return tokens


def _post(endpoint: str, client: RegisteredClient, form: Mapping[str, str]) -> Request:
    """Make a request with a form and client authentication (RFC 6749, 2.3.1)."""
    headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
    fields = dict(form)
    if client.method == "client_secret_basic":
        pair = f"{quote_plus(client.id)}:{quote_plus(client.secret or '')}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    else:
        fields["client_id"] = client.id
        if client.method == "client_secret_post":
            fields["client_secret"] = client.secret or ""
    return Request("POST", endpoint, headers, urlencode(fields).encode())


_MOST_KEPT = 20  # the most superseded refresh tokens; those of servers that do not rotate them expire
_RENEW_FRACTION = 0.1
_RENEW_SECONDS = 30.0
"""A token is renewed when this fraction of its lifetime remains, at most so many seconds before its end."""


@dataclass(frozen=True)
class Grant:
    """Tokens for a resource.

    Attributes:
        server: The URL that was signed in to.
        expires_at: When the access token expires, in seconds since 1970; None if that is unknown.
        lifetime: The lifetime of the access token, in seconds; 0 if that is unknown.
        reach: The `NetworkScope` of the server. The name is that of stored grants.
        port: The port of the redirect URI.
        superseded: Refresh tokens of earlier grants to the same client, which are revoked with this one.
    """

    server: str
    resource: str
    issuer: str
    token_endpoint: str
    revocation_endpoint: str | None
    client: RegisteredClient
    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    scopes: tuple[str, ...]
    expires_at: float | None
    lifetime: float = 0.0
    reach: int = NetworkScope.PUBLIC
    port: int | None = None
    superseded: tuple[str, ...] = field(default=(), repr=False)

    def is_fresh(self, now: float) -> bool:
        """Whether the access token will still be valid when a request arrives."""
        return self.expires_at is None or now < self.expires_at - min(_RENEW_SECONDS, _RENEW_FRACTION * self.lifetime)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Grant":
        """Read a stored grant. SignInError, ValueError, TypeError or KeyError if it is invalid."""
        client, scopes = RegisteredClient(**document["client"]), tuple(document["scopes"])
        superseded = tuple(document.get("superseded", ()))
        grant = cls(**{**document, "client": client, "scopes": scopes, "superseded": superseded})
        check_endpoint("token endpoint", grant.token_endpoint, grant.server)
        NetworkScope(grant.reach)
        if canonical_resource(grant.server) != grant.server or not covers(grant.resource, grant.server):
            raise ValueError("a grant for another resource")
        return grant


def exchange_code(
    target: DiscoveredResource,
    client: RegisteredClient,
    code: str,
    *,
    server: str,
    redirect_uri: str,
    verifier: str,
    scopes: Sequence[str],
    scope: NetworkScope,
    now: float,
) -> Flow[Grant]:
    """Exchange a code for a grant, or raise TokenRefusedError.

    Args:
        target: The resource and its authorization server.
        client: The client that has requested the code.
        code: The code.
        server: The server that was signed in to.
        redirect_uri: The redirect URI of the authorization request.
        verifier: The PKCE verifier of that request.
        scopes: The requested scopes, which are granted if the response names none.
        scope: The network scope of the server.
        now: Seconds since 1970.
    """
    authority = target.authority
    request = code_request(
        authority, client, code, redirect_uri=redirect_uri, resource=target.resource, verifier=verifier
    )
    tokens = tokens_of(authority.token_endpoint, (yield request))
    return Grant(
        server=server,
        resource=target.resource,
        issuer=target.issuer,
        token_endpoint=authority.token_endpoint,
        revocation_endpoint=authority.revocation_endpoint,
        client=client,
        refresh_token=tokens.refresh_token,
        reach=int(scope),
        **_read_access(tokens, scopes, now),
    )


def refresh(grant: Grant, now: float) -> Flow[Grant]:
    """Refresh a grant: its access token, and a rotated refresh token. TokenRefusedError if the grant has ended."""
    if grant.refresh_token is None:
        raise TokenRefusedError("the sign-in has expired, and cannot be renewed", None)
    request = refresh_request(grant.token_endpoint, grant.client, grant.refresh_token, resource=grant.resource)
    tokens = tokens_of(grant.token_endpoint, (yield request))
    access = _read_access(tokens, grant.scopes, now)
    return replace(grant, refresh_token=tokens.refresh_token or grant.refresh_token, **access)


def same_client(before: Grant, grant: Grant) -> bool:
    """Whether two grants are to the same client of the same authorization server."""
    return (before.issuer, before.client.id) == (grant.issuer, grant.client.id)


def add_superseded(grant: Grant, before: Grant | None) -> Grant:
    """Add the refresh tokens of the grant before to a grant, if that was to the same client.

    They are revoked with the new grant and not now: many servers have one session per person and client, which ends
    with any of its tokens, so that the new tokens would end as well.
    """
    if before is None or not same_client(before, grant):
        return grant
    kept = dict.fromkeys([*before.superseded, before.refresh_token])
    return replace(grant, superseded=tuple(each for each in kept if each and each != grant.refresh_token)[-_MOST_KEPT:])


def revoke(grant: Grant) -> Flow[bool]:
    """Revoke a grant's tokens (RFC 7009), and return whether the server confirmed it."""
    if grant.revocation_endpoint is None:
        return False
    tokens = [("refresh_token", token) for token in (*grant.superseded, grant.refresh_token)]
    confirmed = True
    for kind, token in [*tokens, ("access_token", grant.access_token)]:
        if token:
            response = yield revocation_request(grant.revocation_endpoint, grant.client, token, kind)
            confirmed = confirmed and response.status == 200
    return confirmed


def _read_access(tokens: TokenAnswer, scopes: Sequence[str], now: float) -> dict[str, Any]:
    lifetime = tokens.expires_in
    if lifetime is not None and not 0 < lifetime < math.inf:  # some servers send -1 or NaN for an unknown lifetime
        lifetime = None
    return {
        "access_token": tokens.access_token,
        "scopes": tuple(tokens.scope.split()) if tokens.scope is not None else tuple(scopes),
        "expires_at": None if lifetime is None else now + lifetime,
        "lifetime": lifetime or 0.0,
    }
