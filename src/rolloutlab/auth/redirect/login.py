"""One pending sign-in: its state, and the one authorization response that ends it."""

import asyncio
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from enum import Enum
from typing import Any

from rolloutlab.auth.prompt import AuthorizationRequest, PromptTimeoutError, Question
from rolloutlab.auth.redirect.response import is_for, parameters
from rolloutlab.auth.redirect.route import RedirectRoute, redirect_uri
from rolloutlab.errors import InputError, RolloutlabError, SignInError


class LoginState(Enum):
    """The state of a sign-in. LOOKING: the route and the URL are not known yet. ANSWERED: no code is exchanged yet."""

    LOOKING = "looking"
    WAITING = "waiting"
    ANSWERED = "answered"
    SIGNED_IN = "signed in"
    DENIED = "denied"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"


_OPEN = {LoginState.LOOKING, LoginState.WAITING}
_NEXT = {
    LoginState.LOOKING: set(LoginState) - _OPEN | {LoginState.WAITING},
    LoginState.WAITING: set(LoginState) - _OPEN,
    LoginState.ANSWERED: {LoginState.SIGNED_IN, LoginState.FAILED},
}


class Login:
    """One sign-in at `server`. Made on the loop; its methods are thread-safe.

    Its repr contains no secret.

    Attributes:
        ticket: The secret by which a page reaches this sign-in, distinct from the state.
        way: The route of the response, once it is known.
        note: The scopes, or the error.
        standing: The state of the sign-in.
        question: What the person is shown, once it is known.
        redirect: The redirect URI that a page reports; None if its Jupyter server has no redirect route.
        answer: The parameters of the authorization response.
    """

    def __init__(self, server: str, seconds: float) -> None:
        self.server = server
        self.ticket = secrets.token_urlsafe(32)
        self.way: RedirectRoute | None = None
        self.note = ""
        self.standing = LoginState.LOOKING
        self.question: Question | None = None
        self.redirect: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.answer: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # else asyncio warns
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._ends = time.monotonic() + seconds
        self._pending: AuthorizationRequest | None = None
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<sign-in at {self.server}: {self.standing.value}>"

    @property
    def url(self) -> str | None:
        """The URL to open while the sign-in waits. It is secret, as it contains the state."""
        return self._pending.url if self._pending and self.standing is LoginState.WAITING else None

    @property
    def is_open(self) -> bool:
        """Whether a response is still expected."""
        return self.standing in _OPEN

    @property
    def minutes(self) -> int:
        """The minutes in which it can still be answered, rounded up."""
        return max(0, math.ceil((self._ends - time.monotonic()) / 60))

    def public_state(self) -> dict[str, Any]:
        """Return the state without secrets, to be shown and saved."""
        question = asdict(self.question) if self.question else None
        way = self.way.value if self.way else None
        standing, note = self.standing.value, self.note
        return {"server": self.server, "question": question, "way": way, "standing": standing, "note": note}

    def listen(self, changed: Callable[[], None]) -> None:
        """Call a function, on any thread, after each change of the public state."""
        self._listeners.append(changed)

    def ask(self, request: AuthorizationRequest) -> None:
        """Wait for the response to a request, or raise SignInError if its URL is not http or https."""
        if not request.url.startswith(("https://", "http://")):
            raise SignInError(f"the sign-in page of {request.question.authority} has no http or https URL")
        self._pending = request
        self._ends = time.monotonic() + self._seconds
        self.question = request.question
        self.settle(LoginState.WAITING)

    def offer(self, query: str) -> bool:
        """Accept the first response with the right state, and return whether this was it."""
        response = parameters(query)
        with self._lock:
            if (
                self.standing is not LoginState.WAITING
                or not self._pending
                or not is_for(self._pending.state, response)
            ):
                return False
            denied = response.get("error") == "access_denied"
            self.standing = LoginState.DENIED if denied else LoginState.ANSWERED
        self._loop.call_soon_threadsafe(_set, self.answer, response)
        self._changed()
        return True

    def settle(self, standing: LoginState, note: str = "") -> bool:
        """Change to this state if that is a valid transition, and return whether it was."""
        with self._lock:
            if standing not in _NEXT.get(self.standing, ()):
                return False
            self.standing, self.note = standing, note
        self._changed()
        return True

    def paste(self, text: str) -> dict[str, Any]:
        """Accept the last URL of the browser, or raise InputError if it is not of this sign-in."""
        if not isinstance(text, str) or "state" not in parameters(text):
            raise InputError("not the URL of an authorization response", hint="all of it, from http to the end")
        if not self.offer(text):
            raise InputError("this URL is of another sign-in, or this one has ended", hint=f"%login {self.server}")
        return {}

    def cancel(self) -> dict[str, Any]:
        """Cancel this sign-in."""
        if self.settle(LoginState.CANCELLED):
            error = PromptTimeoutError(f"signing in to {self.server} was cancelled", hint=f"%login {self.server}")
            self._loop.call_soon_threadsafe(_fail, self.answer, error)
        return {}

    def here(self, origin: str, base_url: str) -> dict[str, Any]:
        """Set the redirect URI under the Jupyter server of a page."""
        self._loop.call_soon_threadsafe(_set, self.redirect, redirect_uri(str(origin), str(base_url)))
        return {}

    def nowhere(self) -> dict[str, Any]:
        """Take note that the page's Jupyter server has no redirect route."""
        self._loop.call_soon_threadsafe(_set, self.redirect, None)
        return {}

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        """Return the methods that a page may call."""
        return {"paste": self.paste, "cancel": self.cancel, "nowhere": self.nowhere}

    def handle(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Reply to a message of a page through its Jupyter server: `{result}` or `{error: {message, hint}}`."""
        if message.get("call") == "here":
            return {"result": self.here(message.get("origin", ""), message.get("base_url", ""))}
        try:
            return {"result": self.calls()[str(message.get("call"))](**message.get("args") or {})}
        except RolloutlabError as error:
            return {"error": {"message": error.message, "hint": error.hint}}
        except (KeyError, TypeError):
            return {"error": {"message": "unknown call, or wrong arguments", "hint": None}}

    def _changed(self) -> None:
        for changed in list(self._listeners):
            changed()


def _set(future: "asyncio.Future[Any]", value: object) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
