"""OAuth client at an authorization server: preset, by client ID metadata document, or registered (RFC 7591)."""

import json
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from rolloutlab.auth.discovery import Registration, ServerMetadata
from rolloutlab.auth.sans_io import Flow, Request
from rolloutlab.auth.urls import host
from rolloutlab.errors import SignInError

NAME = "rolloutlab"
_METHODS = ("none", "client_secret_basic", "client_secret_post")
"""Supported client authentication at the token endpoint, in order of preference."""


@dataclass(frozen=True)
class RegisteredClient:
    """A client of an authorization server. redirect_uri: the only one that it has; None allows any."""

    id: str
    secret: str | None = field(default=None, repr=False)
    method: str = "none"
    redirect_uri: str | None = None
    expires_at: float = 0
    """Seconds since 1970 when the secret ends; 0 is never."""

    def serves(self, redirect_uri: str, now: float) -> bool:
        """Whether the client can be used now, with this redirect URI."""
        return self.redirect_uri in (None, redirect_uri) and (not self.expires_at or now < self.expires_at)


def obtain_client(
    authority: ServerMetadata,
    redirect_uri: str,
    *,
    server: str,
    preset: RegisteredClient | None = None,
    document: str | None = None,
) -> Flow[RegisteredClient]:
    """Obtain a client for a redirect URI: the preset one, else our metadata document, else a new registration.

    Args:
        authority: The authorization server.
        redirect_uri: The redirect URI.
        server: The server to sign in to.
        preset: The client that the person has registered, if any.
        document: The https URL of our client ID metadata document, which is then the client's id.

    Raises:
        SignInError: the authorization server supports none of the three, or refused the registration.
    """
    if preset:
        return replace(preset, method=_choose_preset_method(authority, preset))
    if document and authority.client_id_metadata_document_supported:
        return RegisteredClient(document)
    if authority.registration_endpoint is None:
        message = f"{host(authority.issuer)} has no client registration endpoint; register rolloutlab there for an ID"
        raise SignInError(message, hint=f"%login {server} --client-id ID")
    return (yield from _register(authority, authority.registration_endpoint, redirect_uri))


def _choose_preset_method(authority: ServerMetadata, preset: RegisteredClient) -> str:
    """Choose how a preset client sends its secret: in the form only if the server does not take it in the header."""
    taken = authority.token_endpoint_auth_methods_supported
    if preset.secret and "client_secret_post" in taken and "client_secret_basic" not in taken:
        return "client_secret_post"
    return "client_secret_basic" if preset.secret else "none"


def _register(authority: ServerMetadata, endpoint: str, redirect_uri: str) -> Flow[RegisteredClient]:
    method = next((each for each in _METHODS if each in authority.token_endpoint_auth_methods_supported), _METHODS[0])
    metadata = {  # without `scope`, which a later step-up could not exceed
        "client_name": NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native",
    }
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    response = yield Request("POST", endpoint, headers, json.dumps(metadata).encode())
    try:
        client = Registration.model_validate(response.document())
    except ValidationError:
        reason = response.error() or f"status {response.status}"
        raise SignInError(f"{host(endpoint)} did not register the client: {reason}") from None
    default = method if client.client_secret or method == "none" else "none"
    method = client.token_endpoint_auth_method or default
    if method not in _METHODS:
        raise SignInError(f"{host(endpoint)} requires the unsupported client authentication {method[:40]!r}")
    return RegisteredClient(
        client.client_id, client.client_secret, method, redirect_uri, client.client_secret_expires_at
    )
