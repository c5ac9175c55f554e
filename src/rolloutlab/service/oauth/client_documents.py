"""Client ID metadata documents: clients whose id is the https URL of their metadata."""

import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from pydantic_core import from_json

from rolloutlab.api.http.ip_scope import NetworkScope, may_contact
from rolloutlab.api.http.ssrf import Fetched, fetch_untrusted
from rolloutlab.errors import InputError, ServiceError
from rolloutlab.service.oauth.clients import Client, check_redirect_uri, parse_client, split_url
from rolloutlab.service.oauth.errors import OAuthError

REDIRECTS = ("http://127.0.0.1:8888/rolloutlab/callback", "http://localhost:8888/rolloutlab/callback")
"""Redirect URIs of a Jupyter server on its default port."""
_MAX_BYTES = 1 << 16
_TIMEOUT = 5.0
_MAX_AGE = 86400.0
_MAX_CACHED = 100


def is_public(address: str) -> bool:
    """Whether an IP address is public: a client must not make the server contact a private network (SSRF)."""
    return may_contact(NetworkScope.PUBLIC, address)


class ClientDocuments:
    """Fetches metadata documents and caches them as their HTTP headers allow.

    reachable: tells which IP addresses may be contacted.
    """

    def __init__(self, reachable: Callable[[str], bool] = is_public, clock: Callable[[], float] = time.time) -> None:
        self._reachable = reachable
        self._clock = clock
        self._cache: dict[str, tuple[float, Client]] = {}

    async def get(self, url: str) -> Client:
        """Find the client with this URL as its id.

        Raises:
            OAuthError: invalid_client: the document cannot be fetched, or is not valid.
        """
        expires_at, client = self._cache.get(url, (0.0, None))
        if client and self._clock() < expires_at:
            return client
        if not is_document_url(url):
            raise OAuthError("invalid_client", f"{url} is not an https URL with a path")
        response = await self._fetch(url)
        client = parse_document(url, response.body)
        self._cache.pop(url, None)
        headers: dict[str, str] = {}
        for name, value in response.headers:
            sent = headers.get(name.lower())
            headers[name.lower()] = f"{sent}, {value}" if sent else value  # RFC 9110, 5.3
        if (lifetime := freshness_lifetime(headers, self._clock())) > 0:
            while len(self._cache) >= _MAX_CACHED:
                self._cache.pop(next(iter(self._cache)))
            self._cache[url] = (self._clock() + lifetime, client)
        return client

    async def _fetch(self, url: str) -> Fetched:
        try:
            limits: dict[str, Any] = {"is_allowed_ip": self._reachable, "max_bytes": _MAX_BYTES, "timeout": _TIMEOUT}
            response = await fetch_untrusted("GET", url, headers={"Accept": "application/json"}, **limits)
        except ServiceError as error:
            raise OAuthError("invalid_client", f"{url} cannot be fetched: {error.message}") from error
        if response.status != 200:
            raise OAuthError("invalid_client", f"{url} cannot be fetched: status {response.status}, expected 200")
        return response


def is_document_url(url: str) -> bool:
    """Whether a URL may be a client id: https with a path; no fragment, user name or dot segments."""
    parts = split_url(url)
    if parts is None or parts.scheme != "https" or parts.username is not None or parts.password is not None:
        return False
    return parts.path not in ("", "/") and not {".", ".."} & set(parts.path.split("/"))


def parse_document(url: str, body: bytes) -> Client:
    """Read the client that a metadata document describes.

    Raises:
        OAuthError: invalid_client: not a JSON object, another client_id, a missing field, or a client secret.
    """
    try:
        document = from_json(body)
    except ValueError as error:
        raise OAuthError("invalid_client", f"{url} is not valid JSON") from error
    if not isinstance(document, dict) or document.get("client_id") != url:
        raise OAuthError("invalid_client", f"{url} does not have its own URL as client_id")
    if not isinstance(document.get("client_name"), str) or not document["client_name"]:
        raise OAuthError("invalid_client", f"{url} has no client_name")
    try:
        client = parse_client(url, document, is_document=True)
    except OAuthError as error:
        raise OAuthError("invalid_client", f"{url}: {error.description}") from error
    if client.auth_method != "none" or "client_secret" in document:
        raise OAuthError("invalid_client", f"{url}: a public document must not use a client secret")
    return client


def freshness_lifetime(headers: Mapping[str, str], now: float) -> float:
    """Return for how many seconds a response may be cached (RFC 9111, 4.2.1): at most a day, 0 without such headers."""
    parts = [part.strip().partition("=") for part in headers.get("cache-control", "").lower().split(",")]
    directives = {name: value.strip('"') for name, _, value in parts}
    if {"no-store", "no-cache"} & directives.keys():
        return 0.0
    if (age := directives.get("max-age", "")).isdecimal():
        return min(float(age), _MAX_AGE)
    try:
        return max(0.0, min(parsedate_to_datetime(headers["expires"]).timestamp() - now, _MAX_AGE))
    except (KeyError, ValueError):
        return 0.0


def notebook_document(url: str, redirect_uris: Sequence[str] = REDIRECTS) -> dict[str, Any]:
    """Make the document to publish at a URL as the client id of notebooks.

    Raises:
        InputError: the URL cannot be a client id, or a redirect URI is neither https nor loopback.
    """
    if not is_document_url(url):
        raise InputError(f"{url!r} is not an https URL with a path", hint="https://example.org/rolloutlab/client.json")
    try:
        uris = [check_redirect_uri(uri) for uri in redirect_uris]
    except OAuthError as error:
        raise InputError(error.description, hint="--redirect http://localhost:8888/rolloutlab/callback") from error
    return {
        "client_id": url,
        "client_name": "rolloutlab",
        "redirect_uris": uris,
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }
