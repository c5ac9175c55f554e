"""Find the embedded service of a lab folder, or start it; stay attached to it while this process lives."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rolloutlab.errors import InputError, PolicyError, RolloutlabError, UnreachableError
from rolloutlab.http import Http
from rolloutlab.settings import Address, Settings, named_policy
from rolloutlab.store.disk import own

_LONGEST_START = 120.0
_LONGEST_STOP = 30.0
_POLL = 0.05
_ERROR = re.compile(r"^[\w.]+Error: (?P<message>.+)(?:\n  -> (?P<hint>.+))?", re.MULTILINE)
"""An error as the command line writes it, or the end of a traceback."""


class Embedded:
    """The embedded service as its clients see it: a process of its own, shared by every kernel of the lab folder."""

    def __init__(self, settings: Settings, http: Http) -> None:
        self._settings = settings
        self._folder = settings.service_folder
        self._http = http
        self._lock: FileLock | None = None

    @property
    def log(self) -> Path:
        """The file that the service writes to."""
        return self._folder / "log"

    def address(self, tick: Callable[[], None] = lambda: None, *, start_empty: bool = False) -> Address:
        """Where the service listens, starting it if nobody has; `tick` is called while it starts.

        start_empty: have it start also where its database lists no model and checkpoints lie beside it.

        Raises:
            PolicyError: the service ended at once; the error that it ended with is in the message.
            UnreachableError: it did not answer in two minutes.
            InputError: it runs with another policy than this process wants.
        """
        self._attach()
        found = self.running() or self._start(tick, start_empty)
        policy, wanted = self._published()["policy"], named_policy(self._settings.policy)
        if policy != wanted:
            raise InputError(
                f"the service of this lab runs the policy {policy!r}, not {wanted!r}", hint="%service stop"
            )
        return found

    def context_server(self) -> str:
        """The address of the context server that it serves; raises as `address` does."""
        return f"{self.address().base_url}/context"

    def running(self) -> Address | None:
        """Where the service listens, or None when nothing answers there, or something else than what was published."""
        try:
            published = self._published()
            token = (self._folder / "token").read_text()
            found = Address(published["base_url"], published["inference_base_url"], token)
            answers = self._health(found)["instance"] == published["instance"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RolloutlabError):
            return None
        return found if answers else None

    def pid(self) -> int:
        """Process id of the running service, as it published it."""
        return int(self._published()["pid"])

    def stop(self) -> None:
        """Ask the running service to end, and wait until it has; a job that was running starts over with the next.

        Raises:
            UnreachableError: it does not end.
        """
        os.kill(self.pid(), signal.SIGTERM)
        lock = FileLock(self._folder / "lock")
        try:
            lock.acquire(timeout=_LONGEST_STOP)
        except Timeout as error:
            raise UnreachableError("the embedded service does not end", hint="%service log") from error
        lock.release()

    def close(self) -> None:
        """Detach; the service ends by itself once nobody is attached."""
        if self._lock:
            Path(self._lock.lock_file).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    def _attach(self) -> None:
        """Hold a lock that the operating system frees when this process ends, however it ends."""
        own(self._folder / "clients")
        while self._lock is None:
            path = self._folder / "clients" / f"{uuid.uuid4().hex}.lock"
            lock = FileLock(path, thread_local=False)
            lock.acquire()
            if path.exists():  # the service may have tidied it away between its making and its locking
                self._lock = lock

    def _published(self) -> dict[str, Any]:
        """What the service says of itself in its folder."""
        return dict(json.loads((self._folder / "service.json").read_text()))

    def _health(self, address: Address) -> dict[str, str]:
        url = f"{address.base_url}/v1/health"
        return dict(self._http.run(self._http.request("GET", url, patience=10.0, retry=False), every=_POLL))

    def _start(self, tick: Callable[[], None], start_empty: bool) -> Address:
        settings = self._settings
        command = [sys.executable, "-m", "rolloutlab", "serve", "--home", str(settings.home)]
        command += ["--policy", settings.policy, "--linger", str(settings.linger)]
        command += ["--start-empty"] * start_empty
        with self.log.open("ab") as log:
            begun = log.tell()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        for _ in _until(_LONGEST_START):
            if found := self.running():
                self._let_go(process)
                return found
            if process.poll() is not None:
                raise self._ended(begun)
            tick()
        process.terminate()
        raise UnreachableError(f"the embedded service did not answer in {_LONGEST_START:.0f} s", hint="%service log")

    def _ended(self, begun: int) -> PolicyError:
        """Why a service ended at its start: the error at the end of what it wrote to its log, from a byte on."""
        written = self.log.read_bytes()[begun:].decode(errors="replace")
        ended = "the embedded service ended at its start"
        if not (errors := list(_ERROR.finditer(written))):
            return PolicyError(ended, hint="%service log")
        return PolicyError(f"{ended}: {errors[-1]['message']}", hint=errors[-1]["hint"] or "%service log")

    def _let_go(self, process: "subprocess.Popen[bytes]") -> None:
        """Leave the service to itself, or end ours when another kernel's was first."""
        if process.pid != self.pid():
            process.terminate()
            process.wait()
        process.returncode = 0  # it is nobody's child to wait for: it outlives this kernel

    def tail(self, lines: int) -> str:
        """The last lines of the service's log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def _until(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(_POLL)
