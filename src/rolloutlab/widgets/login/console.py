"""Sign-ins where there is only text: the link is printed, and the address that a browser ends on can be pasted."""

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
from rolloutlab.widgets.login import render as shown

_LONGEST = 16 * 1024
PASTE = "Or paste the address that the browser ends on (it is not shown), and press Enter."


class ConsoleFrontEnd:
    """Prints each sign-in, and waits for an address to be pasted.

    say: prints. terminal: opens what is typed into. ask: asks for the address where there is no such, and returns when
    it is there.
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
        self._asked: dict[Login, HiddenLines] = {}
        self._waiting: deque[Login] = deque()
        """Sign-ins that are shown once the one before is over: two that hide what is typed would undo each other."""

    def show(self, login: Login) -> None:
        login.listen(lambda: self._changed(login))

    def tick(self) -> None:
        while self._news:
            self._news.popleft()()

    def _changed(self, login: Login) -> None:
        if login.url:
            self._news.append(lambda: self._ask(login))
        elif asked := self._asked.pop(login, None):
            asked.give_up()
            while self._waiting:
                self._news.append(partial(self._ask, self._waiting.popleft()))

    def _ask(self, login: Login) -> None:
        if not (url := login.url):
            return
        if self._asked:
            self._waiting.append(login)
            return
        facts = [f"  {name}: {value}" for name, value in shown.facts(login.told())]
        self._say("\n".join(["Sign in:", *facts, "Open this in a browser on this machine:", f"  {url}"]))
        if self._terminal:
            self._say(PASTE)
            self._asked[login] = HiddenLines(self._terminal, partial(self._typed, login))
            if not login.is_open:  # answered meanwhile
                self._changed(login)
        elif self._ask_for_address:
            self._ask_for_address(login)
        else:
            self._say(f"If it is on another machine, interrupt this and type: %login {login.server} --paste")

    def _typed(self, login: Login, text: str) -> None:
        self._news.append(lambda: self._pasted(login, text))

    def _pasted(self, login: Login, text: str) -> None:
        if not login.is_open:
            return
        try:
            login.paste(text)
        except InputError as error:
            self._say(error.message)


class HiddenLines:
    """Reads lines from a terminal without showing them, as `getpass` does, until it is given up.

    heard: gets each line, in the thread that reads.
    """

    def __init__(self, terminal: Callable[[], IO[bytes]], heard: Callable[[str], object]) -> None:
        self._given_up, self._giving_up = socket.socketpair()
        self._heard = heard
        self._thread = threading.Thread(target=self._read, args=(terminal,), name="rolloutlab-paste", daemon=True)
        self._thread.start()

    def give_up(self) -> None:
        """Read no more; the terminal shows again what is typed."""
        with self._giving_up, suppress(OSError):  # it may have ended by itself
            self._giving_up.send(b".")
        self._thread.join()

    def _read(self, open_terminal: Callable[[], IO[bytes]]) -> None:
        with self._given_up, suppress(OSError), open_terminal() as terminal, _hidden(terminal):
            while line := self._line(terminal):
                if line.strip():
                    self._heard(line.decode(errors="replace"))

    def _line(self, terminal: IO[bytes]) -> bytes:
        """What is typed next; nothing at the end of it all."""
        ready, _, _ = select.select([terminal.fileno(), self._given_up.fileno()], [], [])
        return b"" if self._given_up.fileno() in ready else os.read(terminal.fileno(), _LONGEST)


def own_terminal() -> Callable[[], IO[bytes]] | None:
    """Opens the terminal of this process; None where there is none that can be read unseen."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        return None
    return lambda: open("/dev/tty", "rb", buffering=0)  # noqa: PTH123 - closed by who opens it


@contextmanager
def _hidden(terminal: IO[bytes]) -> Iterator[None]:
    """What is typed there is not shown meanwhile."""
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
