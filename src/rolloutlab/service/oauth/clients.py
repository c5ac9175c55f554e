"""Who asks: clients that registered here, and what any client may say of itself (RFC 7591, 2)."""

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

from rolloutlab.service.oauth.errors import NOT_KEPT, OAuthRefusal
from rolloutlab.service.oauth.params import body, is_json
from rolloutlab.service.oauth.signing import Signer

AUTH_METHODS = ("none", "client_secret_basic", "client_secret_post")
GRANT_TYPES = ("authorization_code", "refresh_token")

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Hosts that are the browser's own machine: there and nowhere else may a redirect URI go without TLS."""

_MOST_REDIRECTS = 50
_LONGEST_URL = 2000
_LONGEST_NAME = 80
_URL = re.compile(r"[A-Za-z0-9\-._~:/?\[\]@!$&()*+,=%]+")
"""RFC 3986 without `#`, `'` and `;`, which would end a directive of a content security policy."""

_HOST = re.compile(r"[a-z0-9.-]+|[0-9a-f:.]+")


@dataclass(frozen=True)
class Client:
    """A client. name: what it calls itself. auth_method: how it authenticates at the token endpoint.

    renews: whether it may have refresh tokens. document: its id is the address of a document that it hosts, else it
    registered here.
    """

    id: str
    name: str
    redirect_uris: tuple[str, ...]
    auth_method: str = "none"
    renews: bool = False
    document: bool = False

    def check_redirect(self, uri: str | None) -> str:
        """The address of a request, compared to what is registered exactly, port included (OAuth 2.1, 4.1.1).

        Raises:
            OAuthRefusal: invalid_request: it is missing, or not registered.
        """
        if not uri:
            raise OAuthRefusal("invalid_request", "the parameter redirect_uri is missing")
        if not any(secrets.compare_digest(uri.encode(), each.encode()) for each in self.redirect_uris):
            raise OAuthRefusal("invalid_request", f"{uri} is no redirect URI that {self.name} has registered")
        return uri


def read_client(client_id: str, said: Mapping[str, Any], *, document: bool = False) -> Client:
    """What a client says of itself, checked; its authentication is `client_secret_basic` where it does not say.

    Raises:
        OAuthRefusal: invalid_redirect_uri, or invalid_client_metadata.
    """
    uris = said.get("redirect_uris")
    if not isinstance(uris, list) or not 0 < len(uris) <= _MOST_REDIRECTS:
        raise OAuthRefusal("invalid_redirect_uri", f"redirect_uris has to be a list of 1 to {_MOST_REDIRECTS}")
    method = said.get("token_endpoint_auth_method") or ("none" if document else "client_secret_basic")
    if method not in AUTH_METHODS:
        raise _odd("token_endpoint_auth_method", AUTH_METHODS)
    grants = said.get("grant_types") or ["authorization_code"]
    if not _among(grants, GRANT_TYPES) or "authorization_code" not in grants:
        raise _odd("grant_types", GRANT_TYPES)
    if not _among(said.get("response_types") or ["code"], ("code",)):
        raise _odd("response_types", ("code",))
    name = said.get("client_name") or "an application without a name"
    if not isinstance(name, str):
        raise OAuthRefusal("invalid_client_metadata", "client_name is no text")
    return Client(
        id=client_id,
        name=legible(name),
        redirect_uris=tuple(map(check_redirect_uri, uris)),
        auth_method=method,
        renews="refresh_token" in grants,
        document=document,
    )


def check_redirect_uri(uri: Any) -> str:
    """An address that answers may be sent to: https, or http on the browser's own machine.

    Raises:
        OAuthRefusal: invalid_redirect_uri.
    """
    parts = split(uri)
    if parts is None or parts.username is not None or parts.password is not None:
        raise OAuthRefusal("invalid_redirect_uri", f"{uri!r} is no whole address without a fragment or a user")
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise OAuthRefusal("invalid_redirect_uri", f"{uri} is neither https nor on this machine")
    return str(uri)


def split(url: Any) -> SplitResult | None:
    """The parts of an absolute address without a fragment; None for anything else."""
    if not isinstance(url, str) or len(url) > _LONGEST_URL or not _URL.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        return parts if _HOST.fullmatch(parts.hostname or "") and parts.port != 0 else None
    except ValueError:  # brackets that do not match, or a port that is none
        return None


def host_of(url: str) -> str:
    """The host of an address that was checked."""
    return urlsplit(url).hostname or ""


def legible(name: str) -> str:
    """A name without what could make it look like something else: line breaks, and marks that turn text around."""
    shown = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in name)
    return " ".join(shown.split())[:_LONGEST_NAME] or "an application without a name"


def _among(value: Any, known: tuple[str, ...]) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and each in known for each in value)


def _odd(field: str, known: tuple[str, ...]) -> OAuthRefusal:
    return OAuthRefusal("invalid_client_metadata", f"{field} may be {', '.join(known)}")


_LONGEST = 4000
"""Characters of an id, which is part of addresses."""


class Register:
    """Makes ids of clients, and reads them. key: who has it can make them too, and knows the clients' secrets."""

    def __init__(self, key: bytes, clock: Callable[[], float] = time.time) -> None:
        self._seal = Signer(key, "client")
        self._clock = clock

    async def answer(self, request: Request) -> Response:
        """The registration endpoint."""
        if not is_json(request):
            raise OAuthRefusal("invalid_client_metadata", "the body is no application/json")
        try:
            said = from_json(await body(request))
        except ValueError as error:
            raise OAuthRefusal("invalid_client_metadata", f"the body is no JSON: {error}") from error
        if not isinstance(said, dict):
            raise OAuthRefusal("invalid_client_metadata", "the body is no JSON object")
        return JSONResponse(self.add(said), 201, headers=NOT_KEPT)

    def add(self, said: dict[str, Any]) -> dict[str, Any]:
        """What a client is told: its id, its secret, and all that was understood of it.

        A scope that it names is not understood, on purpose: it may ask for another one later (step-up).

        Raises:
            OAuthRefusal: invalid_redirect_uri, or invalid_client_metadata.
        """
        client = read_client("", said)
        nonce = secrets.token_urlsafe(12)  # who says the same is not the same
        content = [nonce, client.name, client.redirect_uris, client.auth_method, client.renews]
        client_id = self._seal.sign(to_json(content))
        if len(client_id) > _LONGEST:
            raise OAuthRefusal("invalid_redirect_uri", "redirect_uris are too long, or too many")
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
        """A client that registered here."""
        content = self._seal.verify(client_id)
        if content is None:
            return None
        _, name, redirect_uris, auth_method, renews = from_json(content)
        return Client(client_id, name, tuple(redirect_uris), auth_method, renews)

    def secret(self, client_id: str) -> str:
        """The secret of a client that has one."""
        return self._seal.signature(f"secret {client_id}")
