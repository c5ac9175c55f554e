"""Choice of the front end that shows sign-ins: a widget, text, a program, or none."""

import os
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any

from rolloutlab.auth.redirect.broker import Broker, FrontEnd
from rolloutlab.auth.redirect.login import Login
from rolloutlab.auth.redirect.route import FrontEndContext, RedirectRoute, choose_route
from rolloutlab.errors import InputError, SignInError
from rolloutlab.widgets.login.console import ConsoleFrontEnd, own_terminal
from rolloutlab.widgets.login.notebook import NotebookFrontEnd, ask_for_address


class ProgramFrontEnd:
    """Passes each address to a program on its standard input, because other users can read command lines.

    command: the program, as it is typed in a shell. It has to end on the redirect URI, as a browser does.
    """

    way = RedirectRoute.LOOPBACK

    def __init__(self, command: str) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise InputError(f"ROLLOUTLAB_BROWSER cannot be read: {error}", hint="ROLLOUTLAB_BROWSER=PROGRAM") from None
        self._to_open: deque[Login] = deque()

    def show(self, login: Login) -> None:
        login.listen(lambda: self._to_open.append(login))

    def tick(self) -> None:
        while self._to_open:
            login = self._to_open.popleft()
            if url := login.url:
                program = self._start(url)
                threading.Thread(target=_wait, args=(program, login), name="rolloutlab-browser", daemon=True).start()

    def _start(self, url: str) -> "subprocess.Popen[str]":
        try:
            program = subprocess.Popen(self._command, stdin=subprocess.PIPE, text=True)
        except OSError as error:
            why = f"{self._command[0]}, which should play the browser, cannot be run: {error.strerror}"
            raise SignInError(why, hint="ROLLOUTLAB_BROWSER=PROGRAM") from error
        assert program.stdin, "opened as a pipe"
        with suppress(BrokenPipeError), program.stdin as pipe:  # it may have ended by then; closing writes what is left
            pipe.write(url)
        return program


def _wait(program: "subprocess.Popen[str]", login: Login) -> None:
    """Cancel the sign-in if the program fails. If it succeeds, the answer arrives by itself."""
    if program.wait():
        login.cancel()


_CONSOLES = {"jupyter-console", "jupyter_console", "jupyter-qtconsole", "qtconsole"}


class NoFrontEnd:
    """For processes without a user: a notebook that a program runs, a script without a terminal."""

    way = RedirectRoute.NONE

    def show(self, login: Login) -> None:
        """Show nothing."""

    def tick(self) -> None:
        """Do nothing."""


def context_of(shell: Any, environment: Mapping[str, str] = os.environ) -> FrontEndContext:
    """Find out which front end this process has. shell: IPython's, or None in a script.

    A program that runs a notebook sends `allow_stdin: false` with every cell (nbclient does); ipykernel keeps it for
    the cell that is running.
    """
    kernel = getattr(shell, "kernel", None)
    asks = bool(getattr(kernel, "_allow_stdin", False)) if kernel else sys.stdin is not None and sys.stdin.isatty()
    names = frozenset(name for name in getattr(shell, "user_ns", ()) if name.startswith("__vsc"))
    return FrontEndContext(kernel is not None, asks, environment, names, kernel is not None and is_console(_parent()))


def is_console(command: Sequence[str]) -> bool:
    """Whether a command line is that of a Jupyter console, which shows no widgets and saves no outputs.

    A kernel does not know its front end; consoles start their own kernel, so it can look at its parent process.
    """
    return any(PurePath(word).stem in _CONSOLES for word in command[:3])


def _parent() -> list[str]:
    """Return the command line of the parent process; empty if it cannot be read."""
    try:
        import psutil  # type: ignore[import-untyped]  # it comes with ipykernel
    except ImportError:
        return []
    try:
        parent = psutil.Process().parent()
        return list(parent.cmdline()) if parent else []
    except (OSError, psutil.Error):
        return []


def front_end(around: FrontEndContext, *, paste: bool = False) -> FrontEnd:
    """Choose the front end for this context. It is called while the cell runs that signs in.

    paste: prompt for the address below the cell, for browsers that reach neither a page nor a listener.
    """
    if program := around.environment.get("ROLLOUTLAB_BROWSER", "").strip():
        return ProgramFrontEnd(program)
    route = choose_route(around)
    if route is RedirectRoute.NONE:
        return NoFrontEnd()
    asks = ask_for_address if paste else None
    if around.console:
        return ConsoleFrontEnd(ask=asks)
    if not around.kernel:
        return ConsoleFrontEnd(terminal=own_terminal(), ask=asks)
    return NotebookFrontEnd(RedirectRoute.PASTE if paste else route)


def new_broker(paste: bool) -> Broker:
    """Make a broker with the front end of the cell that is running. paste: see `front_end`."""
    return Broker(front_end(_context(), paste=paste))


def can_ask() -> bool:
    """Whether the cell that is running can prompt for a line of text."""
    return _context().asks


def _context() -> FrontEndContext:
    from IPython import get_ipython  # not at the top: a script may do without it

    return context_of(get_ipython())
