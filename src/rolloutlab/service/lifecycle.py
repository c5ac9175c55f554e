"""The embedded service's life: one per lab folder, found by its clients, gone when nobody needs it.

Every attached process holds a lock on a file of its own in `clients/`; the operating system frees it however the
process ends. `service.json` says where the service listens and `token`, readable by the user alone, how to call it.
"""

import asyncio
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from rolloutlab.errors import InputError, LabError
from rolloutlab.store.disk import flush


class Folder:
    """The service's folder in a lab: what it publishes there, and who is attached."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.instance = secrets.token_hex(8)
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise LabError(f"{path} cannot be used: {error}", hint="--home DIR") from error
        self._lock = FileLock(path / "lock")

    def claim(self, patience: float = 0.0) -> None:
        """Become the one service of this folder, waiting up to `patience` seconds for another to end.

        Raises:
            InputError: another one runs.
        """
        try:
            self._lock.acquire(timeout=patience)
        except Timeout as error:
            raise InputError(f"a service already runs on {self.path.parent}", hint="%service") from error

    def token(self) -> str:
        """The bearer token of this folder, made on first use in a file that only the user can read."""
        path, draft = self.path / "token", self.path / "token.draft"
        if not path.exists() or not path.read_text():
            draft.unlink(missing_ok=True)
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_urlsafe(32))
            flush(draft)
            draft.replace(path)  # whole or not at all: an empty token would let anyone in
        return path.read_text()

    def publish(self, base_url: str) -> None:
        """Let clients find the service; the file appears whole."""
        draft = self.path / "service.json.draft"
        addresses = {"base_url": base_url, "inference_base_url": f"{base_url}/v1"}
        draft.write_text(json.dumps({**addresses, "pid": os.getpid(), "instance": self.instance}))
        draft.replace(self.path / "service.json")

    def withdraw(self) -> None:
        (self.path / "service.json").unlink(missing_ok=True)

    def attached(self) -> bool:
        """Whether any process holds a client lock; the files of those that ended are removed."""
        held = [self._held(path) for path in sorted((self.path / "clients").glob("*.lock"))]
        return any(held)

    @staticmethod
    def _held(path: Path) -> bool:
        lock = FileLock(path)
        try:
            with lock.acquire(timeout=0):
                path.unlink(missing_ok=True)
        except Timeout:
            return True
        return False


async def watch(folder: Folder, busy: Callable[[], bool], linger: float, stop: Callable[[], None]) -> None:
    """Call `stop` once nobody has been attached and nothing queued or running for `linger` seconds."""
    clock = asyncio.get_running_loop().time
    needed = clock()
    while clock() - needed < linger:
        await asyncio.sleep(min(linger / 4, 5.0))
        if folder.attached() or busy():
            needed = clock()
    folder.withdraw()
    stop()
