"""Asking the owner: a page for each request, and a form that only that page in that browser can send.

The form carries its request, sealed: nothing is remembered before somebody decides, so that however many requests
others make, none of them is in the way of the one that the owner looks at.
"""

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, urlsplit

from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rolloutlab.errors import InputError
from rolloutlab.service.oauth.authorization_request import AuthorizationRequest, answer_url
from rolloutlab.service.oauth.clients import LOOPBACK, host_of
from rolloutlab.service.oauth.errors import OAuthRefusal
from rolloutlab.service.oauth.grants import Consented, Grants
from rolloutlab.service.oauth.metadata import CONSENT, SCOPES
from rolloutlab.service.oauth.page import Pages
from rolloutlab.service.oauth.params import form
from rolloutlab.service.oauth.signing import Signer


def fits(given: str, right: str) -> bool:
    """Whether it is the passcode, however it is spaced and in whatever case.

    However many wrong ones came before, the right one is taken. There are 31^12 = 8 * 10^17 of them: who tries 10,000
    every second for a year has one chance in two million. To stop looking after wrong ones would not make that less in
    any way that matters, and would let anybody who types wrong ones keep the owner out.
    """
    return secrets.compare_digest(_bare(given), _bare(right))


def _bare(text: str) -> bytes:
    return "".join(text.split()).replace("-", "").lower().encode()


_MOST_TRIES = 5
_MOST = 200
"""Requests that were denied, or had a wrong passcode, which are remembered."""


