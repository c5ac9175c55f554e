"""Where grants are kept: in memory, or for other kernels and later days in the keyring or in a file of one's own."""

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from filelock import AsyncFileLock

from rolloutlab.auth.grants import Grant
from rolloutlab.errors import LabError, SignInError

_SERVICE = "rolloutlab"


class Kept(Protocol):
    """Grants by the server that was signed in to."""

    @property
    def place(self) -> str:
        """What a person is told."""

    def read(self, server: str) -> Grant | None:
        """The grant for a server; None where there is none, or none that can be understood."""

    def write(self, grant: Grant) -> None: ...

    def forget(self, server: str) -> None: ...

    def alone(self, server: str) -> AbstractAsyncContextManager[object]:
        """While it lasts nobody else, in this process or another, changes the grant for a server."""


class InMemory:
    """Until the process ends."""

    place: str = "in memory, until the kernel ends"

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}

    def read(self, server: str) -> Grant | None:
        return self._grants.get(server)

    def write(self, grant: Grant) -> None:
        self._grants[grant.server] = grant

    def forget(self, server: str) -> None:
        self._grants.pop(server, None)

    def alone(self, server: str) -> AbstractAsyncContextManager[object]:  # noqa: ARG002 - as the others
        return nullcontext()


class InFolder:
    """A file for each server, which only its owner may read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def place(self) -> str:
        return f"in {self._folder}, readable by you alone"

    def read(self, server: str) -> Grant | None:
        path = self._path(server)
        try:
            with path.open(encoding="utf-8") as file:
                if os.name == "posix" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    raise LabError(
                        f"others may read {path}, which holds tokens", hint=f"rm {path}, then %login {server}"
                    )
                return grant_of(file.read(), server)
        except FileNotFoundError:
            return None

    def write(self, grant: Grant) -> None:
        self._own()
        handle, name = tempfile.mkstemp(dir=self._folder)  # 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(grant.to_json(), file)
            Path(name).replace(self._path(grant.server))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def forget(self, server: str) -> None:
        self._path(server).unlink(missing_ok=True)

    @asynccontextmanager
    async def alone(self, server: str) -> AsyncIterator[None]:
        self._own()
        async with AsyncFileLock(self._path(server).with_suffix(".lock")):
            yield

    def _path(self, server: str) -> Path:
        return self._folder / f"{hashlib.sha256(server.encode()).hexdigest()[:32]}.json"

    def _own(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)


class InKeyring(InFolder):
    """The keyring of the operating system. folder: for the locks alone."""

    @property
    def place(self) -> str:
        return "in the keyring of this machine"

    def read(self, server: str) -> Grant | None:
        import keyring

        text = keyring.get_password(_SERVICE, server)
        return grant_of(text, server) if text else None

    def write(self, grant: Grant) -> None:
        import keyring

        keyring.set_password(_SERVICE, grant.server, json.dumps(grant.to_json()))

    def forget(self, server: str) -> None:
        import keyring
        import keyring.errors

        try:
            keyring.delete_password(_SERVICE, server)
        except keyring.errors.PasswordDeleteError:
            return


def kept(folder: Path) -> Kept:
    """The keyring where there is a real one, else files in a folder."""
    return InKeyring(folder) if _has_keyring() else InFolder(folder)


def grant_of(text: str, server: str) -> Grant | None:
    """What was kept as text for a server; None where that is not what it is."""
    try:
        found = Grant.from_json(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, SignInError):
        return None
    return found if found.server == server else None


def _has_keyring() -> bool:
    try:
        import keyring
        from keyring.backends import chainer, fail, null
    except ImportError:
        return False
    backend = keyring.get_keyring()
    return not isinstance(backend, fail.Keyring | null.Keyring) and not (
        isinstance(backend, chainer.ChainerBackend) and not backend.backends
    )
