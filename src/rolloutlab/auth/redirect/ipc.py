"""Unix socket between the Jupyter server and a kernel of the same user, named by a shared secret.

The socket has mode 0600 in a folder of 0700. Its name is part of the SHA-256 of the secret, so that a listing does not
reveal the secret. Messages and replies are lines of JSON.
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

Handler = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Returns the reply to a message. It runs on the loop and must not block."""

MAX_MESSAGE = 64 * 1024
"""The most bytes of a message."""
TIMEOUT = 5.0
"""Seconds to wait for a line of the other end."""
_NAME = 32
_STALE = 24 * 3600.0


def folders(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """List the folders for sockets, best first; none on systems without user ids."""
    if not hasattr(os, "getuid"):
        return []
    runtime = environment.get("XDG_RUNTIME_DIR")
    shared = Path(tempfile.gettempdir()) / f"rolloutlab-{os.getuid()}"
    return [Path(runtime) / "rolloutlab", shared] if runtime else [shared]


def name(secret: str) -> str:
    """Return the name of a secret's socket. It has 128 bits, as paths of sockets are limited to about 100 bytes."""
    return sha256(secret.encode()).hexdigest()[:_NAME]


@asynccontextmanager
async def listening(secret: str, handler: Handler, places: Iterable[Path]) -> AsyncIterator[None]:
    """Serve a secret's socket. OSError if no private folder can be made, or the system has no Unix sockets."""
    path = _prepare_folder(places) / name(secret)
    server = await _serve(path, handler)
    path.chmod(0o600)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


async def send(secret: str, message: Mapping[str, Any], places: Iterable[Path]) -> dict[str, Any] | None:
    """Send a message and return the kernel's reply; None if no kernel listens to this secret, or it does not reply."""
    for folder in places:
        with suppress(OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            if _is_ours(folder):
                return await asyncio.wait_for(_exchange(folder / name(secret), message), TIMEOUT)
    return None


async def _serve(path: Path, handler: Handler) -> asyncio.Server:
    if not hasattr(asyncio, "start_unix_server"):
        raise OSError("this system has no Unix sockets")

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, TimeoutError):  # an invalid message gets no reply
            message = json.loads(await asyncio.wait_for(reader.readline(), TIMEOUT))
            if isinstance(message, dict):
                writer.write(json.dumps(handler(message)).encode() + b"\n")
        writer.close()

    return await asyncio.start_unix_server(respond, path, limit=MAX_MESSAGE)


async def _exchange(path: Path, message: Mapping[str, Any]) -> dict[str, Any] | None:
    reader, writer = await asyncio.open_unix_connection(path, limit=MAX_MESSAGE)
    try:
        writer.write(json.dumps(message).encode() + b"\n")
        reply = json.loads(await reader.readline())
    finally:
        writer.close()
    return reply if isinstance(reply, dict) else None


def _prepare_folder(places: Iterable[Path]) -> Path:
    """Find the first private folder, and clear it of stale sockets."""
    for folder in places:
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            if _is_ours(folder):
                _sweep(list(folder.iterdir()))
                return folder
    raise OSError("no private folder for sockets can be made")


def _is_ours(folder: Path) -> bool:
    """Whether a folder is private to this user. In a shared place another user may have made it."""
    info = folder.lstat()
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o077


def _sweep(sockets: Sequence[Path]) -> None:
    """Remove the sockets of killed kernels."""
    for path in sockets:
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _STALE:
                path.unlink()
