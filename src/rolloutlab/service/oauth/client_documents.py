"""Client ID metadata documents: a client whose id is the https address of a document that says what it is."""

import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from pydantic_core import from_json

from rolloutlab.api.http.ip_scope import NetworkScope, may_contact
from rolloutlab.api.http.ssrf import Fetched, fetch_untrusted
from rolloutlab.errors import InputError, ServiceError
from rolloutlab.service.oauth.clients import Client, check_redirect_uri, read_client, split
from rolloutlab.service.oauth.errors import OAuthRefusal

REDIRECTS = ("http://127.0.0.1:8888/rolloutlab/callback", "http://localhost:8888/rolloutlab/callback")
"""Where a Jupyter server with its usual port gets answers."""

_LARGEST = 1 << 16
"""Bytes of a document."""
_PATIENCE = 5.0
"""Seconds until it is here."""
_LONGEST = 86400.0
_MOST = 100


def is_public(address: str) -> bool:
    """Whether an IP address is for anybody to use: whoever names it does not lead us into a network of our own."""
    return may_contact(NetworkScope.PUBLIC, address)


class Documents:
    """The documents that were fetched, for as long as they said that they hold.

    reachable: which IP addresses are asked.
    """

    def __init__(self, reachable: Callable[[str], bool] = is_public, clock: Callable[[], float] = time.time) -> None:
        self._reachable = reachable
        self._clock = clock
        self._kept: dict[str, tuple[float, Client]] = {}

    async def get(self, url: str) -> Client:
        """The client of an address.

        Raises:
            OAuthRefusal: invalid_client: there is no document, or not one that may be believed.
        """
        until, client = self._kept.get(url, (0.0, None))
        if client and self._clock() < until:
            return client
        if not is_document_url(url):
            raise OAuthRefusal("invalid_client", f"{url} is no https address with a path")
        answer = await self._fetched(url)
        client = read_document(url, answer.body)
        self._kept.pop(url, None)
        headers = {name.lower(): value for name, value in answer.headers}
        if (fresh := freshness(headers, self._clock())) > 0:
            while len(self._kept) >= _MOST:
                self._kept.pop(next(iter(self._kept)))
            self._kept[url] = (self._clock() + fresh, client)
        return client

    async def _fetched(self, url: str) -> Fetched:
        try:
            answer = await fetch_untrusted(
                "GET",
                url,
                headers={"Accept": "application/json"},
                is_allowed_ip=self._reachable,
                max_bytes=_LARGEST,
                timeout=_PATIENCE,
            )
        except ServiceError as error:
            raise OAuthRefusal("invalid_client", f"{url} was not fetched: {error.message}") from error
        if answer.status != 200:
            raise OAuthRefusal("invalid_client", f"{url} was not fetched: it answered {answer.status}, not 200")
        return answer


def is_document_url(url: str) -> bool:
    """Whether an address may be a client's id: https, with a path, without a fragment, a user or a way up."""
    parts = split(url)
    if parts is None or parts.scheme != "https" or parts.username is not None or parts.password is not None:
        return False
    return parts.path not in ("", "/") and not {".", ".."} & set(parts.path.split("/"))


def read_document(url: str, body: bytes) -> Client:
    """The client that a document tells of.

    Raises:
        OAuthRefusal: invalid_client: it is no JSON object, it names another address, it has a secret, or lacks a field.
    """
    try:
        said = from_json(body)
    except ValueError as error:
        raise OAuthRefusal("invalid_client", f"{url} is no JSON") from error
    if not isinstance(said, dict) or said.get("client_id") != url:
        raise OAuthRefusal("invalid_client", f"{url} does not name itself as its client_id")
    if not isinstance(said.get("client_name"), str) or not said["client_name"]:
        raise OAuthRefusal("invalid_client", f"{url} has no client_name")
    try:
        client = read_client(url, said, document=True)
    except OAuthRefusal as refusal:
        raise OAuthRefusal("invalid_client", f"{url}: {refusal.description}") from refusal
    if client.auth_method != "none" or "client_secret" in said:
        raise OAuthRefusal("invalid_client", f"{url}: what everybody can read holds no secret")
    return client


def freshness(headers: Mapping[str, str], now: float) -> float:
    """For how many seconds an answer may be used again (RFC 9111, 4.2.1), a day at most; 0 where it does not say."""
    said = [part.strip().partition("=") for part in headers.get("cache-control", "").lower().split(",")]
    directives = {name: value.strip('"') for name, _, value in said}
    if {"no-store", "no-cache"} & directives.keys():
        return 0.0
    if (age := directives.get("max-age", "")).isdecimal():
        return min(float(age), _LONGEST)
    try:
        return max(0.0, min(parsedate_to_datetime(headers["expires"]).timestamp() - now, _LONGEST))
    except (KeyError, ValueError):
        return 0.0


def document(url: str, redirect_uris: Sequence[str] = REDIRECTS) -> dict[str, Any]:
    """The document to be put at an address, for notebooks to be known by.

    Raises:
        InputError: it cannot be there, or a redirect URI is neither https nor on this machine.
    """
    if not is_document_url(url):
        raise InputError(f"{url!r} is no https address with a path", hint="https://example.org/rolloutlab/client.json")
    try:
        uris = [check_redirect_uri(uri) for uri in redirect_uris]
    except OAuthRefusal as refusal:
        raise InputError(refusal.description, hint="--redirect http://localhost:8888/rolloutlab/callback") from refusal
    return {
        "client_id": url,
        "client_name": "rolloutlab",
        "redirect_uris": uris,
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }
