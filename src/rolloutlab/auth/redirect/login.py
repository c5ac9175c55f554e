"""One sign-in while it is waited for: where it stands, and the one answer that ends it."""

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
    """LOOKING: for the way back, and for what is to be opened. ANSWERED: what comes of the answer is not known yet."""

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
    """One sign-in at `server`. Made on the loop; its methods may be called from any thread.

    way: how the answer comes back, once that is known. note: who is signed in, or what went wrong. ticket: by which a
    page finds it; as secret as the state, and another. Neither they nor the address to open are in its repr.
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
        self.answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # it may be nobody's
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
        """The address to open, while it can be: a secret, as the state is in it."""
        return self._pending.url if self._pending and self.standing is LoginState.WAITING else None

    @property
    def is_open(self) -> bool:
        """Whether an answer is still wanted."""
        return self.standing in _OPEN

    @property
    def minutes(self) -> int:
        """Minutes left to answer, rounded up."""
        return max(0, math.ceil((self._ends - time.monotonic()) / 60))

    def told(self) -> dict[str, Any]:
        """What may be shown, and saved: nothing secret."""
        question = asdict(self.question) if self.question else None
        way = self.way.value if self.way else None
        standing, note = self.standing.value, self.note
        return {"server": self.server, "question": question, "way": way, "standing": standing, "note": note}

    def listen(self, changed: Callable[[], None]) -> None:
        """Have a function called, on any thread, whenever what may be shown is another."""
        self._listeners.append(changed)

    def ask(self, pending: AuthorizationRequest) -> None:
        """Wait for the answer to this request.

        Raises:
            SignInError: what is to be opened is no web page.
        """
        if not pending.url.startswith(("https://", "http://")):
            raise SignInError(f"the sign-in page of {pending.question.authority} has no web address")
        self._pending = pending
        self._ends = time.monotonic() + self._seconds
        self.question = pending.question
        self.settle(LoginState.WAITING)

    def offer(self, query: str) -> bool:
        """Take an answer, if it is the first with the right state; whether it was."""
        answer = parameters(query)
        with self._lock:
            if self.standing is not LoginState.WAITING or not self._pending or not is_for(self._pending.state, answer):
                return False
            denied = answer.get("error") == "access_denied"
            self.standing = LoginState.DENIED if denied else LoginState.ANSWERED
        self._loop.call_soon_threadsafe(_set, self.answer, answer)
        self._changed()
        return True

    def settle(self, standing: LoginState, note: str = "") -> bool:
        """Come to this standing, if that can still be; whether it could."""
        with self._lock:
            if standing not in _NEXT.get(self.standing, ()):
                return False
            self.standing, self.note = standing, note
        self._changed()
        return True

    def paste(self, text: str) -> dict[str, Any]:
        """Take the address that a browser ended on.

        Raises:
            InputError: it is none, or not of this sign-in.
        """
        if not isinstance(text, str) or "state" not in parameters(text):
            raise InputError("this is no address that a sign-in ends on", hint="all of it, from http to the end")
        if not self.offer(text):
            raise InputError("this is of another sign-in, or this one is over", hint=f"%login {self.server}")
        return {}

    def cancel(self) -> dict[str, Any]:
        """Want no answer any more."""
        if self.settle(LoginState.CANCELLED):
            error = PromptTimeoutError(f"signing in to {self.server} was cancelled", hint=f"%login {self.server}")
            self._loop.call_soon_threadsafe(_fail, self.answer, error)
        return {}

    def here(self, origin: str, base_url: str) -> dict[str, Any]:
        """A page says under which address its Jupyter server is."""
        self._loop.call_soon_threadsafe(_set, self.redirect, redirect_uri(str(origin), str(base_url)))
        return {}

    def nowhere(self) -> dict[str, Any]:
        """A page says that its Jupyter server cannot hand over answers."""
        self._loop.call_soon_threadsafe(_set, self.redirect, None)
        return {}

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        """What a page may ask for."""
        return {"paste": self.paste, "cancel": self.cancel, "nowhere": self.nowhere}

    def hear(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to what a page says by way of its Jupyter server: `{result}`, or `{error: {message, hint}}`."""
        if message.get("call") == "here":
            return {"result": self.here(message.get("origin", ""), message.get("base_url", ""))}
        try:
            return {"result": self.calls()[str(message.get("call"))](**message.get("args") or {})}
        except RolloutlabError as error:
            return {"error": {"message": error.message, "hint": error.hint}}
        except (KeyError, TypeError):
            return {"error": {"message": "that is nothing that a sign-in can be asked for", "hint": None}}

    def _changed(self) -> None:
        for changed in list(self._listeners):
            changed()


def _set(future: "asyncio.Future[Any]", value: object) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
