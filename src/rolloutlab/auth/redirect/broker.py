"""Broker: shows a sign-in through the front end, and waits for the first valid authorization response."""

import asyncio
import errno
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rolloutlab.auth.prompt import Prepare, PromptTimeoutError
from rolloutlab.auth.redirect import ipc, loopback
from rolloutlab.auth.redirect.login import Login, LoginState
from rolloutlab.auth.redirect.route import RedirectRoute
from rolloutlab.errors import RolloutlabError, SignInError

LIFETIME = 600.0
"""Seconds until a sign-in expires."""
PAGE_TIMEOUT = 8.0
"""Seconds for a page, which may have to load first, to report the URL of its Jupyter server."""


class FrontEnd(Protocol):
    """Shows sign-ins to a person."""

    @property
    def way(self) -> RedirectRoute:
        """How the response comes back from the browser."""

    def show(self, login: Login) -> None:
        """Show a sign-in and its changes. Called on the loop; must not block."""

    def tick(self) -> None:
        """Called repeatedly by the waiting thread, which runs cells and may display."""


class Broker:
    """A `UserPrompt` for any number of concurrent sign-ins.

    Args:
        front_end: Shows the sign-ins.
        seconds: Seconds until a sign-in expires.
        patience: Seconds for a page to report its URL.
        places: Folders for sockets; None takes those of this system.
    """

    def __init__(
        self,
        front_end: FrontEnd,
        *,
        seconds: float = LIFETIME,
        patience: float = PAGE_TIMEOUT,
        places: Sequence[Path] | None = None,
    ) -> None:
        self._front_end = front_end
        self._seconds = seconds
        self._patience = patience
        self._places = ipc.folders() if places is None else list(places)
        self._newest: dict[str, Login] = {}
        self._ticking = threading.Lock()

    def tick(self) -> None:
        """Let the front end display, in one thread at a time. It is the `tick` for `HttpClient.run`."""
        if self._ticking.acquire(blocking=False):
            try:
                self._front_end.tick()
            finally:
                self._ticking.release()

    async def __call__(self, server: str, prepare: Prepare, port: int | None = None) -> Mapping[str, str]:
        """Return the parameters of the first response with the right state; see `UserPrompt`.

        port: the port of the redirect URI on this machine. With 0 or None the response goes to the Jupyter server of
            the page if that can take it, else to any free port.
        """
        if self._front_end.way is RedirectRoute.NONE:
            message = f"signing in to {server} requires a person at a browser, which this front end cannot reach"
            raise SignInError(f"{message}: do it first in another notebook of this lab", hint=f"%login {server} --keep")
        login = self._newest[server] = Login(server, self._seconds)
        try:
            async with AsyncExitStack() as stack:
                return await self._wait_for_response(login, prepare, port, stack)
        except RolloutlabError as error:
            login.settle(LoginState.FAILED, error.message)
            raise
        finally:
            login.settle(LoginState.CANCELLED)

    def show_outcome(self, server: str, well: bool, note: str) -> None:
        """Show the outcome of a sign-in."""
        if login := self._newest.pop(server, None):
            login.settle(LoginState.SIGNED_IN if well else LoginState.FAILED, note)

    @property
    def busy(self) -> bool:
        """Whether a sign-in is pending."""
        return bool(self._newest)

    async def _wait_for_response(
        self, login: Login, prepare: Prepare, port: int | None, stack: AsyncExitStack
    ) -> Mapping[str, str]:
        await self._listen(login.ticket, login.handle, stack)
        self._front_end.show(login)
        redirect = await self._choose_redirect_uri(login, port, stack)
        if login.answer.done():  # cancelled meanwhile
            return login.answer.result()
        request = await prepare(redirect)
        await self._listen(request.state, lambda message: {"taken": login.offer(str(message.get("query")))}, stack)
        login.ask(request)
        try:
            return await asyncio.wait_for(asyncio.shield(login.answer), self._seconds)
        except TimeoutError:
            if not login.settle(LoginState.EXPIRED):  # the response came at the same time
                return await login.answer
            message = f"the sign-in at {login.server} was not answered within {_duration(self._seconds)}"
            raise PromptTimeoutError(message, hint=f"%login {login.server}") from None

    async def _choose_redirect_uri(self, login: Login, port: int | None, stack: AsyncExitStack) -> str:
        """Choose the redirect URI: at the page's Jupyter server if that can take the response, else at a listener."""
        route = self._front_end.way
        redirect = await self._wait_for_page(login) if route is RedirectRoute.PAGE and not port else None
        if redirect:
            login.way = RedirectRoute.PAGE
            return redirect
        login.way = RedirectRoute.PASTE if route is RedirectRoute.PASTE else RedirectRoute.LOOPBACK
        try:
            return await stack.enter_async_context(loopback.listening(login.offer, port))
        except OSError as error:
            raise _no_listener(login.server, port or 0, error) from error

    async def _wait_for_page(self, login: Login) -> str | None:
        """Wait for the redirect URI that the page reports. None if it reports none in time, or if the user cancels."""
        either: set[asyncio.Future[Any]] = {login.redirect, login.answer}
        await asyncio.wait(either, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED)
        return login.redirect.result() if login.redirect.done() else None

    async def _listen(self, secret: str, handler: ipc.Handler, stack: AsyncExitStack) -> None:
        """Listen on a Unix socket named by this secret, for a page. Without Unix sockets nothing listens here.

        The page then reports no redirect URI, and `_choose_redirect_uri` takes another route.
        """
        if self._front_end.way is RedirectRoute.PAGE:
            with suppress(OSError):
                await stack.enter_async_context(ipc.listening(secret, handler, self._places))


