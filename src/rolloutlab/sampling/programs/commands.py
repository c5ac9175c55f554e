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
"""A function that returns the environment variables of a command, without those with the address and the key."""
_END = 2.0
"""The most seconds to wait for the output of a killed command to close."""
_KEPT = 1_000_000
"""The most bytes of an output that are kept, from its end: the last line is the reward."""
_SHOWN = 400
"""Characters of the end of standard error that an error shows."""
_GUARD = 'read -r group && [ "$group" != ended ] && ! read -r end && kill -KILL "-$group"'
"""Shell program that kills a process group when its own standard input ends without a second line.

Only this process holds the write end, so that happens when this process is killed. Not every system signals the death
of a parent, and the signal of Linux reaches only the first process of the group."""


def command_name(command: Sequence[str]) -> str:
    """Return the name that the collections of a command keep."""
    return replace_surrogates(shlex.join(command))


def command_program(command: Sequence[str], environment: Environment) -> Any:
    """Make a function of row and client that runs a command. environment: called whenever the command starts.

    The command gets OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, and one row as JSON on standard input. If the
    last line that it prints is JSON, that line is the reward: a number, an object of components, or null.
    """
    return partial(_run_command, tuple(command), environment)


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

    def output_of(self, fd: int) -> str:
        """Return the end of what the process has printed. fd: 1 for standard output, 2 for standard error."""
        return self._printed[fd].decode(errors="replace").strip()


async def _run_command(
    command: Sequence[str], environment: Environment, row: Mapping[str, Any], client: RolloutClient
) -> Any:
    """Run a command for one row and return its reward. In the end its whole process group is killed."""
    variables = {**environment(), **_address_variables(client)}
    loop, guard = asyncio.get_running_loop(), await _start_guard()
    try:
        transport, process = await loop.subprocess_exec(_Process, *command, env=variables, start_new_session=True)
    except BaseException as error:
        await _dismiss_guard(guard)
        if isinstance(error, OSError):
            raise SamplingError(f"{command[0]} cannot be started: {error.strerror}") from error
        raise
    if guard and guard.stdin:
        guard.stdin.write(f"{transport.get_pid()}\n".encode())
    try:
        if stdin := cast("asyncio.WriteTransport | None", transport.get_pipe_transport(0)):
            stdin.write(json.dumps(row).encode())
            stdin.close()
        await process.exited.wait()  # not `closed`: a child that goes on holds its output open
    finally:
        with suppress(ProcessLookupError):  # all of it has ended
            os.killpg(transport.get_pid(), signal.SIGKILL)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.closed.wait(), _END)
        transport.close()
        await _dismiss_guard(guard)
    if status := transport.get_returncode():
        message = f"{command[0]} ended with status {status}: {process.output_of(2)[-_SHOWN:]}"
        raise SamplingError(message)
    return _parse_reward(process.output_of(1))


async def _start_guard() -> asyncio.subprocess.Process | None:
    """Start the process that runs `_GUARD`; None on a system without a shell."""
    nothing = asyncio.subprocess.DEVNULL
    try:
        return await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", _GUARD, stdin=asyncio.subprocess.PIPE, stdout=nothing, stderr=nothing,
            start_new_session=True,
        )  # fmt: skip
    except OSError:
        return None


async def _dismiss_guard(guard: asyncio.subprocess.Process | None) -> None:
    """End a guard, and leave the process group that it guards alone."""
    if guard:
        await guard.communicate(b"ended\n")


def _address_variables(client: RolloutClient) -> dict[str, str]:
    """Return the environment variables with the address and the key of a rollout."""
    address = {"OPENAI_BASE_URL": client.base_url, "OPENAI_API_BASE": client.base_url}
    return {**address, "OPENAI_API_KEY": client.api_key, "OPENAI_MODEL": client.model}


def _parse_reward(printed: str) -> Any:
    """Return the value of the last line if it is JSON that can be a reward, else None."""
    try:
        # not `splitlines`: it would split at other line ends too, which may stand in a JSON string
        value = json.loads(printed.rstrip().split("\n")[-1])
    except (ValueError, IndexError, RecursionError):
        return None
    return value if isinstance(value, int | float | dict) else None
