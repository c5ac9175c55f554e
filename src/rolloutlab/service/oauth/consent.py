"""Consent page: the owner of the lab allows or denies an authorization request, with the lab's passcode.

The form carries its signed request, so that pending requests take no memory, however many a client sends. A cookie per
request binds the form to the browser that was shown the page (CSRF).
"""

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rolloutlab.errors import InputError
from rolloutlab.service.oauth.clients import LOOPBACK, Client
from rolloutlab.service.oauth.errors import OAuthError
from rolloutlab.service.oauth.grants import Grants
from rolloutlab.service.oauth.metadata import CONSENT, SCOPES, Resource
from rolloutlab.service.oauth.page import Pages
from rolloutlab.service.oauth.params import read_form
from rolloutlab.service.oauth.signing import Signer

COOKIE = "rolloutlab_form_"
"""Prefix of the cookie of a request: with one name for all, a second page would replace the first one's."""
Clock = Callable[[], float]
_LIFETIME = 600
_MAX_TRIES = 5
_MAX_CLOSED = 200
"""The most denied requests, and requests with wrong passcodes, that are remembered."""


@dataclass(frozen=True)
class AuthorizationRequest:
    """A validated request. challenge: the S256 code challenge. state: returned with the response, if any."""

    client: Client
    redirect_uri: str
    resource: Resource
    scopes: tuple[str, ...]
    challenge: str
    state: str | None


def response_url(redirect_uri: str, issuer: str, state: str | None, **params: str) -> str:
    """Add a response to a redirect URI: always with `iss` (RFC 9207, 2), with `state` if the request had one."""
    query = urlencode({**params, "iss": issuer, **({"state": state} if state is not None else {})})
    parts = urlsplit(redirect_uri)
    return parts._replace(query=f"{parts.query}&{query}" if parts.query else query).geturl()


def same_passcode(a: str, b: str) -> bool:
    """Compare passcodes in constant time, ignoring case, white space and hyphens.

    There is no lockout across requests: of 31^12 = 8 * 10^17 passcodes, 10,000 guesses per second for a year hit with a
    chance of one in two million, while a lockout would let any client keep the owner out.
    """
    return secrets.compare_digest(_normalize(a), _normalize(b))


def _normalize(passcode: str) -> bytes:
    return "".join(passcode.split()).replace("-", "").lower().encode()


