"""Embedded service of a lab folder: find, check, start, stop, and stay attached while this process lives."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from rolloutlab.api.health import engine_of
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.http.secrecy import proves
from rolloutlab.errors import BrokenOffError, InputError, LabError, PolicyError, RolloutlabError, UnreachableError
from rolloutlab.fsutil import TO_HAVE_SPACE, Lock, has_space, is_read_only, may_be_held, may_fill, own, refused, to_copy
from rolloutlab.settings import Address, Settings, named_policy

_TIMEOUT = 15.0


@dataclass(frozen=True)
class Published:
    """A running service, as its folder names it. instance: differs with every start."""

    base_url: str
    inference_base_url: str
    policy: str
    pid: int
    instance: str
    token: str = field(repr=False)

    async def answers(self, http: HttpClient, timeout: float = _TIMEOUT) -> bool:
        """Whether the process at the address proves that it knows the token. RolloutlabError if no JSON comes."""
        nonce, url = secrets.token_hex(16), f"{self.base_url}/v1/health"
        health = await http.request("GET", url, params={"nonce": nonce}, timeout=timeout, retry=False)
        return proves(health, self.token, nonce, self.base_url) and health.get("instance") == self.instance


def read_published(folder: Path) -> Published | None:
    """Read the service that is published in a folder; None without one, or while its files are being written."""
    try:
        document = dict(json.loads((folder / "service.json").read_text()))
        texts = {name: str(document[name]) for name in ("base_url", "inference_base_url", "policy", "instance")}
        return Published(**texts, pid=int(document["pid"]), token=(folder / "token").read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass
class FolderToken:
    """The token of an embedded service. After a 401 the folder is read again, as the service may have been restarted.

    A new token is used only once the service has proved that it knows it.
    """

    folder: Path
    base_url: str
    current: str = field(repr=False, compare=False)
    http: HttpClient = field(repr=False, compare=False)

    def of(self, url: str) -> "FolderToken | None":
        """Return itself for URLs of the service; see `Bearers`."""
        return self if url.startswith(f"{self.base_url}/") else None

    async def token(self) -> str | None:
        """Return the token as it was last read."""
        return self.current

    async def after(self, status: int, headers: Iterable[tuple[str, str]], operation: str, token: str | None) -> bool:  # noqa: ARG002
        """Read the token again after a 401, and return whether there is a new one; see `TokenSource`.

        Raises:
            UnreachableError: the service of this token has ended, and another program refused it.
        """
        if status != 401:
            return False
        if token == self.current:
            await self._reload()
        return token != self.current  # a concurrent request may have reloaded it

    async def _reload(self) -> None:
        published = read_published(self.folder)
        try:
            proved = published and published.base_url == self.base_url and await published.answers(self.http)
        except RolloutlabError:
            proved = False
        if not (published and proved):
            raise UnreachableError(
                f"the embedded service at {self.base_url} has ended during the request; another program, or a service "
                "that is still starting, answers there now",
                hint="run the cell again, or %%chat NAME --resume where some completions had arrived",
            )
        self.current = published.token


_STARTING = "starting the embedded service"
_START_TIMEOUT = 120.0
_STOP_TIMEOUT = 20.0  # longer than the service gives itself, so that it can close its files
_KILL_TIMEOUT = 10.0
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows: SIGTERM kills there
_POLL = 0.05
_HANDOVER = 1.0  # seconds in which a starting service removes the published file of a killed one
_ATTACH_TIMEOUT = 1.0  # seconds to wait for a service that tests a client's lock; a suspended service holds it longer
_ACTIONS = ("status", "stop", "log", "check")  # of `%service`; the session itself handles `check`
_UNPROVED = (
    "does not prove that it knows the token of this lab: it is a service of an older rolloutlab, or another program"
)
_ERROR = re.compile(r"^[\w.]+Error: (?P<message>.+)(?:\n  -> (?P<hint>.+))?", re.MULTILINE)
"""An error in the format of the command line, or the last line of a traceback."""


class Embedded:
    """A client's handle of the embedded service: a process of its own, shared by every kernel of the lab folder.

    Args:
        settings: The settings for the service that is started next. The attribute may be replaced.
        http: Sends the requests.
        timeout: Seconds for a health check, after which the service counts as hanging.
    """

    def __init__(self, settings: Settings, http: HttpClient, *, timeout: float = _TIMEOUT) -> None:
        self.settings = settings
        self._folder = settings.service_folder
        self._http = http
        self._timeout = timeout
        self._lock: Lock | None = None
        self._foreign: Published | None = None  # the service of the lab that this one is a copy of

    @property
    def log(self) -> Path:
        """The log file of the service."""
        return self._folder / "log"

    def address(self, tick: Callable[[str], None] = lambda _: None, *, start_empty: bool = False) -> Address:
        """Return the address of the service, which is started if none runs.

        Args:
            tick: Called while the service starts, with what it is doing.
            start_empty: Start it even if its database lists no model and checkpoints are on disk.

        Raises:
            PolicyError: the service ended at its start; the message has its error.
            UnreachableError: it has neither answered nor noted anything new for two minutes; or an error of `running`.
            InputError: it runs with another policy than that of the settings.
            LabError: its folder cannot be written.
        """
        try:
            address = self._find_or_start(tick, start_empty)
        except OSError as error:
            hint = "set ROLLOUTLAB_HOME to a folder you can write to"
            raise refused(f"{self._folder} cannot be used", error, hint) from error
        if other := self.other_policy():
            raise InputError(other, hint="%service stop")
        return address

    def other_policy(self) -> str | None:
        """Say so if the running service has another policy or engine than the settings; None if it has not."""
        policy, expected = self._published().policy, named_policy(self.settings.policy, self.settings.model)
        return f"the service of this lab runs the policy {policy!r}, not {expected!r}" if policy != expected else None

    def _find_or_start(self, tick: Callable[[str], None], start_empty: bool) -> Address:
        """Return the address of the service, started if necessary. In a read-only lab it must be running already."""
        if may_fill(self._folder / "clients"):
            self._attach()
            return self.running() or self._start(tick, start_empty)
        if address := self.running():
            return address
        home = self._folder.parent
        raise LabError(f"{home} is read-only: no service runs, and none can be started in it", hint=to_copy(home))

    def running(self) -> Address | None:
        """Return the address of a running service that has proved that it knows the lab's token; None if none runs.

        Raises:
            UnreachableError: the service runs but does not answer, or another program is at its address.
        """
        published = read_published(self._folder)
        if published is None or published == self._foreign:
            return None
        # a service that is being stopped breaks the connection and ends soon after, one with too many clients sends
        # 503, and one that has just locked the folder removes the file of a killed one a moment later
        deadline = time.monotonic() + min(_HANDOVER, self._timeout / 2)
        for _ in _poll_for(self._timeout):
            try:
                proved = self._http.run(published.answers(self._http, self._timeout), every=_POLL)
            except RolloutlabError as error:
                if isinstance(error, UnreachableError) and not isinstance(error, BrokenOffError):
                    return None
                proved = None
            # the files may be copied with the lab: the service of the original answers, but does not hold this lock.
            # They stay for a moment after a service of the copy itself has locked the folder
            if not may_be_held(self._folder / "lock"):
                self._foreign = published
                return None
            if read_published(self._folder) != published:
                return None
            if proved:
                token = FolderToken(self._folder, published.base_url, published.token, self._http)
                return Address(published.base_url, published.inference_base_url, token)
            if proved is False and time.monotonic() > deadline:
                raise UnreachableError(f"what answers at {published.base_url} {_UNPROVED}", hint="%service stop")
        hangs = f"the embedded service (process {published.pid}) does not answer: it is suspended or overloaded"
        raise UnreachableError(hangs, hint="%service stop")

    def pid(self) -> int:
        """Return the process id of the running service."""
        return self._published().pid

    def stop(self) -> bool:
        """End the running service, and return whether one ran. It is killed unless it ends by itself within seconds.

        Nothing is lost: the next service resumes a running job from the gradient steps that are on disk.

        Raises:
            UnreachableError: the service does not end.
            LabError: the lab is read-only, so that its service is not this user's.
        """
        published = read_published(self._folder)
        if published is None or self._wait_for_end(0):
            return False
        if self._is_read_only():  # the process may have ended and its pid been reused
            message = f"{self._folder.parent} is read-only: whether its service still runs is unknown"
            raise LabError(message, hint="%service stop in a notebook of its owner")
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(published.pid, signal.SIGTERM)
        with suppress(AttributeError, OSError):  # a suspended process handles SIGTERM only when it is continued
            os.kill(published.pid, signal.SIGCONT)
        if not self._wait_for_end(_STOP_TIMEOUT) and read_published(self._folder) == published:
            # it may be in code that lets no other code run, such as a regular expression
            with suppress(ProcessLookupError):
                os.kill(published.pid, _KILL)
        if not self._wait_for_end(_KILL_TIMEOUT):
            raise UnreachableError("the embedded service does not end", hint=f"!kill -9 {published.pid}")
        return True

    def report(self, action: str) -> str:
        """Do what `%service` was asked for, and return its output.

        Raises:
            InputError: there is no such action.
            RolloutlabError: the errors of `running` and `stop`.
        """
        if action not in _ACTIONS:
            close = get_close_matches(str(action), _ACTIONS, n=1)
            raise InputError(f"the service cannot {action}", hint=f"%service {close[0] if close else 'status'}")
        if action == "log":
            lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
            return "\n".join(lines[-40:]) or "the embedded service has written nothing"
        if action == "stop" and self.stop():
            return "the embedded service has stopped; the next %%chat starts it again"
        running = None if action == "stop" else self.running()
        if running is None:
            return "the embedded service is not running; the first %%chat starts it"
        state = f"the embedded service runs at {running.base_url}, lab folder {self.settings.home}"
        with suppress(RolloutlabError):
            if engine := self._http.run(engine_of(self._http, running, own=True)):
                state = "\n".join([state, *engine.lines()])
        return f"{state}\nits context server is {running.base_url}/context -> %login embedded"

    def _wait_for_end(self, seconds: float) -> bool:
        """Wait until the service unlocks the folder, and return whether it did within so many seconds.

        The result is False if that cannot be tested.
        """
        if self._is_read_only():
            return False
        lock = Lock(self._folder / "lock")
        if not lock.try_acquire(seconds):
            return False
        lock.release()
        return True

    def _is_read_only(self) -> bool:
        """Whether the folder is read-only, so that the service's lock cannot be tested."""
        return not may_fill(self._folder) or is_read_only(self._folder / "lock")

    def close(self) -> None:
        """Detach. The service ends by itself after the last client has detached."""
        self._leave_parent()
        if self._lock:
            with suppress(OSError):  # the service removes the file of a process that has ended
                Path(self._lock.lock_file).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    def _leave_parent(self) -> None:
        """Give up the lock of the parent after a fork: the parent stays attached, and this process attaches itself."""
        if self._lock and self._lock.is_of_parent:
            self._lock = None

    def _attach(self) -> None:
        """Hold a lock, which the operating system frees when this process ends, however it ends."""
        self._leave_parent()
        own(self._folder / "clients")
        while self._lock is None:
            path = self._folder / "clients" / f"{uuid.uuid4().hex}.lock"
            lock = Lock(path, thread_local=False)
            # the service may have removed the file before it was locked, or hang while it tests the lock
            if lock.try_acquire(_ATTACH_TIMEOUT) and path.exists():
                self._lock = lock

    def _published(self) -> Published:
        published = read_published(self._folder)
        if published is None:
            raise UnreachableError("the embedded service has just ended", hint="run the cell again")
        return published

    def _start(self, tick: Callable[[str], None], start_empty: bool) -> Address:
        settings, started_at = self.settings, time.time()
        tick(_STARTING)
        command = [sys.executable, "-P", "-m", "rolloutlab", "serve", "--home", str(settings.home)]
        command += ["--policy", settings.policy, *settings.model.arguments, "--linger", str(settings.linger)]
        command += ["--start-empty"] * start_empty
        # transformers reads docstrings while it is imported, and PYTHONOPTIMIZE=2 would remove them
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONOPTIMIZE"}
        with self.log.open("ab") as log:
            start = log.tell()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
            )
        doing, deadline = "", time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline:
            if address := self.running():
                if process.pid != self.pid():  # another kernel's service was first
                    process.terminate()
                    process.wait()
                process.returncode = 0  # else Popen warns: the service outlives this kernel, which never waits for it
                return address
            if process.poll() is not None:
                raise self._start_error(start)
            if (now := self._read_note(started_at)) != doing:
                doing, deadline = now, time.monotonic() + _START_TIMEOUT
            tick(doing or _STARTING)
            time.sleep(_POLL)
        process.terminate()
        raise UnreachableError(f"the embedded service did not answer in {_START_TIMEOUT:.0f} s", hint="%service log")

    def _read_note(self, since: float) -> str:
        """Read what a starting service has noted that it is doing; empty unless it was noted since a time."""
        note = self._folder / "starting"
        try:
            return note.read_text() if note.stat().st_mtime >= since else ""
        except (OSError, ValueError):
            return ""

    def _start_error(self, start: int) -> PolicyError:
        """Make the error for a service that ended at its start, from the last one in its log after byte `start`."""
        written = self.log.read_bytes()[start:].decode(errors="replace")
        message = "the embedded service ended at its start"
        if not (errors := list(_ERROR.finditer(written))):
            if not has_space(self._folder):  # nor could the service say so in its log
                return PolicyError(f"{message}: the disk of {self._folder} is full", hint=TO_HAVE_SPACE)
            return PolicyError(message, hint="%service log")
        return PolicyError(f"{message}: {errors[-1]['message']}", hint=errors[-1]["hint"] or "%service log")


def _poll_for(seconds: float) -> Iterator[None]:
    """Yield every `_POLL` seconds, for so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(_POLL)
