"""A message goes from the Jupyter server to a kernel of the same user, over a socket named by a secret both know.

The socket is 0600 in a folder of 0700; its name is a part of the SHA-256 of the secret, so that a listing gives nothing
away. Each message is a line of JSON, and so is its answer.
"""

import asyncio
import json
import os
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

Hear = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Answers a message; it runs on the loop and must not wait."""

LONGEST = 64 * 1024
"""Bytes of a message."""
PATIENCE = 5.0
"""Seconds that the other end has for a line."""
_NAME = 32
_LEFT_BEHIND = 24 * 3600.0


def folders(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Where sockets may be, the best place first; both ends look at all of them. None where users have no number."""
    if not hasattr(os, "getuid"):
        return []
    runtime = environment.get("XDG_RUNTIME_DIR")
    shared = Path(tempfile.gettempdir()) / f"rolloutlab-{os.getuid()}"
    return [Path(runtime) / "rolloutlab", shared] if runtime else [shared]


def name(secret: str) -> str:
    """The name of a secret's socket: 128 bits, since the path of a socket must be short."""
    return sha256(secret.encode()).hexdigest()[:_NAME]


@asynccontextmanager
async def listening(secret: str, hear: Hear, places: Iterable[Path]) -> AsyncIterator[None]:
    """Answer what comes to a secret's socket.

    Raises:
        OSError: no place has a folder of our own, or there are no such sockets here.
    """
    path = _own_folder(places) / name(secret)
    server = await _serve(path, hear)
    path.chmod(0o600)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


async def tell(secret: str, message: Mapping[str, Any], places: Iterable[Path]) -> dict[str, Any] | None:
    """What the kernel answers; None where none listens to this secret, or what listens does not answer."""
    for folder in places:
        with suppress(OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            if _is_ours(folder):
                return await asyncio.wait_for(_asked(folder / name(secret), message), PATIENCE)
    return None


async def _serve(path: Path, hear: Hear) -> asyncio.Server:
    if not hasattr(asyncio, "start_unix_server"):
        raise OSError("sockets with a path are not to be had here")

    async def hear_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, TimeoutError):  # what is no message gets no answer
            message = json.loads(await asyncio.wait_for(reader.readline(), PATIENCE))
            if isinstance(message, dict):
                writer.write(json.dumps(hear(message)).encode() + b"\n")
        writer.close()

    return await asyncio.start_unix_server(hear_one, path, limit=LONGEST)


async def _asked(path: Path, message: Mapping[str, Any]) -> dict[str, Any] | None:
    reader, writer = await asyncio.open_unix_connection(path, limit=LONGEST)
    try:
        writer.write(json.dumps(message).encode() + b"\n")
        answer = json.loads(await reader.readline())
    finally:
        writer.close()
    return answer if isinstance(answer, dict) else None


def _own_folder(places: Iterable[Path]) -> Path:
    """The first place that can be had for us alone, without what was left there long ago."""
    for folder in places:
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            if _is_ours(folder):
                _sweep(list(folder.iterdir()))
                return folder
    raise OSError("no folder for sockets can be had for this user alone")


def _is_ours(folder: Path) -> bool:
    """Whether a folder is nobody else's to read or to write: anybody could have made it under that name."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _sweep(sockets: Sequence[Path]) -> None:
    """Remove what killed kernels have left."""
    for path in sockets:
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _LEFT_BEHIND:
                path.unlink()
