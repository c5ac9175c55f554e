"""OAuth clients: their metadata (RFC 7591, 2) and dynamic client registration."""

import re
import secrets
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolloutlab.service.oauth.errors import NO_STORE, OAuthError
from rolloutlab.service.oauth.params import media_type, read_body
from rolloutlab.service.oauth.signing import Signer

AUTH_METHODS = ("none", "client_secret_basic", "client_secret_post")
GRANT_TYPES = ("authorization_code", "refresh_token")
_NO_NAME = "an application without a name"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Hosts to which a redirect URI may lead without TLS: the browser's own machine."""
_MAX_REDIRECTS = 50
_MAX_URL = 2000
_MAX_NAME = 80
_MAX_CLIENT_ID = 4000
"""Characters; the id is part of URLs."""
_URL = re.compile(r"[A-Za-z0-9\-._~:/?\[\]@!$&()*+,=%]+")
"""RFC 3986 without `#`, `'` and `;`, which would break out of a content security policy directive."""
_HOST = re.compile(r"[a-z0-9.-]+|[0-9a-f:.]+")


@dataclass(frozen=True)
class Client:
    """An OAuth client.

    Attributes:
        name: Chosen by the client, and not verified.
        auth_method: How it authenticates at the token endpoint.
        renews: Whether it may get refresh tokens.
        document: Whether its id is the URL of a metadata document; otherwise it is registered here.
    """

    id: str
    name: str
    redirect_uris: tuple[str, ...]
    auth_method: str = "none"
    renews: bool = False
    document: bool = False

    def check_redirect(self, uri: str | None) -> str:
        """Return a request's redirect URI, which must match a registered one exactly, with its port (OAuth 2.1, 4.1.1).

        Raises:
            OAuthError: invalid_request: it is missing, or not registered.
        """
        if not uri:
            raise OAuthError("invalid_request", "the parameter redirect_uri is missing")
        if not any(secrets.compare_digest(uri.encode(), each.encode()) for each in self.redirect_uris):
            raise OAuthError("invalid_request", f"{uri} is not a registered redirect URI of {self.name}")
        return uri


def parse_client(client_id: str, metadata: Mapping[str, Any], *, is_document: bool = False) -> Client:
    """Make a client from its metadata. `client_secret_basic` is the default authentication of a registration.

    Raises:
        OAuthError: invalid_redirect_uri, or invalid_client_metadata.
    """
    uris = metadata.get("redirect_uris")
    if not isinstance(uris, list) or not 0 < len(uris) <= _MAX_REDIRECTS:
        raise OAuthError("invalid_redirect_uri", f"redirect_uris must be a list of 1 to {_MAX_REDIRECTS} URIs")
    method = metadata.get("token_endpoint_auth_method") or ("none" if is_document else "client_secret_basic")
    if method not in AUTH_METHODS:
        raise _unsupported("token_endpoint_auth_method", AUTH_METHODS)
    grants = metadata.get("grant_types") or ["authorization_code"]
    if not _is_list_of(grants, GRANT_TYPES) or "authorization_code" not in grants:
        raise _unsupported("grant_types", GRANT_TYPES)
    if not _is_list_of(metadata.get("response_types") or ["code"], ("code",)):
        raise _unsupported("response_types", ("code",))
    name = metadata.get("client_name") or _NO_NAME
    if not isinstance(name, str):
        raise OAuthError("invalid_client_metadata", "client_name must be a string")
    redirect_uris = tuple(map(check_redirect_uri, uris))
    return Client(client_id, clean_name(name), redirect_uris, method, "refresh_token" in grants, is_document)


def check_redirect_uri(uri: Any) -> str:
    """Return a redirect URI if it is https, or http on the browser's own machine.

    Raises:
        OAuthError: invalid_redirect_uri.
    """
    parts = split_url(uri)
    if parts is None or parts.username is not None or parts.password is not None:
        raise OAuthError("invalid_redirect_uri", f"{uri!r} is not an absolute URL without a fragment or user name")
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise OAuthError("invalid_redirect_uri", f"{uri} is neither https nor a loopback address")
    return str(uri)


def split_url(url: Any) -> SplitResult | None:
    """Split an absolute URL without a fragment; None for anything else."""
    if not isinstance(url, str) or len(url) > _MAX_URL or not _URL.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        return parts if _HOST.fullmatch(parts.hostname or "") and parts.port != 0 else None
    except ValueError:  # unbalanced brackets, or an invalid port
        return None


def clean_name(name: str) -> str:
    """Put a name on one line, without control and bidi characters that could disguise it."""
    printable = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in name)
    return " ".join(printable.split())[:_MAX_NAME] or _NO_NAME


def _is_list_of(value: Any, allowed: tuple[str, ...]) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and each in allowed for each in value)


def _unsupported(field: str, supported: tuple[str, ...]) -> OAuthError:
    return OAuthError("invalid_client_metadata", f"unsupported {field}; supported: {', '.join(supported)}")


class ClientRegistration:
    """Dynamic client registration (RFC 7591). The id is the signed metadata, so registrations need no storage.

    key: signs the ids and derives the client secrets.
    """

    def __init__(self, key: bytes, clock: Callable[[], float] = time.time) -> None:
        self._signer = Signer(key, "client")
        self._clock = clock

    async def register(self, request: Request) -> Response:
        """Answer a request to the registration endpoint."""
        if media_type(request) != "application/json":  # which no page of another origin can send without CORS
            raise OAuthError("invalid_client_metadata", "the Content-Type must be application/json")
        try:
            metadata = from_json(await read_body(request))
        except ValueError as error:
            raise OAuthError("invalid_client_metadata", f"the body is not valid JSON: {error}") from error
        if not isinstance(metadata, dict):
            raise OAuthError("invalid_client_metadata", "the body must be a JSON object")
        return JSONResponse(self.add(metadata), 201, headers=NO_STORE)

    def add(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Make the registration response: id, secret, and the metadata that took effect.

        `scope` is ignored on purpose: a client may request another one later (step-up).

        Raises:
            OAuthError: invalid_redirect_uri, or invalid_client_metadata.
        """
        client = parse_client("", metadata)
        nonce = secrets.token_urlsafe(12)  # clients with equal metadata get different ids
        content = [nonce, client.name, client.redirect_uris, client.auth_method, client.renews]
        client_id = self._signer.sign(to_json(content))
        if len(client_id) > _MAX_CLIENT_ID:
            raise OAuthError("invalid_redirect_uri", "redirect_uris are too long, or too many")
        now = int(self._clock())
        has_secret = client.auth_method != "none"
        issued = {"client_secret": self.secret(client_id), "client_secret_expires_at": 0} if has_secret else {}
        return {
            "client_id": client_id,
            "client_id_issued_at": now,
            **issued,
            "client_name": client.name,
            "redirect_uris": list(client.redirect_uris),
            "grant_types": ["authorization_code", *(["refresh_token"] if client.renews else [])],
            "response_types": ["code"],
            "token_endpoint_auth_method": client.auth_method,
        }

    def get(self, client_id: str) -> Client | None:
        """Return a registered client; None if the id was not signed here."""
        if (content := self._signer.verify(client_id)) is None:
            return None
        _, name, redirect_uris, auth_method, renews = from_json(content)
        return Client(client_id, name, tuple(redirect_uris), auth_method, renews)

    def secret(self, client_id: str) -> str:
        return self._signer.signature(f"secret {client_id}")
