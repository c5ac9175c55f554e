"""Sign-ins through a program in place of a browser: on machines without one, and in tests."""

import shlex
import subprocess
import threading
from collections import deque
from contextlib import suppress

from rolloutlab.auth.redirect.login import Login
from rolloutlab.auth.redirect.route import RedirectRoute
from rolloutlab.errors import InputError, SignInError


class ProgramFrontEnd:
    """Passes each address to a program on its standard input: other users can read a command line.

    command: as a shell would be given it. The program has to end on the redirect URI, as a browser does.
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
                program = self._started(url)
                threading.Thread(target=_wait, args=(program, login), name="rolloutlab-browser", daemon=True).start()

    def _started(self, url: str) -> "subprocess.Popen[str]":
        try:
            program = subprocess.Popen(self._command, stdin=subprocess.PIPE, text=True)
        except OSError as error:
            why = f"{self._command[0]}, which should play the browser, cannot be run: {error.strerror}"
            raise SignInError(why, hint="ROLLOUTLAB_BROWSER=PROGRAM") from error
        assert program.stdin, "opened as a pipe"
        with program.stdin as pipe, suppress(BrokenPipeError):  # it may have ended by then
            pipe.write(url)
        return program


def _wait(program: "subprocess.Popen[str]", login: Login) -> None:
    """Cancel the sign-in if the program fails; success shows by the answer."""
    if program.wait():
        login.cancel()
