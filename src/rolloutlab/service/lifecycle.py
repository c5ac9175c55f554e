"""The embedded service's life: one per lab folder, found by its clients, gone when nobody needs it.

Every attached process holds a lock on a file of its own in `clients/`; the operating system frees it however the
process ends. `service.json` says where the service listens and `token`, readable by the user alone, how to call it.
"""

import asyncio
import json
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from rolloutlab.errors import InputError, LabError
from rolloutlab.fsutil import Lock, flush, locked, own, refused, remove

_LEGIBLE = "abcdefghjkmnpqrstuvwxyz23456789"
"""Letters and digits that nobody takes for another."""
_SHORTEST = 12
"""Letters of a passcode, which may be tried without end."""


class Folder:
    """The service's folder in a lab: what it publishes there, and who is attached."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.instance = secrets.token_hex(8)
        try:
            own(path)
        except OSError as error:
            raise LabError(f"{path} cannot be used: {error}", hint="--home DIR") from error
        self._lock = Lock(path / "lock")

    def claim(self, patience: float = 0.0) -> None:
        """Become the one service of this folder, waiting up to `patience` seconds for another to end.

        What a service that was killed had published is withdrawn: from now on the folder is ours.

        Raises:
            InputError: another one runs. LabError: the folder cannot be locked.
        """
        if not self._lock.try_acquire(patience):
            raise InputError(f"a service already runs on {self.path.parent}", hint="%service stop")
        self.withdraw()

    def draw_token(self) -> str:
        """A new bearer token, in a file that only the user can read.

        Each start draws one, so that one that another program got hold of is of no use to it after that.
        """
        token = secrets.token_urlsafe(32)
        self._keep_secret(self.path / "token", token)
        return token

    def key(self) -> bytes:
        """What the ids of clients that register are signed with; made once, in a file that only the user can read."""
        path = self.path / "key"
        if not path.exists() or not path.read_text():
            self._keep_secret(path, secrets.token_urlsafe(32))
        return path.read_text().encode()

    def passcode(self) -> str:
        """What the owner of the lab is asked for where an application wants access; made on first use, 60 bits.

        Raises:
            InputError: the owner has written one there that could be found by trying. LabError: it cannot be written,
            or another process makes one without an end.
        """
        path = self.path / "passcode"
        with locked(self.path / "passcode.lock"):  # the service and a command line may both be first
            if not path.exists() or not path.read_text().strip():
                chars = [secrets.choice(_LEGIBLE) for _ in range(_SHORTEST)]
                self._keep_secret(path, "-".join("".join(chars[i : i + 4]) for i in (0, 4, 8)))
        found = path.read_text().strip()
        if len("".join(found.split()).replace("-", "")) < _SHORTEST:
            raise InputError(f"the passcode in {path} has fewer than {_SHORTEST} letters", hint=f"rm {path}")
        return found

    def last_port(self) -> int:
        """The port that the service had last, 0 when there is none: what was granted is bound to its address."""
        try:
            return int((self.path / "port").read_text())
        except (OSError, ValueError):
            return 0

    def keep_port(self, port: int) -> None:
        """Remember the port for the next time."""
        (self.path / "port").write_text(str(port))

    def publish(self, base_url: str, policy: str) -> None:
        """Let clients find the service, and know what it runs; the file appears whole."""
        draft = self.path / "service.json.draft"
        addresses = {"base_url": base_url, "inference_base_url": f"{base_url}/v1"}
        draft.write_text(json.dumps({**addresses, "policy": policy, "pid": os.getpid(), "instance": self.instance}))
        draft.replace(self.path / "service.json")

    def withdraw(self) -> None:
        remove(self.path / "service.json")

    def attached(self) -> bool:
        """Whether any process holds a client lock, or it cannot be known; the files of those that ended are removed."""
        try:
            held = [self._held(path) for path in sorted((self.path / "clients").glob("*.lock"))]
        except (LabError, OSError) as error:  # no file descriptor is left: there will be when clients have gone
            logging.getLogger(__name__).warning("who is attached cannot be seen: %s", error)
            return True
        return any(held)

    @staticmethod
    def _keep_secret(path: Path, text: str) -> None:
        """Write a file that only the user can read, whole or not at all: an empty secret would let anyone in.

        Raises:
            LabError: it cannot be written.
        """
        draft = path.with_suffix(".draft")
        try:
            draft.unlink(missing_ok=True)
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(text)
            flush(draft)
            draft.replace(path)
        except OSError as error:
            raise refused(f"{path} cannot be written", error, "free some disk space, or --home DIR") from error

    @staticmethod
    def _held(path: Path) -> bool:
        lock = Lock(path)
        if not lock.try_acquire():
            return True
        remove(path)
        lock.release()
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