class Decisions:
    """Requests by name. Only the owner can add to what was allowed, so none of that is forgotten before its time.

    Anybody can have requests denied and passcodes found wrong. Of those the oldest are forgotten, which lets nobody in:
    such a request has its tries again, and still needs the passcode.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._allowed: dict[str, float] = {}
        self._tries: dict[str, int] = {}

    def is_open(self, name: str) -> bool:
        """Whether a request can still be decided."""
        return name not in self._allowed and self._tries.get(name, _MOST_TRIES) > 0

    def allow(self, name: str, until: float) -> None:
        """It was allowed. until: when its form is over by itself, in seconds since 1970."""
        now = self._clock()
        self._allowed = {each: end for each, end in self._allowed.items() if end > now} | {name: until}

    def deny(self, name: str) -> None:
        """It was denied."""
        self._keep(name, 0)

    def miss(self, name: str) -> None:
        """A passcode for it was wrong; the last try denies it."""
        self._keep(name, self._tries.get(name, _MOST_TRIES) - 1)

    def _keep(self, name: str, tries: int) -> None:
        self._tries.pop(name, None)
        while len(self._tries) >= _MOST:
            self._tries.pop(next(iter(self._tries)))
        self._tries[name] = tries


COOKIE = "rolloutlab_form_"
"""What the name of a request's cookie begins with; one that all shared would be replaced by the next page's."""

_PATIENCE = 600


@dataclass(frozen=True)
class _Question:
    """A request as it is put to the owner. until: seconds since 1970."""

    name: str
    until: float
    asked: AuthorizationRequest


_QUESTION = TypeAdapter(_Question)


class ConsentPage:
    """The consent page and what becomes of its form.

    The passcode is asked for every time. A cookie could not stand for it: browsers send the cookies of 127.0.0.1 to
    every port (RFC 6265, 8.5), so whoever else serves a page on this machine would get it.
    """

    def __init__(
        self,
        issuer: str,
        grants: Grants,
        read_passcode: Callable[[], str],
        pages: Pages,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._issuer = issuer
        self._grants = grants
        self._read_passcode = read_passcode
        self._pages = pages
        self._clock = clock
        self._seal = Signer(secrets.token_bytes(32), "consent")
        self._decisions = Decisions(clock)

    def ask(self, asked: AuthorizationRequest) -> Response:
        """The page for a new request, and the cookie by which its browser is known again."""
        client = replace(asked.client, redirect_uris=(asked.redirect_uri,))  # the others may be many
        name = secrets.token_urlsafe(16)
        question = _Question(name, self._clock() + _PATIENCE, replace(asked, client=client))
        page = self._page(question)
        page.set_cookie(
            f"{COOKIE}{name}",
            self._browser(name),
            max_age=_PATIENCE,
            path=CONSENT,
            secure=self._issuer.startswith("https:"),
            httponly=True,
            samesite="strict",
        )
        return page

    async def answer(self, request: Request) -> Response:
        """What the form of the page asks for, which then leads back to the client."""
        try:
            said = await form(request)
            question = self._proven(request, said.get("request", ""))
            if said.get("decision") != "allow":
                return self._deny(question, "the owner of the lab said no")
            if await run_in_threadpool(self._fits, said.get("passcode", "")):
                return await self._allow(question)
            return self._again(question)
        except OAuthRefusal as refusal:
            return self._pages.refused(refusal)

    def _fits(self, given: str) -> bool:
        try:
            return fits(given, self._read_passcode())
        except InputError as error:
            said = "The passcode of this lab cannot be used; rolloutlab passcode, in a terminal, says why."
            raise OAuthRefusal("server_error", said, 500) from error

    def _proven(self, request: Request, sealed: str) -> _Question:
        """What a form decides, once it is sure that our page in this browser sent it."""
        if request.headers.get("origin", self._issuer) != self._issuer:
            raise OAuthRefusal("invalid_request", "The form was sent by another page.", 403)
        content = self._seal.verify(sealed)
        question = _QUESTION.validate_json(content) if content is not None else None
        if question is None or not self._is_browser(request, question.name):
            raise OAuthRefusal("invalid_request", "The form was not sent by the page that this browser was shown.", 403)
        self._check_open(question)
        return question

    def _is_browser(self, request: Request, name: str) -> bool:
        given = request.cookies.get(f"{COOKIE}{name}", "")
        return hmac.compare_digest(given.encode(), self._browser(name).encode())

    def _browser(self, name: str) -> str:
        """What the cookie of a request holds."""
        return self._seal.signature(f"browser {name}")

    def _check_open(self, question: _Question) -> None:
        if question.until <= self._clock() or not self._decisions.is_open(question.name):
            raise OAuthRefusal("invalid_request", "The request is over, or was answered. Start the sign-in again.")

    def _again(self, question: _Question) -> Response:
        """The page once more after a wrong passcode, or the end of the request after the last try."""
        self._check_open(question)  # anew: another form of the same page may have been quicker
        self._decisions.miss(question.name)
        if not self._decisions.is_open(question.name):
            return self._deny(question, "the passcode was wrong too often")
        return self._page(question, "That is not the passcode of this lab.", 403)

    async def _allow(self, question: _Question) -> Response:
        self._check_open(question)
        self._decisions.allow(question.name, question.until)
        asked = question.asked
        what = Consented(
            client_id=asked.client.id,
            client_name=asked.client.name,
            resource=asked.resource.uri,
            scopes=asked.scopes,
            redirect_uri=asked.redirect_uri,
            challenge=asked.challenge,
            renews=asked.client.renews,
        )
        return self._back(question, code=await run_in_threadpool(self._grants.grant, what))

    def _deny(self, question: _Question, why: str) -> Response:
        self._decisions.deny(question.name)
        return self._back(question, error="access_denied", error_description=why)

    def _back(self, question: _Question, **said: str) -> Response:
        """To the client; 303, so that the form with the passcode is not sent there (OAuth 2.1, 7.5.2)."""
        url = answer_url(question.asked.redirect_uri, self._issuer, question.asked.state, **said)
        headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        return RedirectResponse(url, 303, headers=headers)

    def _page(self, question: _Question, wrong: str = "", status: int = 200) -> Response:
        asked = question.asked
        parts = urlsplit(asked.redirect_uri)
        return self._pages.show(
            "consent.html",
            status,
            form_targets=f"'self' {_source(parts)}",
            asked=asked,
            host=parts.netloc,
            scopes=SCOPES,
            warn=asked.client.document and host_of(asked.redirect_uri) in LOOPBACK,
            wrong=wrong,
            action=CONSENT,
            request=self._seal.sign(_QUESTION.dump_json(question)),
        )


def _source(parts: SplitResult) -> str:
    """An address as a content security policy names it, which has no way to write an IPv6 address (CSP 3, 2.3.1)."""
    return f"{parts.scheme}:" if "[" in parts.netloc else f"{parts.scheme}://{parts.netloc}"
