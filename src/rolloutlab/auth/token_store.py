"""Where grants are kept: in memory, or for other kernels and later days in the keyring or in a file of one's own."""

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from rolloutlab.auth.tokens import Grant
from rolloutlab.errors import InputError, LabError, SignInError
from rolloutlab.fsutil import locked_async, own

_SERVICE = "rolloutlab"
_REQUESTS = 120.0
"""Seconds to wait for another kernel that renews or gives back what is kept."""


class TokenStore(Protocol):
    """Grants by the server that was signed in to."""

    @property
    def place(self) -> str:
        """What a person is told."""

    def read(self, server: str) -> Grant | None:
        """The grant for a server; None where there is none, or none that can be understood.

        Raises:
            LabError: others may read it, or nobody can.
        """

    def write(self, grant: Grant, keep: bool | None = None) -> None:
        """Keep a grant. keep: beyond the end of the process, where there is a choice; None is as it was."""

    def forget(self, server: str) -> None: ...

    def lock(self, server: str, keep: bool | None = None) -> AbstractAsyncContextManager[object]:
        """While it lasts nobody else, in this process or another, changes the grant for a server. keep: as `write`."""


class MemoryStore:
    """Until the process ends."""

    place: str = "in memory, until the kernel ends"

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}

    def read(self, server: str) -> Grant | None:
        return self._grants.get(server)

    def write(self, grant: Grant, keep: bool | None = None) -> None:  # noqa: ARG002 - as the others
        self._grants[grant.server] = grant

    def forget(self, server: str) -> None:
        self._grants.pop(server, None)

    def lock(self, server: str, keep: bool | None = None) -> AbstractAsyncContextManager[object]:  # noqa: ARG002
        return nullcontext()


class FileStore:
    """A file for each server, which only its owner may read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def place(self) -> str:
        return f"in {self._folder}, readable by you alone"

    def read(self, server: str) -> Grant | None:
        path = self._path(server)
        try:
            with path.open("rb") as file:
                if os.name == "posix" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    said = f"others may read {path}, which holds tokens; remove it, and sign in to {server} anew"
                    raise LabError(said, hint=f"!rm '{path}'")
                return grant_of(file.read(), server)
        except FileNotFoundError:
            return None
        except OSError as error:
            said = f"{path}, which holds tokens, cannot be read: {error.strerror}"
            raise LabError(said, hint=f"!rm '{path}'") from None

    def write(self, grant: Grant, keep: bool | None = None) -> None:  # noqa: ARG002 - as the others
        self._put(grant.server, grant.to_json())

    def has(self, server: str) -> bool:
        """Whether there is something for a server."""
        return os.path.exists(f"{self._folder}/{_file_name(server)}")  # noqa: PTH110 - a path costs more than the look

    def servers(self) -> list[str]:
        """Every server that there is something for."""
        found = []
        for path in self._folder.glob("*.json"):
            with suppress(OSError, ValueError, TypeError, KeyError):
                found.append(str(json.loads(path.read_text(encoding="utf-8"))["server"]))
        return sorted(found)

    def _put(self, server: str, document: Mapping[str, Any]) -> None:
        self._own()
        handle, name = tempfile.mkstemp(dir=self._folder)  # 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(document, file)
            Path(name).replace(self._path(server))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def forget(self, server: str) -> None:
        self._path(server).unlink(missing_ok=True)

    @asynccontextmanager
    async def lock(self, server: str, keep: bool | None = None) -> AsyncIterator[None]:  # noqa: ARG002 - as the others
        self._own()
        async with locked_async(self._path(server).with_suffix(".lock"), _REQUESTS):
            yield

    def _path(self, server: str) -> Path:
        return self._folder / _file_name(server)

    def _own(self) -> None:
        own(self._folder)
        self._folder.chmod(0o700)


class KeyringStore(FileStore):
    """The keyring of the operating system. folder: for the locks, and for which servers it holds something."""

    @property
    def place(self) -> str:
        return "in the keyring of this machine"

    def read(self, server: str) -> Grant | None:
        import keyring
        import keyring.errors

        try:
            text = keyring.get_password(_SERVICE, server)
        except keyring.errors.KeyringError as error:
            said = f"the keyring of this machine, which holds tokens for {server}, does not open: {error}"
            raise LabError(said, hint=f"!rm '{self._path(server)}'") from None
        return grant_of(text, server) if text else None

    def write(self, grant: Grant, keep: bool | None = None) -> None:  # noqa: ARG002 - as the others
        import keyring

        self._put(grant.server, {"server": grant.server})
        keyring.set_password(_SERVICE, grant.server, json.dumps(grant.to_json()))

    def forget(self, server: str) -> None:
        import keyring
        import keyring.errors

        super().forget(server)
        with suppress(keyring.errors.PasswordDeleteError):
            keyring.delete_password(_SERVICE, server)


class TieredStore:
    """In memory, unless somebody has asked for more; what was kept by another kernel is found. folder: where."""

    def __init__(self, folder: Path) -> None:
        self._memory = MemoryStore()
        self._folder = folder
        self._lasts = False

    @property
    def place(self) -> str:
        return open_store(self._folder).place if self._lasts else self._memory.place

    def read(self, server: str) -> Grant | None:
        found = self._memory.read(server)
        if found is None and FileStore(self._folder).has(server):  # asked with every request: no keyring for nothing
            found = open_store(self._folder).read(server)
            self._lasts = found is not None
        return found

    def write(self, grant: Grant, keep: bool | None = None) -> None:
        self._lasts = self._lasts if keep is None else keep
        place, other = (
            (open_store(self._folder), self._memory) if self._lasts else (self._memory, open_store(self._folder))
        )
        place.write(grant)
        if self._folder.exists():
            other.forget(grant.server)

    def forget(self, server: str) -> None:
        self._memory.forget(server)
        if self._folder.exists():
            open_store(self._folder).forget(server)

    def lock(self, server: str, keep: bool | None = None) -> AbstractAsyncContextManager[object]:
        lasts = keep or self._lasts or FileStore(self._folder).has(server)  # another kernel may be renewing it
        return open_store(self._folder).lock(server) if lasts else self._memory.lock(server)


@lru_cache(maxsize=256)
def _file_name(server: str) -> str:
    return f"{hashlib.sha256(server.encode()).hexdigest()[:32]}.json"


def kept_servers(folder: Path) -> list[str]:
    """The servers for which there is a grant that outlives its kernel."""
    return FileStore(folder).servers() if folder.exists() else []


def open_store(folder: Path) -> FileStore:
    """The keyring where there is a real one, else files in a folder."""
    return KeyringStore(folder) if has_keyring() else FileStore(folder)


def grant_of(text: str | bytes, server: str) -> Grant | None:
    """What was kept as text for a server; None where that is not what it is."""
    try:
        found = Grant.from_json(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, SignInError, InputError):
        return None
    return found if found.server == server else None


def has_keyring() -> bool:
    try:
        import keyring
        from keyring.backends import chainer, fail, null
    except ImportError:
        return False
    backend = keyring.get_keyring()
    return not isinstance(backend, fail.Keyring | null.Keyring) and not (
        isinstance(backend, chainer.ChainerBackend) and not backend.backends
    )
