"""Programs of other languages: a command with the row on its standard input, whose last line is the reward."""

import asyncio
import json
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from rolloutlab.capture.client import RolloutClient
from rolloutlab.errors import SamplingError

_END = 2.0
"""Seconds within which a killed command has ended."""
_SHOWN = 400
"""Characters of the end of standard error that an error shows."""


def command_name(command: Sequence[str]) -> str:
    """The name that the collections of a command keep."""
    return shlex.join(command)


def command_program(command: Sequence[str], secret: str | None = None) -> Any:
    """A function of row and client that runs a command. secret: is left out of its environment.

    The command gets OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, and one row as JSON. If the last line of what it
    prints is JSON, that is its reward: a number, an object of components, or null.
    """
    return partial(_run, tuple(command), secret)


async def _run(command: Sequence[str], secret: str | None, row: Mapping[str, Any], client: RolloutClient) -> Any:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(client, secret),
        start_new_session=True,
    )
    ending = asyncio.ensure_future(process.communicate(json.dumps(row).encode()))
    try:
        await asyncio.wait([ending])
    finally:
        with suppress(ProcessLookupError):  # it has ended, with all that it had started
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait([ending], timeout=_END)
    printed, errors = ending.result()
    if process.returncode:
        end = errors.decode(errors="replace").strip()[-_SHOWN:]
        raise SamplingError(f"{command[0]} ended with status {process.returncode}: {end}")
    return _reward(printed.decode(errors="replace"))


def _environment(client: RolloutClient, secret: str | None) -> dict[str, str]:
    """The environment of this process with the rollout's address and key, without the lab's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ROLLOUTLAB_") and (not secret or secret not in v)}
    address = {"OPENAI_BASE_URL": client.base_url, "OPENAI_API_BASE": client.base_url}
    return {**kept, **address, "OPENAI_API_KEY": client.api_key, "OPENAI_MODEL": client.model}


def _reward(printed: str) -> Any:
    """The value of the last line, where it is JSON that can be a reward; else None."""
    try:
        value = json.loads(printed.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return value if isinstance(value, int | float | dict) else None
