"""Token store: grants in memory, or kept for other kernels in the keyring or in private files."""

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rolloutlab.auth.tokens import Grant
from rolloutlab.errors import InputError, LabError, SignInError
from rolloutlab.fsutil import locked_async, own

_SERVICE = "rolloutlab"
_LOCK_TIMEOUT = 120.0  # seconds to wait for another kernel that renews or revokes a grant


class MemoryStore:
    """Grants by the server that was signed in to, until the process ends."""

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}

    @property
    def place(self) -> str:
        """Where grants are, in words."""
        return "in memory, until the kernel ends"

    def read(self, server: str) -> Grant | None:
        """Return the valid grant for a server, if any. LabError if it cannot be read, or other users can read it."""
        return self._grants.get(server)

    def write(self, grant: Grant, keep: bool | None = None) -> None:  # noqa: ARG002 - as `TieredStore`
        """Store a grant.

        keep: whether the grant outlives the process, in a store that has the choice. None leaves that as it is.
        """
        self._grants[grant.server] = grant

    def forget(self, server: str) -> None:
        self._grants.pop(server, None)

    def lock(self, server: str, keep: bool | None = None) -> AbstractAsyncContextManager[object]:  # noqa: ARG002
        """Lock the grant for a server, across processes. keep: as in `write`."""
        return nullcontext()


class FileStore:
    """Grants as in `MemoryStore`, in a file per server that only its owner can read."""

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
                    message = f"other users can read {path}, which holds tokens; remove it, then sign in again"
                    raise LabError(message, hint=f"!rm '{path}'")
                return grant_of(file.read(), server)
        except FileNotFoundError:
            return None
        except OSError as error:
            message = f"{path}, which holds tokens, cannot be read: {error.strerror}"
            raise LabError(message, hint=f"!rm '{path}'") from None

    def write(self, grant: Grant, keep: bool | None = None) -> None:  # noqa: ARG002 - as the others
        self._put(grant.server, grant.to_json())

    def has(self, server: str) -> bool:
        return os.path.exists(f"{self._folder}/{_file_name(server)}")  # noqa: PTH110 - called per request; Path is slow

    def servers(self) -> list[str]:
        servers = []
        for path in self._folder.glob("*.json"):
            with suppress(OSError, ValueError, TypeError, KeyError):
                servers.append(str(json.loads(path.read_text(encoding="utf-8"))["server"]))
        return sorted(servers)

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
        async with locked_async(self._path(server).with_suffix(".lock"), _LOCK_TIMEOUT):
            yield

    def _path(self, server: str) -> Path:
        return self._folder / _file_name(server)

    def _own(self) -> None:
        own(self._folder)
        self._folder.chmod(0o700)


class KeyringStore(FileStore):
    """The keyring of the operating system.

    folder: holds the locks, and a file with the URL of each server, as a keyring cannot list its entries.
    """

    @property
    def place(self) -> str:
        return "in the keyring of this machine"

    def read(self, server: str) -> Grant | None:
        with self._open_keyring(server) as keyring:
            text = keyring.get_password(_SERVICE, server)
        # a grant that was kept before this machine had a keyring is in the file, until `write` moves it
        return grant_of(text, server) if text else super().read(server)

    def write(self, grant: Grant, keep: bool | None = None) -> None:  # noqa: ARG002 - as the others
        with self._open_keyring(grant.server) as keyring:
            keyring.set_password(_SERVICE, grant.server, json.dumps(grant.to_json()))
        # last: the file may hold a grant from before there was a keyring, which must stay if the keyring does not open
        self._put(grant.server, {"server": grant.server})

    def forget(self, server: str) -> None:
        with self._open_keyring(server) as keyring, suppress(keyring.errors.PasswordDeleteError):
            keyring.delete_password(_SERVICE, server)
        super().forget(server)  # last: a keyring that does not open still holds the grant

    @contextmanager
    def _open_keyring(self, server: str) -> Iterator[ModuleType]:
        """Yield the library, and turn its errors into LabErrors."""
        import keyring.errors

        try:
            yield keyring
        except keyring.errors.KeyringError as error:
            message = f"the keyring of this machine, which holds tokens for {server}, does not open: {error}"
            raise LabError(message, hint=f"!rm '{self._path(server)}'") from None


class TieredStore(MemoryStore):
    """A grant in memory, or in the store of a folder (`open_store`) after a user asked to keep it.

    It also reads a grant that another kernel has kept in that folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._persistent = False

    @property
    def place(self) -> str:
        return open_store(self._folder).place if self._persistent else super().place

    def read(self, server: str) -> Grant | None:
        grant = super().read(server)
        if grant is None and FileStore(self._folder).has(server):  # per request: a keyring is slow
            grant = open_store(self._folder).read(server)
            self._persistent = grant is not None
        return grant

    def write(self, grant: Grant, keep: bool | None = None) -> None:
        self._persistent = self._persistent if keep is None else keep
        if self._persistent:
            open_store(self._folder).write(grant)
            super().forget(grant.server)
        else:
            super().write(grant)
            if self._folder.exists():
                open_store(self._folder).forget(grant.server)

    def forget(self, server: str) -> None:
        super().forget(server)
        if self._folder.exists():
            open_store(self._folder).forget(server)

    def lock(self, server: str, keep: bool | None = None) -> AbstractAsyncContextManager[object]:
        # a grant that another kernel has kept needs the lock as well: that kernel may be renewing it
        persistent = keep or self._persistent or FileStore(self._folder).has(server)
        return open_store(self._folder).lock(server) if persistent else super().lock(server)


@lru_cache(maxsize=256)
def _file_name(server: str) -> str:
    return f"{hashlib.sha256(server.encode()).hexdigest()[:32]}.json"


def list_kept_servers(folder: Path) -> list[str]:
    """List the servers with a stored grant."""
    return FileStore(folder).servers() if folder.exists() else []


def open_store(folder: Path) -> FileStore:
    """Open the keyring if there is one, else files in a folder."""
    return KeyringStore(folder) if has_keyring() else FileStore(folder)


def grant_of(text: str | bytes, server: str) -> Grant | None:
    """Read a stored grant for a server; None if it is invalid or for another server."""
    try:
        grant = Grant.from_json(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, SignInError, InputError):
        return None
    return grant if grant.server == server else None


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
