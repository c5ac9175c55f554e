"""What a person allowed: tokens for one resource, and how they are renewed and given back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rolloutlab.api.http.ip_scope import NetworkScope
from rolloutlab.api.http.urls import canonical_resource
from rolloutlab.auth.discovery import DiscoveredResource, TokenAnswer
from rolloutlab.auth.registration import RegisteredClient
from rolloutlab.auth.sans_io import Flow
from rolloutlab.auth.token_requests import TokenRefused, code_request, refresh_request, revocation_request, tokens_of
from rolloutlab.auth.urls import checked_endpoint, covers

_EARLY = 0.1
"""A token is renewed when this part of its life is left, but not more than so many seconds before its end."""
_EARLIEST = 30.0


@dataclass(frozen=True)
class Grant:
    """Tokens for a resource. server: the address that was signed in to.

    expires_at: seconds since 1970, None where it is not known. lifetime: seconds that the access token lives in all.
    reach: the network of the server, as a `Reach`. port: of this machine, where answers for the client have to come to.
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

    def fresh(self, now: float) -> bool:
        """Whether the access token will still be good when it arrives."""
        return self.expires_at is None or now < self.expires_at - min(_EARLIEST, _EARLY * self.lifetime)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Grant":
        """A grant as it was kept; SignInError, ValueError, TypeError or KeyError when it is none."""
        found = cls(**{**kept, "client": RegisteredClient(**kept["client"]), "scopes": tuple(kept["scopes"])})
        checked_endpoint("token endpoint", found.token_endpoint, found.server)
        NetworkScope(found.reach)
        if canonical_resource(found.server) != found.server or not covers(found.resource, found.server):
            raise ValueError("a grant for another resource")
        return found


def exchange_code(
    found: DiscoveredResource,
    client: RegisteredClient,
    code: str,
    *,
    server: str,
    redirect_uri: str,
    verifier: str,
    scopes: Sequence[str],
    reach: NetworkScope,
    now: float,
) -> Flow[Grant]:
    """The grant for a code. scopes: those that were asked for, which hold where the answer names none.

    Raises:
        TokenRefused: the code is not taken.
    """
    authority = found.authority
    request = code_request(
        authority, client, code, redirect_uri=redirect_uri, resource=found.resource, verifier=verifier
    )
    answer = tokens_of(authority.token_endpoint, (yield request))
    return Grant(
        server=server,
        resource=found.resource,
        issuer=found.issuer,
        token_endpoint=authority.token_endpoint,
        revocation_endpoint=authority.revocation_endpoint,
        client=client,
        refresh_token=answer.refresh_token,
        reach=int(reach),
        **_of(answer, scopes, now),
    )


def refresh(grant: Grant, now: float) -> Flow[Grant]:
    """The same grant with a new access token, and a new refresh token where the old one was exchanged.

    Raises:
        TokenRefused: it is over, or was given back.
    """
    if grant.refresh_token is None:
        raise TokenRefused("the sign-in has expired, and cannot be renewed", None)
    request = refresh_request(grant.token_endpoint, grant.client, grant.refresh_token, resource=grant.resource)
    answer = tokens_of(grant.token_endpoint, (yield request))
    return replace(grant, refresh_token=answer.refresh_token or grant.refresh_token, **_of(answer, grant.scopes, now))


def revoke(grant: Grant) -> Flow[bool]:
    """End a grant's tokens where its server can (RFC 7009); whether it said that they are ended."""
    if grant.revocation_endpoint is None:
        return False
    tokens = {"refresh_token": grant.refresh_token, "access_token": grant.access_token}
    ended = True
    for kind, token in tokens.items():
        if token:
            response = yield revocation_request(grant.revocation_endpoint, grant.client, token, kind)
            ended = ended and response.status == 200
    return ended


def _of(answer: TokenAnswer, scopes: Sequence[str], now: float) -> dict[str, Any]:
    life = answer.expires_in
    if life is not None and not 0 < life < math.inf:  # servers write -1, or what is no number, for what they do not say
        life = None
    return {
        "access_token": answer.access_token,
        "scopes": tuple(answer.scope.split()) if answer.scope is not None else tuple(scopes),
        "expires_at": None if life is None else now + life,
        "lifetime": life or 0.0,
    }
