"""What an authorization request asks for (OAuth 2.1, 4.1.1; RFC 7636, 8707)."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from rolloutlab.service.oauth.clients import Client
from rolloutlab.service.oauth.errors import OAuthRefusal
from rolloutlab.service.oauth.metadata import Resource, named

_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
"""What S256 makes of any verifier."""


@dataclass(frozen=True)
class AuthorizationRequest:
    """A request that may be shown to the owner. state: what the answer carries back, None where it has none."""

    client: Client
    redirect_uri: str
    resource: Resource
    scopes: tuple[str, ...]
    challenge: str
    state: str | None


def read_request(
    said: Mapping[str, str], client: Client, redirect_uri: str, resources: Iterable[Resource]
) -> AuthorizationRequest:
    """The request of a client, whose redirect URI was checked.

    Raises:
        OAuthRefusal: to be told at that address.
    """
    if "request" in said or "request_uri" in said:
        raise OAuthRefusal("request_not_supported", "request objects are not read")
    if (kind := said.get("response_type")) != "code":
        error = "unsupported_response_type" if kind else "invalid_request"
        raise OAuthRefusal(error, "response_type has to be code")
    if said.get("response_mode", "query") != "query":
        raise OAuthRefusal("invalid_request", "response_mode has to be query")
    if "code_challenge" not in said:
        raise OAuthRefusal("invalid_request", "code_challenge is missing: PKCE is required")
    if said.get("code_challenge_method") != "S256":
        raise OAuthRefusal("invalid_request", "code_challenge_method has to be S256")
    if not _CHALLENGE.fullmatch(said["code_challenge"]):
        raise OAuthRefusal("invalid_request", "code_challenge is none of S256")
    resource = named(resources, said.get("resource"))
    scopes = resource.checked(said.get("scope"))
    return AuthorizationRequest(client, redirect_uri, resource, scopes, said["code_challenge"], said.get("state"))


def answer_url(redirect_uri: str, issuer: str, state: str | None, **said: str) -> str:
    """Where the browser is sent with an answer: `iss` always (RFC 9207, 2), `state` where there was one."""
    parameters = urlencode({**said, "iss": issuer, **({"state": state} if state is not None else {})})
    parts = urlsplit(redirect_uri)
    return parts._replace(query=f"{parts.query}&{parameters}" if parts.query else parameters).geturl()
