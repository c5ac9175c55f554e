"""A sign-in as a notebook shows it, and the front end that shows sign-ins so."""

import _thread
import asyncio
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from getpass import getpass
from typing import Any

from rolloutlab.auth.redirect.login import Login
from rolloutlab.auth.redirect.route import RedirectRoute
from rolloutlab.errors import InputError
from rolloutlab.sanitize import without_mathjax
from rolloutlab.widgets.base import NotebookView
from rolloutlab.widgets.login import render as shown

SOONEST, LATEST = 0.05, 1.0
"""Seconds between what is said to a page that may not have been there the last time: at first, and later."""


class LoginView(NotebookView):
    """One sign-in. What is secret about it goes to the page in messages, which nobody saves; never in a trait."""

    module = "login"

    def __init__(self, login: Login) -> None:
        self._login = login
        login.listen(self._changed)

    def state(self) -> Mapping[str, Any]:
        told = self._login.told()
        facts = [list(fact) for fact in shown.facts(told)]
        return {"facts": facts, "standing": told["standing"], "words": shown.standing(told), "way": told["way"]}

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return self._login.calls()

    def open_door(self) -> None:
        """Tell the page by which ticket the kernel is found, also while it is busy, and what there is to open."""
        if self._login.is_open:
            minutes = self._login.minutes
            self.push("door", ticket=self._login.ticket, url=self._login.url, minutes=minutes)

    def _changed(self) -> None:
        """On any thread: pages that are open, and those that open later, show how it stands."""
        self.renew()
        self.open_door()

    def __repr__(self) -> str:
        return shown.text(self._login.told())

    def _repr_html_(self) -> str:
        return without_mathjax(shown.html(self._login.told()))


class NotebookFrontEnd:
    """Shows each sign-in as a widget below the cell that waits for it."""

    def __init__(self, way: RedirectRoute) -> None:
        self._way = way
        self._to_show: deque[tuple[Login, LoginView]] = deque()
        self._pulses: set[asyncio.Task[None]] = set()

    @property
    def way(self) -> RedirectRoute:
        return self._way

    def show(self, login: Login) -> None:
        view = LoginView(login)
        self._to_show.append((login, view))
        pulse = asyncio.get_running_loop().create_task(_pulse(login, view))
        self._pulses.add(pulse)
        pulse.add_done_callback(self._pulses.discard)

    def tick(self) -> None:
        from IPython.display import display

        if not self._to_show:
            return
        login, view = self._to_show[0]
        if self._way is not RedirectRoute.PASTE:
            self._to_show.popleft()
            display(view)  # type: ignore[no-untyped-call]
        elif login.url or not login.is_open:  # then a question below it holds the thread that runs cells
            self._to_show.popleft()
            display(view)  # type: ignore[no-untyped-call]
            ask_for_address(login)


def ask_for_address(login: Login) -> None:
    """Ask for the address where no page reaches a busy kernel, until it is typed or the sign-in is over otherwise."""
    asking = _Asking(login)
    prompt = "the address that you end on (Enter alone gives up): "
    while login.is_open and (text := asking(prompt)):
        try:
            login.paste(text)
        except InputError as error:
            prompt = f"{error.message}; once more: "
    login.cancel()


class _Asking:
    """`getpass`, as what is typed must not be saved; it gives nothing once the sign-in is over, however that ends."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._lock = threading.Lock()
        self._asks = False
        login.listen(self._changed)

    def __call__(self, prompt: str) -> str:
        if threading.current_thread() is not threading.main_thread():  # a subshell's, which gets no interrupts
            return getpass(prompt)
        try:
            with _interruptible():
                try:
                    self._asks = True
                    return getpass(prompt) if self._login.is_open else ""
                finally:
                    with self._lock:
                        self._asks = False
        except KeyboardInterrupt:
            if self._login.is_open:  # then it was the person
                raise
            return ""

    def _changed(self) -> None:
        """On any thread: nothing but an interrupt ends the question of a kernel."""
        with self._lock:
            if self._asks and not self._login.is_open:
                self._asks = False
                _thread.interrupt_main()


@contextmanager
def _interruptible() -> Iterator[None]:
    """An interrupt raises KeyboardInterrupt here, whatever else it does around."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def _pulse(login: Login, view: LoginView) -> None:
    """A page may be loaded late, or again: what it must know is said until the sign-in has ended."""
    pause = SOONEST
    while login.is_open:
        view.open_door()
        await asyncio.sleep(pause)
        pause = min(1.25 * pause, LATEST)
