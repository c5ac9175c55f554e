"""Programs in other languages: a command reads the row from standard input, and prints its reward as the last line."""

import asyncio
import json
import os
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from rolloutlab.capture.client import RolloutClient
from rolloutlab.errors import SamplingError
from rolloutlab.sanitize import replace_surrogates

Environment = Callable[[], Mapping[str, str]]
"""Returns the environment variables of a command, without those that hold the address and the key."""
_END = 2.0
"""Seconds within which a killed command has ended."""
_KEPT = 1_000_000
"""The most bytes of an output that are kept, from its end: the last line is the reward."""
_SHOWN = 400
"""Characters of the end of standard error that an error shows."""
_GUARD = 'read -r group && [ "$group" != ended ] && ! read -r end && kill -KILL "-$group"'
"""Shell program that kills a process group when its own standard input ends without a second line.

Only this process holds the write end, so that happens when this process is killed. Not every system signals the death
of a parent, and the signal of Linux reaches only the first process of the group."""


def command_name(command: Sequence[str]) -> str:
    """The name that the collections of a command keep."""
    return replace_surrogates(shlex.join(command))


def command_program(command: Sequence[str], environment: Environment) -> Any:
    """Make a function of row and client that runs a command. environment: called whenever the command starts.

    The command gets OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, and one row as JSON on standard input. If the
    last line that it prints is JSON, that line is the reward: a number, an object of components, or null.
    """
    return partial(_run, tuple(command), environment)


class _Process(asyncio.SubprocessProtocol):
    """Collects what a process prints.

    exited: set when the process has ended. closed: set when every process that held its output has ended, too.
    """

    def __init__(self) -> None:
        self._printed = {1: bytearray(), 2: bytearray()}
        self.exited, self.closed = asyncio.Event(), asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._printed[fd] += data
        del self._printed[fd][:-_KEPT]

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.closed.set()

    def printed(self, fd: int) -> str:
        """The end of what it has printed."""
        return self._printed[fd].decode(errors="replace").strip()


async def _run(command: Sequence[str], environment: Environment, row: Mapping[str, Any], client: RolloutClient) -> Any:
    variables = {**environment(), **_address(client)}
    loop, guard = asyncio.get_running_loop(), await _guard()
    try:
        transport, process = await loop.subprocess_exec(_Process, *command, env=variables, start_new_session=True)
    except BaseException as error:
        await _dismiss(guard)
        if isinstance(error, OSError):
            raise SamplingError(f"{command[0]} cannot be started: {error.strerror}") from error
        raise
    if guard and guard.stdin:
        guard.stdin.write(f"{transport.get_pid()}\n".encode())
    try:
        if stdin := cast("asyncio.WriteTransport | None", transport.get_pipe_transport(0)):
            stdin.write(json.dumps(row).encode())
            stdin.close()
        await process.exited.wait()  # what it has started may go on, and hold its output
    finally:
        with suppress(ProcessLookupError):  # all of it has ended
            os.killpg(transport.get_pid(), signal.SIGKILL)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.closed.wait(), _END)
        transport.close()
        await _dismiss(guard)
    if status := transport.get_returncode():
        message = f"{command[0]} ended with status {status}: {process.printed(2)[-_SHOWN:]}"
        raise SamplingError(message)
    return _reward(process.printed(1))


async def _guard() -> asyncio.subprocess.Process | None:
    """Start the process that runs `_GUARD`; None on a system without a shell."""
    nothing = asyncio.subprocess.DEVNULL
    try:
        return await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", _GUARD, stdin=asyncio.subprocess.PIPE, stdout=nothing, stderr=nothing,
            start_new_session=True,
        )  # fmt: skip
    except OSError:
        return None


async def _dismiss(guard: asyncio.subprocess.Process | None) -> None:
    """End a guard, and leave the process group that it guards alone."""
    if guard:
        await guard.communicate(b"ended\n")


def _address(client: RolloutClient) -> dict[str, str]:
    """The variables with the address and the key of a rollout."""
    address = {"OPENAI_BASE_URL": client.base_url, "OPENAI_API_BASE": client.base_url}
    return {**address, "OPENAI_API_KEY": client.api_key, "OPENAI_MODEL": client.model}


def _reward(printed: str) -> Any:
    """The value of the last line if it is JSON that can be a reward; else None."""
    try:
        value = json.loads(printed.rstrip().split("\n")[-1])  # JSON may have other ends of lines in a text
    except (ValueError, IndexError, RecursionError):
        return None
    return value if isinstance(value, int | float | dict) else None
