"""Asks a person, through whatever front end there is, and waits until the first right answer has come back."""

import asyncio
import errno
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rolloutlab.auth.prompt import Prepare, PromptTimeoutError
from rolloutlab.auth.redirect import ipc as handover
from rolloutlab.auth.redirect import loopback
from rolloutlab.auth.redirect.login import Login, LoginState
from rolloutlab.auth.redirect.route import RedirectRoute
from rolloutlab.errors import RolloutlabError, SignInError

LIFETIME = 600.0
"""Seconds in which a sign-in has to be answered."""
PATIENCE = 8.0
"""Seconds in which a page has to say where it is; it may have to load first."""


class FrontEnd(Protocol):
    """Shows sign-ins to a person."""

    @property
    def way(self) -> RedirectRoute:
        """How answers come back from where the browser is."""

    def show(self, login: Login) -> None:
        """Show this one from now on, however it goes on. It is called on the loop and returns at once."""

    def tick(self) -> None:
        """Called over and over by the thread that waits: the one that runs cells, and may display."""


class Broker:
    """The `Consent` of this process: any number of sign-ins at once, each with a way back of its own.

    front_end: shows them. seconds: in which an answer has to come.
    patience: seconds in which a page has to say where it is. places: folders for sockets.
    """

    def __init__(
        self,
        front_end: FrontEnd,
        *,
        seconds: float = LIFETIME,
        patience: float = PATIENCE,
        places: Sequence[Path] | None = None,
    ) -> None:
        self._front_end = front_end
        self._seconds = seconds
        self._patience = patience
        self._places = handover.folders() if places is None else list(places)
        self._newest: dict[str, Login] = {}
        self._ticking = threading.Lock()

    def tick(self) -> None:
        """For `Http.run(..., tick)`: lets the front end show what there is to show, in one thread at a time."""
        if self._ticking.acquire(blocking=False):
            try:
                self._front_end.tick()
            finally:
                self._ticking.release()

    async def __call__(self, server: str, prepare: Prepare, port: int | None = None) -> Mapping[str, str]:
        """The parameters of the first answer whose state is right, also of one that says `error`.

        port: of this machine, to which answers have to come, whatever the front end; 0 is any, where no page is, at an
        address that is known but for it.

        Raises:
            Unanswered: it was cancelled, or nobody answered in time. SignInError: there is nobody to ask.
        """
        if self._front_end.way is RedirectRoute.NONE:
            said = f"signing in to {server} wants a person at a browser; nobody is here"
            raise SignInError(f"{said}: do it first in another notebook of this lab", hint=f"%login {server} --keep")
        login = self._newest[server] = Login(server, self._seconds)
        try:
            async with AsyncExitStack() as stack:
                return await self._answered(login, prepare, port, stack)
        except RolloutlabError as error:
            login.settle(LoginState.FAILED, error.message)
            raise
        finally:
            login.settle(LoginState.CANCELLED)

    def settled(self, server: str, well: bool, note: str) -> None:
        """Tell the front end what came of the answer."""
        if login := self._newest.pop(server, None):
            login.settle(LoginState.SIGNED_IN if well else LoginState.FAILED, note)

    @property
    def busy(self) -> bool:
        """Whether somebody waits for what comes of a question."""
        return bool(self._newest)

    async def _answered(
        self, login: Login, prepare: Prepare, port: int | None, stack: AsyncExitStack
    ) -> Mapping[str, str]:
        """Show it, find the way back, open it, and wait."""
        await self._open_door(login.ticket, login.hear, stack)
        self._front_end.show(login)
        redirect = await self._way_back(login, port, stack)
        if login.answer.done():  # cancelled while a page was looked for
            return login.answer.result()
        pending = await prepare(redirect)
        await self._open_door(pending.state, lambda told: {"taken": login.offer(str(told.get("query")))}, stack)
        login.ask(pending)
        try:
            return await asyncio.wait_for(asyncio.shield(login.answer), self._seconds)
        except TimeoutError:
            if not login.settle(LoginState.EXPIRED):  # answered in the same moment
                return await login.answer
            message = f"nobody has answered the sign-in at {login.server} within {_duration(self._seconds)}"
            raise PromptTimeoutError(message, hint=f"%login {login.server}") from None

    async def _way_back(self, login: Login, port: int | None, stack: AsyncExitStack) -> str:
        """The redirect URI: of the page's Jupyter server if it can hand answers over, else of a listener."""
        way = self._front_end.way
        redirect = await self._page(login) if way is RedirectRoute.PAGE and not port else None
        if redirect:
            login.way = RedirectRoute.PAGE
            return redirect
        login.way = RedirectRoute.PASTE if way is RedirectRoute.PASTE else RedirectRoute.LOOPBACK
        try:
            return await stack.enter_async_context(loopback.listening(login.offer, port))
        except OSError as error:
            raise _no_listener(login.server, port or 0, error) from error

    async def _page(self, login: Login) -> str | None:
        """What the page says, or that the sign-in is given up; None where it says nothing in time."""
        either: set[asyncio.Future[Any]] = {login.redirect, login.answer}
        await asyncio.wait(either, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED)
        return login.redirect.result() if login.redirect.done() else None

    async def _open_door(self, secret: str, hear: handover.Hear, stack: AsyncExitStack) -> None:
        """Be there for the Jupyter server under this secret; where there are no such sockets, other ways are left."""
        if self._front_end.way is RedirectRoute.PAGE:
            with suppress(OSError):
                await stack.enter_async_context(handover.listening(secret, hear, self._places))


def _no_listener(server: str, port: int, error: OSError) -> SignInError:
    why = "another sign-in or program has it" if error.errno == errno.EADDRINUSE else error.strerror
    other = port + 1 if port < 65535 else port - 1
    said = f"answers cannot come to port {port} of this machine: {why}; end that, or register another"
    return SignInError(said, hint=f"%login {server} --redirect-port {other}")


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


_WATCHED = 5.0
"""Seconds in which the thread of a cell that waits has looked, several times."""


class Brokers:
    """The `Consent` of a notebook. make: a broker for how the notebook is shown now; whether addresses are pasted."""

    def __init__(self, make: Callable[[bool], Broker]) -> None:
        self._make = make
        self._known: dict[bool, Broker] = {}
        self._looking = 0
        self._awaited: list[Callable[[], object]] = []

    def of(self, *, paste: bool) -> Broker:
        """The one that asks already, else a new one."""
        if paste not in self._known or not self._known[paste].busy:
            self._known[paste] = self._make(paste)
        return self._known[paste]

    def tick(self) -> None:
        """For the thread of a cell that waits, as `Broker.tick`."""
        self._looking += 1
        try:
            for seen in list(self._awaited):
                seen()
            for broker in list(self._known.values()):
                broker.tick()
        finally:
            self._looking -= 1

    async def __call__(self, server: str, prepare: Prepare, port: int | None = None) -> Mapping[str, str]:
        """Ask on the way, where a cell waits below which it can be shown.

        Raises:
            As `Broker`; SignInError also when no cell waits.
        """
        if not await self._watched():
            said = f"{server} wants you to allow more, and no cell waits that could ask you"
            raise SignInError(said, hint=f"%login {server}")
        return await self.of(paste=False)(server, prepare, port)

    def settled(self, server: str, well: bool, note: str) -> None:
        """Tell who asked what came of it."""
        for broker in list(self._known.values()):
            broker.settled(server, well, note)

    async def _watched(self) -> bool:
        """Whether a thread looks now, or soon; one may be held by a question of its own."""
        watched = asyncio.Event()
        seen = partial(asyncio.get_running_loop().call_soon_threadsafe, watched.set)
        self._awaited.append(seen)
        try:
            await asyncio.wait_for(watched.wait(), 0 if self._looking else _WATCHED)
        except TimeoutError:
            return self._looking > 0
        finally:
            self._awaited.remove(seen)
        return True
