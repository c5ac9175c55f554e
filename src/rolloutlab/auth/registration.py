"""Who we are to an authorization server: known before, by a document of ours, or registered now (RFC 7591)."""

import json
from dataclasses import dataclass, field

from pydantic import ValidationError

from rolloutlab.auth.discovery import Registration, ServerMetadata
from rolloutlab.auth.sans_io import Flow, Request
from rolloutlab.auth.urls import host
from rolloutlab.errors import SignInError

NAME = "rolloutlab"
_METHODS = ("none", "client_secret_basic", "client_secret_post")
"""How a client can say who it is at the token endpoint; the first that the server takes is chosen."""


@dataclass(frozen=True)
class RegisteredClient:
    """A client as an authorization server knows it. redirect_uri: what it was registered with; None is any."""

    id: str
    secret: str | None = field(default=None, repr=False)
    method: str = "none"
    redirect_uri: str | None = None
    expires_at: float = 0
    """Seconds since 1970 when the secret ends; 0 is never."""

    def serves(self, redirect_uri: str, now: float) -> bool:
        """Whether it can be used for a sign-in that comes back to that address."""
        return self.redirect_uri in (None, redirect_uri) and (not self.expires_at or now < self.expires_at)


def registered(
    authority: ServerMetadata,
    redirect_uri: str,
    *,
    server: str,
    preset: RegisteredClient | None = None,
    document: str | None = None,
) -> Flow[RegisteredClient]:
    """A client for a redirect URI: what was configured, else our metadata document, else a new registration.

    server: the one to sign in to. document: the https address of a client ID metadata document of ours, which is then
    the client's id.

    Raises:
        SignInError: the server knows none of the three, or refused to register us.
    """
    if preset:
        return preset
    if document and authority.client_id_metadata_document_supported:
        return RegisteredClient(document)
    if authority.registration_endpoint is None:
        raise SignInError(
            f"{host(authority.issuer)} registers no client by itself; register rolloutlab there for an ID",
            hint=f"%login {server} --client-id ID",
        )
    return (yield from _register(authority, authority.registration_endpoint, redirect_uri))


def _register(authority: ServerMetadata, endpoint: str, redirect_uri: str) -> Flow[RegisteredClient]:
    """No scope is registered: a later step-up would be refused for what is not in it."""
    method = next((each for each in _METHODS if each in authority.token_endpoint_auth_methods_supported), _METHODS[0])
    wanted = {
        "client_name": NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native",
    }
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    response = yield Request("POST", endpoint, headers, json.dumps(wanted).encode())
    try:
        answer = Registration.model_validate(response.document())
    except ValidationError:
        why = response.error() or f"status {response.status}"
        raise SignInError(f"{host(endpoint)} did not register us: {why}") from None
    said = answer.token_endpoint_auth_method or (method if answer.client_secret or method == "none" else "none")
    if said not in _METHODS:
        raise SignInError(f"{host(endpoint)} wants clients to say who they are by {said[:40]!r}, which we cannot")
    return RegisteredClient(answer.client_id, answer.client_secret, said, redirect_uri, answer.client_secret_expires_at)