class Decisions:
    """Decided requests by name, so that each form is used once.

    Allowed requests are remembered until they expire, as only the owner can add one. Any client can add denied requests
    and wrong passcodes, so only the newest of these are remembered. A request that was dropped has all its tries again,
    but still needs the passcode.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._allowed: dict[str, float] = {}
        self._tries: dict[str, int] = {}

    def is_open(self, name: str) -> bool:
        """Whether a request can still be decided."""
        return name not in self._allowed and self._tries.get(name, _MAX_TRIES) > 0

    def allow(self, name: str, expires_at: float) -> None:
        """Remember an allowed request. expires_at: when its form expires, in seconds since 1970."""
        now = self._clock()
        self._allowed = {each: end for each, end in self._allowed.items() if end > now} | {name: expires_at}

    def deny(self, name: str) -> None:
        self._set_tries(name, 0)

    def count_wrong_passcode(self, name: str) -> None:
        """Count a wrong passcode. After the last try the request counts as denied."""
        self._set_tries(name, self._tries.get(name, _MAX_TRIES) - 1)

    def _set_tries(self, name: str, tries: int) -> None:
        self._tries.pop(name, None)
        while len(self._tries) >= _MAX_CLOSED:
            self._tries.pop(next(iter(self._tries)))
        self._tries[name] = tries


@dataclass(frozen=True)
class _PendingRequest:
    """A request while the owner decides. expires_at: seconds since 1970."""

    name: str
    expires_at: float
    authorization: AuthorizationRequest


_PENDING = TypeAdapter(_PendingRequest)


class ConsentPage:
    """The consent page and its form.

    The passcode is required for every request. No cookie replaces it: browsers send the cookies of 127.0.0.1 to every
    port (RFC 6265, 8.5), so any other server on this machine would receive it.
    """

    def __init__(
        self, issuer: str, grants: Grants, read_passcode: Callable[[], str], pages: Pages, clock: Clock = time.time
    ) -> None:
        self._issuer = issuer
        self._grants = grants
        self._read_passcode = read_passcode
        self._pages = pages
        self._clock = clock
        self._signer = Signer(secrets.token_bytes(32), "consent")
        self._decisions = Decisions(clock)

    def show(self, authorization: AuthorizationRequest) -> Response:
        """Make the page for a new request, with its cookie."""
        # the client's other redirect URIs may be many, and would make the form large
        client = replace(authorization.client, redirect_uris=(authorization.redirect_uri,))
        name = secrets.token_urlsafe(16)
        pending = _PendingRequest(name, self._clock() + _LIFETIME, replace(authorization, client=client))
        page = self._page(pending)
        cookie, https = f"{COOKIE}{name}", self._issuer.startswith("https:")
        options: dict[str, Any] = {"path": CONSENT, "secure": https, "httponly": True, "samesite": "strict"}
        page.set_cookie(cookie, self._cookie(name), max_age=_LIFETIME, **options)
        return page

    async def decide(self, request: Request) -> Response:
        """Answer a sent form: redirect back to the client, or show the page again or an error."""
        try:
            params = await read_form(request)
            pending = self._verify_form(request, params.get("request", ""))
            if params.get("decision") != "allow":
                return self._deny(pending, "the owner of the lab denied the request")
            if await run_in_threadpool(self._is_passcode, params.get("passcode", "")):
                return await self._allow(pending)
            return self._retry(pending)
        except OAuthError as error:
            return self._pages.error(error)

    def _is_passcode(self, passcode: str) -> bool:
        try:
            return same_passcode(passcode, self._read_passcode())
        except InputError as error:
            description = "The passcode of this lab cannot be used; rolloutlab passcode, in a terminal, shows why."
            raise OAuthError("server_error", description, 500) from error

    def _verify_form(self, request: Request, token: str) -> _PendingRequest:
        """Return the request of a form, or raise unless this server's page, in this browser, has sent it."""
        if request.headers.get("origin", self._issuer) != self._issuer:
            raise OAuthError("invalid_request", "The form was sent by another page.", 403)
        content = self._signer.verify(token)
        pending = _PENDING.validate_json(content) if content is not None else None
        if pending is None or not self._is_browser(request, pending.name):
            raise OAuthError("invalid_request", "The form was not sent by the page that this browser was shown.", 403)
        self._check_open(pending)
        return pending

    def _is_browser(self, request: Request, name: str) -> bool:
        cookie = request.cookies.get(f"{COOKIE}{name}", "")
        return hmac.compare_digest(cookie.encode(), self._cookie(name).encode())

    def _cookie(self, name: str) -> str:
        return self._signer.signature(f"browser {name}")

    def _check_open(self, pending: _PendingRequest) -> None:
        if pending.expires_at <= self._clock() or not self._decisions.is_open(pending.name):
            raise OAuthError("invalid_request", "The request has expired or is decided. Start the sign-in again.")

    def _retry(self, pending: _PendingRequest) -> Response:
        """Show the page again after a wrong passcode. After the last try, deny the request."""
        self._check_open(pending)  # again: a concurrent form of the same page may have decided it meanwhile
        self._decisions.count_wrong_passcode(pending.name)
        if not self._decisions.is_open(pending.name):
            return self._deny(pending, "too many wrong passcodes")
        return self._page(pending, "That is not the passcode of this lab.", 403)

    async def _allow(self, pending: _PendingRequest) -> Response:
        self._check_open(pending)
        self._decisions.allow(pending.name, pending.expires_at)
        allowed = pending.authorization
        code = await run_in_threadpool(
            self._grants.grant,
            allowed.client,
            resource=allowed.resource.uri,
            scopes=allowed.scopes,
            redirect_uri=allowed.redirect_uri,
            challenge=allowed.challenge,
        )
        return self._redirect(pending, code=code)

    def _deny(self, pending: _PendingRequest, description: str) -> Response:
        self._decisions.deny(pending.name)
        return self._redirect(pending, error="access_denied", error_description=description)

    def _redirect(self, pending: _PendingRequest, **params: str) -> Response:
        """Redirect with 303, so that the browser does not post the passcode to the client (OAuth 2.1, 7.5.2)."""
        url = response_url(pending.authorization.redirect_uri, self._issuer, pending.authorization.state, **params)
        headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        return RedirectResponse(url, 303, headers=headers)

    def _page(self, pending: _PendingRequest, error: str = "", status: int = 200) -> Response:
        authorization = pending.authorization
        parts = urlsplit(authorization.redirect_uri)
        return self._pages.show(
            "consent.html",
            status,
            form_targets=f"'self' {_csp_source(parts)}",
            authorization=authorization,
            host=parts.netloc,
            scopes=SCOPES,
            warn=authorization.client.document and parts.hostname in LOOPBACK,
            error=error,
            action=CONSENT,
            request=self._signer.sign(_PENDING.dump_json(pending)),
        )


def _csp_source(parts: SplitResult) -> str:
    """Write a URL as a source of a content security policy, which cannot name an IPv6 address (CSP 3, 2.3.1)."""
    return f"{parts.scheme}:" if "[" in parts.netloc else f"{parts.scheme}://{parts.netloc}"
