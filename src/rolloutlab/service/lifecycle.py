"""Lifecycle of the embedded service: one per lab folder, discovered through files, stopped when idle.

Every attached process holds a lock on its own file in `clients/`, which the operating system releases however the
process ends. `service.json` holds the URLs of the service; `token`, readable by the user alone, its bearer token.
"""

import asyncio
import json
import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rolloutlab.errors import InputError, LabError
from rolloutlab.fsutil import Lock, locked, own, refused, remove, write_private

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
"""Without letters and digits that look alike."""
_PASSCODE_LENGTH = 12
"""Also the minimum for a passcode that the owner sets, since the number of guesses is not limited."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
"""Seconds between two looks for attached clients."""


class Folder:
    """The service's folder in a lab: published files, secrets, attached clients."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.instance = secrets.token_hex(8)
        try:
            own(path)
        except OSError as error:
            raise refused(f"{path} cannot be used", error, "--home DIR") from error
        self._lock = Lock(path / "lock")

    def claim(self, timeout: float = 0.0) -> None:
        """Lock the folder, waiting up to `timeout` seconds, and remove `service.json` of a killed service.

        With a timeout, the wait goes on while another service is starting, as long as that one keeps writing notes.

        Raises:
            InputError: another service runs.
            LabError: the folder cannot be locked.
        """
        while not self._lock.try_acquire(timeout):
            if not timeout or not self._is_starting(timeout):
                raise InputError(f"a service already runs on {self.path.parent}", hint="%service stop")
        self.withdraw()

    def note_start(self, doing: str) -> None:
        """Write what a long start is doing into a file, for the kernels that wait for it."""
        draft = self.path / "starting.draft"
        with suppress(OSError):
            draft.write_text(doing)
            draft.replace(self.path / "starting")

    def _is_starting(self, seconds: float) -> bool:
        """Whether the service that holds the lock has noted within so many seconds what its start is doing."""
        try:
            return time.time() - (self.path / "starting").stat().st_mtime < seconds
        except OSError:
            return False

    def draw_token(self) -> str:
        """Draw a new bearer token and write it to a file that only the user can read. Each start draws one."""
        token = secrets.token_urlsafe(32)
        self._write_secret(self.path / "token", token)
        return token

    def key(self) -> bytes:
        """Return the key that signs client ids. It is made once, in a file that only the user can read; any bytes do.

        Raises:
            LabError: it cannot be read or written.
        """
        path = self.path / "key"
        if not path.exists() or not self._read(path):
            self._write_secret(path, secrets.token_urlsafe(32))
        return self._read(path)

    def passcode(self) -> str:
        """Return the passcode that the owner types on the consent page. It is made on first use, of 59 random bits.

        Raises:
            InputError: the file holds a short one, or no text.
            LabError: the file cannot be read, written or locked.
        """
        path = self.path / "passcode"
        with locked(self.path / "passcode.lock"):  # the service and a command line may both be first
            if not path.exists() or not self._read(path).strip():
                chars = [secrets.choice(_ALPHABET) for _ in range(_PASSCODE_LENGTH)]
                self._write_secret(path, "-".join("".join(chars[i : i + 4]) for i in (0, 4, 8)))
        try:
            passcode = self._read(path).decode().strip()
        except UnicodeDecodeError:
            raise InputError(f"the passcode in {path} is not UTF-8", hint=f"rm {path}") from None
        if len("".join(passcode.split()).replace("-", "")) < _PASSCODE_LENGTH:
            raise InputError(f"the passcode in {path} has fewer than {_PASSCODE_LENGTH} letters", hint=f"rm {path}")
        return passcode

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            what = f"{path} cannot be read: {error.strerror or error}"
            raise LabError(what, hint=f"ls -ld {path}, or --home DIR") from error

    def last_port(self) -> int:
        """Return the port of the last start, or 0. Grants are bound to the URL with that port."""
        try:
            return int((self.path / "port").read_text())
        except (OSError, ValueError):
            return 0

    def save_port(self, port: int) -> None:
        (self.path / "port").write_text(str(port))

    def publish(self, base_url: str, policy: str) -> None:
        """Write `service.json` atomically."""
        draft = self.path / "service.json.draft"
        urls = {"base_url": base_url, "inference_base_url": f"{base_url}/v1"}
        draft.write_text(json.dumps({**urls, "policy": policy, "pid": os.getpid(), "instance": self.instance}))
        draft.replace(self.path / "service.json")
        remove(self.path / "starting")

    def withdraw(self) -> None:
        for name in ("service.json", "starting"):
            remove(self.path / name)

    def attached(self) -> bool:
        """Whether any process holds a client lock, or it cannot be checked. Files of ended processes are removed."""
        try:
            held = [self._is_held(path) for path in sorted((self.path / "clients").glob("*.lock"))]
        except (LabError, OSError) as error:  # out of file descriptors, until clients disconnect
            logging.getLogger(__name__).warning("attached clients cannot be checked: %s", error)
            return True
        return any(held)

    @staticmethod
    def _write_secret(path: Path, text: str) -> None:
        """Write a file that only the user can read, atomically: an empty secret would authenticate any client."""
        try:
            write_private(path, text.encode())
        except OSError as error:
            raise refused(f"{path} cannot be written", error, "--home DIR") from error

    @staticmethod
    def _is_held(path: Path) -> bool:
        """Whether a process holds the lock of a file. A file without a holder is removed."""
        lock = Lock(path)
        if not lock.try_acquire():
            return True
        remove(path)
        lock.release()
        return False


async def watch(folder: Folder, busy: Callable[[], bool], linger: float, stop: Callable[[], None]) -> None:
    """Call `stop` once no client has been attached and no job queued or running for `linger` seconds."""
    clock, pause = asyncio.get_running_loop().time, min(max(linger / 4, _SHORTEST_PAUSE), _LONGEST_PAUSE)
    last_used = clock()
    is_used = True
    while is_used or clock() - last_used < linger:
        await asyncio.sleep(pause)
        if is_used := folder.attached() or busy():
            last_used = clock()
    folder.withdraw()
    stop()
