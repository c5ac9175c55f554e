"""Find the embedded service of a lab folder, or start it; stay attached to it while this process lives."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.published import FolderToken, Published, read_published
from rolloutlab.errors import BrokenOffError, InputError, LabError, PolicyError, RolloutlabError, UnreachableError
from rolloutlab.fsutil import TO_HAVE_MORE, Lock, is_read_only, may_fill, own, short_of_descriptors, to_copy
from rolloutlab.settings import Address, Settings, named_policy

_LONGEST_START = 120.0
_LONGEST_STOP = 30.0
_POLL = 0.05
_HELD = 1.0
"""Seconds to wait for a service that looks whether a lock is held; one that is suspended then holds it on."""
_ACTIONS = ("status", "stop", "log", "check")
"""What `%service` takes; `check` is of the whole lab, and needs no service."""
_UNPROVED = (
    "does not prove that it knows the token of this lab: it is a service of an older rolloutlab, or another program"
)
_ERROR = re.compile(r"^[\w.]+Error: (?P<message>.+)(?:\n  -> (?P<hint>.+))?", re.MULTILINE)
"""An error as the command line writes it, or the end of a traceback."""


class Embedded:
    """The embedded service as its clients see it: a process of its own, shared by every kernel of the lab folder.

    patience: seconds that a service may take to say that it is there, before it counts as one that hangs.
    """

    def __init__(self, settings: Settings, http: HttpClient, *, patience: float = 15.0) -> None:
        self._settings = settings
        self._folder = settings.service_folder
        self._http = http
        self._patience = patience
        self._lock: Lock | None = None

    @property
    def log(self) -> Path:
        """The file that the service writes to."""
        return self._folder / "log"

    def address(self, tick: Callable[[], None] = lambda: None, *, start_empty: bool = False) -> Address:
        """Where the service listens, starting it if nobody has; `tick` is called while it starts.

        start_empty: have it start also where its database lists no model and checkpoints lie beside it.

        Raises:
            PolicyError: the service ended at once; the error that it ended with is in the message.
            UnreachableError: it did not answer in two minutes; and as `running`.
            InputError: it runs with another policy than this process wants. LabError: its folder cannot be written.
        """
        try:
            found = self._started(tick, start_empty)
        except OSError as error:
            hint = "set ROLLOUTLAB_HOME to a folder you can write to"
            if short_of_descriptors(error):
                hint = TO_HAVE_MORE
            raise LabError(f"{self._folder} cannot be used: {error}", hint=hint) from error
        policy, wanted = self._published().policy, named_policy(self._settings.policy)
        if policy != wanted:
            raise InputError(
                f"the service of this lab runs the policy {policy!r}, not {wanted!r}", hint="%service stop"
            )
        return found

    def _started(self, tick: Callable[[], None], start_empty: bool) -> Address:
        """Where the service listens by now. That of a lab which may only be read is neither held nor started."""
        if may_fill(self._folder / "clients"):
            self._attach()
            return self.running() or self._start(tick, start_empty)
        if found := self.running():
            return found
        home = self._folder.parent
        raise LabError(f"{home} is read-only: no service runs, and none can be started in it", hint=to_copy(home))

    def context_server(self) -> str:
        """The address of the context server that it serves; raises as `address` does."""
        return f"{self.address().base_url}/context"

    def running(self) -> Address | None:
        """Where the service listens, once it has proved that it knows the lab's token; None when none runs.

        Raises:
            UnreachableError: it runs, but does not answer, or what answers at its address does not prove it.
        """
        published = read_published(self._folder)
        if published is None:
            return None
        # one that is being stopped breaks off and is gone a moment later; one with too many clients says 503
        for _ in _until(self._patience):
            try:
                if self._http.run(published.answers(self._http, self._patience), every=_POLL):
                    token = FolderToken(self._folder, published.base_url, published.token, self._http)
                    return Address(published.base_url, published.inference_base_url, token)
                proved = False
            except RolloutlabError as error:
                if isinstance(error, UnreachableError) and not isinstance(error, BrokenOffError):
                    return None
                proved = None
            if self._ended_within(0) or read_published(self._folder) != published:
                return None
            if proved is False:
                raise UnreachableError(f"what answers at {published.base_url} {_UNPROVED}", hint="%service stop")
        hangs = f"the embedded service (process {published.pid}) does not answer: it is suspended or overloaded"
        raise UnreachableError(hangs, hint="%service stop")

    def pid(self) -> int:
        """Process id of the running service, as it published it."""
        return self._published().pid

    def stop(self) -> bool:
        """Ask the running service to end, and wait until it has; a job that was running starts over with the next.

        False when none runs. One that does not answer is ended, too.

        Raises:
            UnreachableError: it does not end. LabError: the lab is read-only, and what runs in it is its owner's.
        """
        published = read_published(self._folder)
        if published is None or self._ended_within(0):
            return False
        if self._is_read_only():  # the process may have ended long ago, and another one have its number
            unseen = f"{self._folder.parent} is read-only: whether its service still runs cannot be seen"
            raise LabError(unseen, hint="%service stop in a notebook of its owner")
        os.kill(published.pid, signal.SIGTERM)
        with suppress(AttributeError, OSError):  # one that is suspended hears of it only then
            os.kill(published.pid, signal.SIGCONT)
        if not self._ended_within(_LONGEST_STOP):
            raise UnreachableError("the embedded service does not end", hint=f"!kill -9 {published.pid}")
        return True

    def report(self, action: str) -> str:
        """What `%service` shows: the `status`, the end of the `log`, or that the service was asked to `stop`.

        Raises:
            InputError: the action is none of `%service`; and as `running` and `stop`.
        """
        if action not in _ACTIONS:
            close = get_close_matches(str(action), _ACTIONS, n=1)
            raise InputError(f"the service cannot {action}", hint=f"%service {close[0] if close else 'status'}")
        if action == "log":
            return self.tail(40) or "the embedded service has written nothing"
        if action == "stop" and self.stop():
            return "the embedded service has stopped; the next %%chat starts it again"
        running = None if action == "stop" else self.running()
        if running is None:
            return "the embedded service is not running; the first %%chat starts it"
        state = f"the embedded service runs at {running.base_url}, lab folder {self._settings.home}"
        return f"{state}\nits context server is {running.base_url}/context -> %login embedded"

    def _ended_within(self, seconds: float) -> bool:
        """Whether no service holds the folder, now or before so many seconds have passed; False where it is unknown."""
        if self._is_read_only():
            return False
        lock = Lock(self._folder / "lock")
        if not lock.try_acquire(seconds):
            return False
        lock.release()
        return True

    def _is_read_only(self) -> bool:
        """Whether the lock that a service holds cannot be looked at."""
        return not may_fill(self._folder) or is_read_only(self._folder / "lock")

    def close(self) -> None:
        """Detach; the service ends by itself once nobody is attached."""
        if self._lock:
            with suppress(OSError):  # the service removes the file of a process that has ended
                Path(self._lock.lock_file).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    def _attach(self) -> None:
        """Hold a lock that the operating system frees when this process ends, however it ends."""
        own(self._folder / "clients")
        while self._lock is None:
            path = self._folder / "clients" / f"{uuid.uuid4().hex}.lock"
            lock = Lock(path, thread_local=False)
            # the service may have removed it between its making and its locking, or hang while it looks at it
            if lock.try_acquire(_HELD) and path.exists():
                self._lock = lock

    def _published(self) -> Published:
        """What the service says of itself in its folder; UnreachableError when it has just ended."""
        published = read_published(self._folder)
        if published is None:
            raise UnreachableError("the embedded service has just ended", hint="run the cell again")
        return published

    def _start(self, tick: Callable[[], None], start_empty: bool) -> Address:
        settings = self._settings
        command = [sys.executable, "-P", "-m", "rolloutlab", "serve", "--home", str(settings.home)]
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
