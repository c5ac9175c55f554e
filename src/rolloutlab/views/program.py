"""Sign-ins where a program plays the browser: on machines without one, and in tests."""

import shlex
import subprocess
from collections import deque

from rolloutlab.auth.broker.login import Login
from rolloutlab.auth.broker.ways import Way
from rolloutlab.errors import SignInError


class ProgramFrontEnd:
    """Hands each address to a program, on its standard input: a command line could be read by others.

    command: as a shell would be given it. The program has to end on the redirect URI, as a browser does.
    """

    way = Way.LOOPBACK

    def __init__(self, command: str) -> None:
        self._command = shlex.split(command)
        self._to_open: deque[Login] = deque()
        self._open: dict[Login, subprocess.Popen[str]] = {}

    def show(self, login: Login) -> None:
        login.listen(lambda: self._to_open.append(login))

    def tick(self) -> None:
        while self._to_open:
            login = self._to_open.popleft()
            if url := login.url:
                self._open[login] = self._started(url)
        for login, program in list(self._open.items()):
            if program.poll() is None:
                continue
            del self._open[login]
            if program.returncode:  # whether it succeeded is seen by the answer
                login.cancel()

    def _started(self, url: str) -> "subprocess.Popen[str]":
        try:
            program = subprocess.Popen(self._command, stdin=subprocess.PIPE, text=True)
        except OSError as error:
            why = f"{self._command[0]}, which should play the browser, cannot be run: {error.strerror}"
            raise SignInError(why, hint="ROLLOUTLAB_BROWSER") from error
        assert program.stdin, "it was asked for"
        program.stdin.write(url)
        program.stdin.close()
        return program
