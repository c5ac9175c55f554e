"""Services forked from a process whose imports are done.

A start of the service imports torch and transformers, which is six seconds of processor time. What a test says of a
service that runs does not depend on them, so a fork of one process that has imported them stands in for its start.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import IO, Any

import pytest

from rolloutlab.__main__ import main


def forkserver() -> Any:
    """The one process that this worker forks from; it starts at the first fork."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rolloutlab.service.serve"])
    return context


class Forked:
    """A `subprocess.Popen` of `python ... -m rolloutlab ARGUMENTS`, forked.

    stdout, stderr: an open file or PIPE. preexec_fn: called in the fork before anything else; it is pickled.
    """

    stdout: IO[str] | None = None
    stderr: IO[str] | None = None

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        start_new_session: bool = False,
        text: bool = True,
        env: Mapping[str, str] | None = None,
        preexec_fn: Callable[[], object] | None = None,
    ) -> None:
        self.returncode: int | None = None
        arguments = list(command[command.index("rolloutlab") + 1 :])
        mine, theirs = zip(_ends(stdout, 1), _ends(stderr, 2), strict=True)
        environment = dict(os.environ if env is None else env)
        self._process = forkserver().Process(
            target=_serve, args=(arguments, environment, theirs, start_new_session, preexec_fn), daemon=True
        )
        self._process.start()
        for end in theirs:
            end.close()
        self.stdout, self.stderr = mine
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        self.returncode = self._process.exitcode
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote to its pipes until it ended."""
        streams = [stream.read() if stream else "" for stream in (self.stdout, self.stderr)]
        for stream in filter(None, (self.stdout, self.stderr)):
            stream.close()
        assert self.wait(timeout) is not None, "it does not end"
        return streams[0], streams[1]


def fork_embedded(patch: pytest.MonkeyPatch) -> None:
    """Has `Embedded` fork the services that it starts."""
    patch.setattr("rolloutlab.api.embedded.subprocess", SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL))


def _ends(stream: Any, inherited: int) -> tuple[IO[str] | None, Connection]:
    """Where this process reads a stream of the child, and what the child writes to; a connection can be sent to it."""
    if stream != subprocess.PIPE:
        return None, Connection(os.dup(inherited if stream is None else stream.fileno()), readable=False)
    reads, writes = os.pipe()
    return os.fdopen(reads), Connection(writes, readable=False)


def _serve(
    arguments: list[str],
    environment: Mapping[str, str],
    outputs: Sequence[Connection],
    leads: bool,
    first: Callable[[], object] | None,
) -> None:
    if first:
        first()
    os.environ.clear()
    os.environ.update(environment)
    for number, output in enumerate(outputs, 1):
        os.dup2(output.fileno(), number)
        output.close()
    if leads:
        os.setsid()
    sys.exit(main(arguments))
