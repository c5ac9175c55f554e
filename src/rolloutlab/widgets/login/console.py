"""Sign-ins in a terminal or console: a link is printed, and the address that the browser ends on can be pasted."""

import os
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO

from rolloutlab.auth.redirect.login import Login
from rolloutlab.auth.redirect.route import RedirectRoute
from rolloutlab.errors import InputError
from rolloutlab.widgets.login import render

_MAX_LINE = 16 * 1024
PASTE = "Or paste the address that the browser ends on (it is not shown), and press Enter."


class ConsoleFrontEnd:
    """Prints each sign-in, and waits for an address to be pasted.

    say: prints a text. terminal: opens the terminal to read from. ask: without a terminal, prompts for the address, and
    returns once it is there.
    """

    way = RedirectRoute.LOOPBACK

    def __init__(
        self,
        say: Callable[[str], None] = print,
        terminal: Callable[[], IO[bytes]] | None = None,
        ask: Callable[[Login], None] | None = None,
    ) -> None:
        self._say = say
        self._terminal = terminal
        self._ask_for_address = ask
        self._news: deque[Callable[[], None]] = deque()
        self._prompts: dict[Login, HiddenLines] = {}
        self._waiting: deque[Login] = deque()
        """Sign-ins that wait until the one before is over: two that switch the echo off would undo each other."""

    def show(self, login: Login) -> None:
        login.listen(lambda: self._on_change(login))

    def tick(self) -> None:
        while self._news:
            self._news.popleft()()

    def _on_change(self, login: Login) -> None:
        if login.url:
            self._news.append(lambda: self._ask(login))
        elif lines := self._prompts.pop(login, None):
            lines.give_up()
            while self._waiting:
                self._news.append(partial(self._ask, self._waiting.popleft()))

    def _ask(self, login: Login) -> None:
        if not (url := login.url):
            return
        if self._prompts:
            self._waiting.append(login)
            return
        facts = [f"  {name}: {value}" for name, value in render.facts(login.public_state())]
        self._say("\n".join(["Sign in:", *facts, "Open this in a browser on this machine:", f"  {url}"]))
        if self._terminal:
            self._say(PASTE)
            pasted = partial(partial, self._paste, login)
            self._prompts[login] = HiddenLines(self._terminal, lambda text: self._news.append(pasted(text)))
            if not login.is_open:  # it was answered before there was a prompt to give up
                self._on_change(login)
        elif self._ask_for_address:
            self._ask_for_address(login)
        else:
            self._say(f"If it is on another machine, interrupt this and type: %login {login.server} --paste")

    def _paste(self, login: Login, text: str) -> None:
        if not login.is_open:
            return
        try:
            login.paste(text)
        except InputError as error:
            self._say(error.message)


class HiddenLines:
    """Reads lines from a terminal without echo, as `getpass` does, until it is given up.

    on_line: called with each line, in the thread that reads.
    """

    def __init__(self, terminal: Callable[[], IO[bytes]], on_line: Callable[[str], object]) -> None:
        self._given_up, self._giving_up = socket.socketpair()
        self._on_line = on_line
        self._thread = threading.Thread(target=self._read, args=(terminal,), name="rolloutlab-paste", daemon=True)
        self._thread.start()

    def give_up(self) -> None:
        """Stop reading, and let the terminal echo again."""
        with self._giving_up, suppress(OSError):  # the thread may have ended by itself
            self._giving_up.send(b".")
        self._thread.join()

    def _read(self, open_terminal: Callable[[], IO[bytes]]) -> None:
        with self._given_up, suppress(OSError), open_terminal() as terminal, _hide_input(terminal):
            while line := self._line(terminal):
                if line.strip():
                    self._on_line(line.decode(errors="replace"))

    def _line(self, terminal: IO[bytes]) -> bytes:
        """Read the next line; empty at the end of the file or once reading is given up."""
        ready, _, _ = select.select([terminal.fileno(), self._given_up.fileno()], [], [])
        return b"" if self._given_up.fileno() in ready else os.read(terminal.fileno(), _MAX_LINE)


def own_terminal() -> Callable[[], IO[bytes]] | None:
    """Return what opens the terminal of this process; None if there is none that can be read without echo."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        return None
    return lambda: open("/dev/tty", "rb", buffering=0)  # noqa: PTH123 - closed by its caller


@contextmanager
def _hide_input(terminal: IO[bytes]) -> Iterator[None]:
    """Switch the echo of a terminal off in a context."""
    import termios

    descriptor = terminal.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = [*before]
    quiet[3] = before[3] & ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSAFLUSH, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
