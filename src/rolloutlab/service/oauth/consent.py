"""Asking the owner: a page for each request, and a form that only that page in that browser can send."""

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rolloutlab.service.oauth.form import form
from rolloutlab.service.oauth.grants import Consented, Grants
from rolloutlab.service.oauth.metadata import CONSENT
from rolloutlab.service.oauth.page import Pages
from rolloutlab.service.oauth.passcode import Passcode, TooMany
from rolloutlab.service.oauth.refusal import OAuthRefusal
from rolloutlab.service.oauth.requests import AuthorizationRequest, answer_url
from rolloutlab.service.oauth.resources import SCOPES

COOKIE = "rolloutlab_form"

_PATIENCE = 600.0
_MOST_TRIES = 5
_MOST = 200
"""Requests that are remembered; the oldest is forgotten for the next."""


@dataclass
class _Waiting:
    """A request that nobody has decided yet. until: seconds since 1970. tries: wrong passcodes that it has left."""

    asked: AuthorizationRequest
    until: float
    tries: int = _MOST_TRIES


class Consent:
    """The consent page and what becomes of its form.

    The passcode is asked for every time. A cookie could not stand for it: browsers send the cookies of 127.0.0.1 to
    every port (RFC 6265, 8.5), so whoever else serves a page on this machine would get it.
    """

    def __init__(
        self, issuer: str, grants: Grants, passcode: Passcode, pages: Pages, clock: Callable[[], float] = time.time
    ) -> None:
        self._issuer = issuer
        self._grants = grants
        self._passcode = passcode
        self._pages = pages
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._waiting: dict[str, _Waiting] = {}

    def ask(self, request: Request, asked: AuthorizationRequest) -> Response:
        """The page for a new request."""
        now = self._clock()
        self._waiting = {name: each for name, each in self._waiting.items() if each.until > now}
        while len(self._waiting) >= _MOST:
            self._waiting.pop(next(iter(self._waiting)))
        name, browser = secrets.token_urlsafe(32), request.cookies.get(COOKIE) or secrets.token_urlsafe(32)
        self._waiting[name] = _Waiting(asked, now + _PATIENCE)
        page = self._page(name, browser)
        page.set_cookie(COOKIE, browser, path="/oauth", httponly=True, samesite="strict")
        return page

    async def answer(self, request: Request) -> Response:
        """What the form of the page asks for, which then leads back to the client."""
        try:
            said = await form(request)
            name = self._proven(request, said)
            if said.get("decision") != "allow":
                return self._done(name, error="access_denied", error_description="the owner of the lab said no")
            try:
                right = await run_in_threadpool(self._passcode.fits, said.get("passcode", ""))
            except TooMany:
                return self._page(name, request.cookies[COOKIE], "Too many wrong passcodes. Wait a minute.", 429)
            return await self._allow(name) if right else self._again(name, request.cookies[COOKIE])
        except OAuthRefusal as refusal:
            return self._pages.refused(refusal)

    def _again(self, name: str, browser: str) -> Response:
        """The page once more after a wrong passcode, or the end of the request after the last try."""
        waiting = self._find(name)
        waiting.tries -= 1
        if waiting.tries <= 0:
            return self._done(name, error="access_denied", error_description="the passcode was wrong too often")
        return self._page(name, browser, "That is not the passcode of this lab.", 403)

    def _proven(self, request: Request, said: dict[str, str]) -> str:
        """The name of the request that a form decides, once it is sure that our page in this browser sent it."""
        if request.headers.get("origin", self._issuer) != self._issuer:
            raise OAuthRefusal("invalid_request", "The form was sent by another page.", 403)
        name, browser = said.get("request", ""), request.cookies.get(COOKIE, "")
        if not browser or not hmac.compare_digest(said.get("proof", "").encode(), self._proof(name, browser).encode()):
            raise OAuthRefusal("invalid_request", "The form was not sent by the page that this browser was shown.", 403)
        self._find(name)
        return name

    def _find(self, name: str) -> _Waiting:
        waiting = self._waiting.get(name)
        if waiting is None or waiting.until <= self._clock():
            raise OAuthRefusal("invalid_request", "The request is over, or was answered. Start the sign-in again.")
        return waiting

    async def _allow(self, name: str) -> Response:
        asked = self._find(name).asked  # anew: another form of the same page may have been quicker
        client = asked.client
        what = Consented(
            client_id=client.id,
            client_name=client.name,
            resource=asked.resource.uri,
            scopes=asked.scopes,
            redirect_uri=asked.redirect_uri,
            challenge=asked.challenge,
            renews=client.renews,
        )
        del self._waiting[name]
        return self._back(asked, code=await run_in_threadpool(self._grants.grant, what))

    def _done(self, name: str, **said: str) -> Response:
        asked = self._find(name).asked
        del self._waiting[name]
        return self._back(asked, **said)

    def _back(self, asked: AuthorizationRequest, **said: str) -> Response:
        """To the client; 303, so that the form with the passcode is not sent there (OAuth 2.1, 7.5.2)."""
        url = answer_url(asked.redirect_uri, self._issuer, asked.state, **said)
        return RedirectResponse(url, 303, headers={"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})

    def _page(self, name: str, browser: str, wrong: str = "", status: int = 200) -> Response:
        asked = self._find(name).asked
        parts = urlsplit(asked.redirect_uri)
        return self._pages.show(
            "consent.html",
            status,
            form_targets=f"'self' {_source(parts)}",
            asked=asked,
            host=parts.netloc,
            scopes=SCOPES,
            warn=asked.client.document and asked.client.only_loopback,
            wrong=wrong,
            action=CONSENT,
            request=name,
            proof=self._proof(name, browser),
        )

    def _proof(self, name: str, browser: str) -> str:
        return hmac.digest(self._key, f"{name} {browser}".encode(), "sha256").hex()


def _source(parts: SplitResult) -> str:
    """An address as a content security policy names it, which has no way to write an IPv6 address (CSP 3, 2.3.1)."""
    return f"{parts.scheme}:" if "[" in parts.netloc else f"{parts.scheme}://{parts.netloc}"
