"""Sign-ins in a notebook: a widget per sign-in, and the front end that displays it."""

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
from rolloutlab.widgets.base import NotebookView
from rolloutlab.widgets.html import for_notebook
from rolloutlab.widgets.login import render

MIN_PAUSE, MAX_PAUSE = 0.05, 1.0
"""Seconds between messages to pages, at first and at most: a page may have been loaded since the last message."""


class LoginView(NotebookView):
    """One sign-in. Its secrets go to the page in messages, which are not saved; never in a trait."""

    module = "login"

    def __init__(self, login: Login) -> None:
        self._login = login
        login.listen(self._on_change)

    def state(self) -> Mapping[str, Any]:
        login = self._login.public_state()
        facts = [list(fact) for fact in render.facts(login)]
        return {"facts": facts, "standing": login["standing"], "words": render.status(login), "way": login["way"]}

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return self._login.calls()

    def open_door(self) -> None:
        """Send the page the URL to open, and the ticket by which it reaches the kernel while that is busy."""
        if self._login.is_open:
            minutes = self._login.minutes
            self.push("door", ticket=self._login.ticket, url=self._login.url, minutes=minutes)

    def _on_change(self) -> None:
        """Have open pages, and pages that open later, show the new state. Called on any thread."""
        self.renew()
        self.open_door()

    def __repr__(self) -> str:
        return render.text(self._login.public_state())

    def _repr_html_(self) -> str:
        return for_notebook(render.html(self._login.public_state()))


class NotebookFrontEnd:
    """Shows each sign-in as a widget below the cell that waits for it."""

    def __init__(self, way: RedirectRoute) -> None:
        self.way = way
        self._to_show: deque[tuple[Login, LoginView]] = deque()
        self._pulses: set[asyncio.Task[None]] = set()

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
        (login, view), paste = self._to_show[0], self.way is RedirectRoute.PASTE
        if paste and login.is_open and not login.url:  # the prompt below would block the thread that runs cells
            return
        self._to_show.popleft()
        display(view)  # type: ignore[no-untyped-call]
        if paste:
            ask_for_address(login)


def ask_for_address(login: Login) -> None:
    """Prompt for the address, for pages that cannot reach a busy kernel, until it is typed or the sign-in has ended."""
    read = _AddressPrompt(login)
    prompt = "the address that you end on (Enter alone gives up): "
    while login.is_open and (text := read(prompt)):
        try:
            login.paste(text)
        except InputError as error:
            prompt = f"{error.message}; once more: "
    login.cancel()


class _AddressPrompt:
    """Prompts by `getpass`, since what is typed must not be saved. Returns "" once the sign-in has ended."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._lock = threading.Lock()
        self._is_prompting = False
        login.listen(self._on_change)

    def __call__(self, prompt: str) -> str:
        if threading.current_thread() is not threading.main_thread():  # a subshell's, which gets no interrupts
            return getpass(prompt)
        try:
            with _raise_interrupts():
                try:
                    self._is_prompting = True
                    return getpass(prompt) if self._login.is_open else ""
                finally:
                    with self._lock:
                        self._is_prompting = False
        except KeyboardInterrupt:
            if self._login.is_open:  # then the interrupt is not from `_on_change`, but from the person
                raise
            return ""

    def _on_change(self) -> None:
        """End the prompt, by an interrupt, as nothing else ends a prompt of a kernel. Called on any thread."""
        with self._lock:
            if self._is_prompting and not self._login.is_open:
                self._is_prompting = False
                _thread.interrupt_main()


@contextmanager
def _raise_interrupts() -> Iterator[None]:
    """Let interrupts raise KeyboardInterrupt in a context, whatever handler is installed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def _pulse(login: Login, view: LoginView) -> None:
    """Repeat the message until the sign-in has ended, because a page may be loaded late, or again."""
    pause = MIN_PAUSE
    while login.is_open:
        view.open_door()
        await asyncio.sleep(pause)
        pause = min(1.25 * pause, MAX_PAUSE)