def _no_listener(server: str, port: int, error: OSError) -> SignInError:
    reason = "it is in use by another sign-in or program" if error.errno == errno.EADDRINUSE else error.strerror
    other = port + 1 if port < 65535 else port - 1
    message = f"cannot listen on port {port} of this machine: {reason}; end that, or register another port"
    return SignInError(message, hint=f"%login {server} --redirect-port {other}")


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


_TICK_TIMEOUT = 5.0  # seconds within which a waiting cell's thread ticks several times


class Brokers:
    """The `UserPrompt` of a notebook.

    make: makes a broker for the present front end. Its argument tells whether the user pastes the URL.
    """

    def __init__(self, make: Callable[[bool], Broker]) -> None:
        self._make = make
        self._known: dict[bool, Broker] = {}
        self._ticking = 0
        self._awaited: list[Callable[[], object]] = []

    def of(self, *, paste: bool) -> Broker:
        """Return the broker with a pending sign-in, else a new one."""
        if paste not in self._known or not self._known[paste].busy:
            self._known[paste] = self._make(paste)
        return self._known[paste]

    def tick(self) -> None:
        """Let all brokers display, as `Broker.tick` does."""
        self._ticking += 1
        try:
            for callback in list(self._awaited):
                callback()
            for broker in list(self._known.values()):
                broker.tick()
        finally:
            self._ticking -= 1

    async def __call__(self, server: str, prepare: Prepare, port: int | None = None) -> Mapping[str, str]:
        """Ask for a step-up below the waiting cell. SignInError, too, if no cell waits."""
        if not await self._ticks():
            message = f"{server} requires more scopes, and no cell waits that could ask for them"
            raise SignInError(message, hint=f"%login {server}")
        return await self.of(paste=False)(server, prepare, port)

    def show_outcome(self, server: str, well: bool, note: str) -> None:
        for broker in list(self._known.values()):
            broker.show_outcome(server, well, note)

    async def _ticks(self) -> bool:
        """Whether a thread ticks now or soon. A thread within a tick counts: a prompt may keep it there."""
        ticked = asyncio.Event()
        callback = partial(asyncio.get_running_loop().call_soon_threadsafe, ticked.set)
        self._awaited.append(callback)
        try:
            await asyncio.wait_for(ticked.wait(), 0 if self._ticking else _TICK_TIMEOUT)
        except TimeoutError:
            return self._ticking > 0
        finally:
            self._awaited.remove(callback)
        return True
