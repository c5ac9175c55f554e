"""Sandbox for Python code that a policy wrote: in bubblewrap if that works, else a child process with limits."""

import json
import math
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from rolloutlab.errors import InputError, RewardError

OUTPUT = 1_000_000
"""Bytes of stdout, and of stderr, that are kept."""
PROCESSES = 32
"""Processes that the code may have at a time."""
DISK_MB = 64
"""Size of any file, and with bubblewrap of the whole temporary folder."""
_CHILD = Path(__file__).with_name("sandbox_child.py")
_LEAST_MB = 256
"""The least memory of checks, which import more than most programs do."""
_LAST_SECONDS = 2.0
"""Seconds that checks get after the time limit, to report what failed."""
_LAST_KILL = 5.0
"""Seconds that a supervisor gets to end what the program has started, before it is killed itself."""
_LOOK = 0.02
"""Seconds between two looks at the processes. A fork bomb doubles in less than a millisecond."""
_FIRST_UID = 2_000_000_000
"""User ids from here on have no files and no processes. A program that root runs gets an id of its own from here."""
_SYSTEM = "/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/passwd"


@dataclass(frozen=True)
class SandboxResult:
    """How a program ended.

    Attributes:
        stdout: What it printed, up to `OUTPUT` bytes.
        stderr: The same of its standard error, followed by the output of the checks.
        returncode: Its exit status: 0 at its end, 1 after an exception. Negative if a signal ended it.
        limit: The limit that made the sandbox end it; empty if none did. Memory and processes are counted over all
            processes of the program together.
        truncated: Whether it printed more than is kept.
        network_isolated: Whether it had no network.
        files_read_only: Whether all files except those in its temporary folder were read-only.
        finished: Whether it came to its last line, which may itself be an exit. `os._exit(0)` or `sys.exit()` on an
            earlier line makes it False. A program can forge it.
        checked: Whether the checks passed, which run in a process of their own; None without checks.
        unprotected: What this run was not protected from, a line each.
    """

    stdout: str
    stderr: str
    returncode: int
    limit: Literal["", "timeout", "memory", "processes"] = ""
    truncated: bool = False
    network_isolated: bool = False
    files_read_only: bool = False
    finished: bool = True
    checked: bool | None = None
    unprotected: tuple[str, ...] = ()

    @property
    def timed_out(self) -> bool:
        return self.limit == "timeout"

    @property
    def ok(self) -> bool:
        """The checks passed. Without checks: the program reached its end without an exception, which it can forge."""
        return self.returncode == 0 and self.finished if self.checked is None else self.checked


def python(
    code: str, timeout: float = 5, memory_mb: int = 256, stdin: str = "", checks: str | None = None
) -> SandboxResult:
    """Run a Python program in a child process, and end it with every process it started.

    It runs in isolated mode (`python -I`) with the installed packages, an empty environment and a temporary folder that
    is deleted. Where bubblewrap (`bwrap`) works, it has no network and sees no other process and no file but Python's,
    which it cannot change. Without bubblewrap only the limits hold, and a line says so once. Calls are safe in many
    threads at once.

    It stops accidents and usual reward hacks. It is no security boundary: the program shares the kernel. The result's
    `unprotected` lists what a run was not protected from. Run code that you fear in a virtual machine.

    Args:
        code: the program, run as the script `main.py`.
        timeout: seconds, also for the checks.
        memory_mb: memory of each process, and of all of them together.
        stdin: the text of its standard input.
        checks: Python that calls the functions of the program and compares what they return, such as
            `assert double(2) == 4`. Tests of unittest and functions named `test_...` run as well. The checks run after
            the program, in a process of their own with the same limits. Checks that are appended to `code` would run in
            the process of the program, which can pretend that they passed. The program's functions run in the sandbox,
            and only plain values (numbers, texts, lists, dictionaries, ...) leave it. A name that the checks do not
            define is a built-in of Python, else the program's. The checks import the modules that they need. Checks
            that never call the program fail.

    Raises:
        InputError: a limit is not positive, or this system has no `fork`.
        RewardError: the sandbox itself failed.
    """
    _check_arguments(code, timeout, memory_mb, checks)
    isolation = _isolation(shutil.which("bwrap"))
    if not isolation.wrapper:
        _say_once(isolation.problem)
    memory, end = int(memory_mb * 2**20), time.monotonic() + timeout
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True))
        given, output = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        given.write(stdin.encode("utf-8", "surrogatepass"))
        given.seek(0)
        pipes = _Pipes(stack)
        report, reported = pipes.open()
        checking = None if checks is None else _Checks(checks, pipes, output)
        program = _start_program(
            isolation, folder, {"code": code, "report": reported, "calls": checking.calls if checking else []},
            _process_limits(memory, timeout), given,
        )  # fmt: skip
        try:
            pipes.close(reported)
            if checking:
                checking.start(memory, timeout)
            out, err, limit, truncated = _watch(program, isolation, memory, end)
        finally:
            _end_program(program, isolation)
            passed, why = checking.end(end) if checking else (None, "")
        begun, _, how = os.read(report, 4096).partition(b"\n")
    if not begun:
        late = f"the machine is too busy to start it within {timeout:g} s" if limit else "no reason given"
        raise RewardError(f"the sandbox did not start: {err[-500:] or late}")
    # without `how` the program has killed its supervisor, which runs with the same rights
    returncode, finished = json.loads(how) if how else (-signal.SIGKILL, False)
    isolated = bool(isolation.wrapper)
    return SandboxResult(
        out, err + why, returncode, limit, truncated, network_isolated=isolated, files_read_only=isolated,
        finished=finished, checked=passed, unprotected=_unprotected(isolation, passed),
    )  # fmt: skip


def _check_arguments(code: object, timeout: object, memory_mb: object, checks: object) -> None:
    if not hasattr(os, "fork"):
        raise InputError("the sandbox needs Linux or macOS", hint="run the notebook in WSL or in a container")
    if not isinstance(code, str):
        raise InputError(f"code must be a string, not {type(code).__name__}", hint="lab.sandbox.python(answer)")
    if not isinstance(checks, str | None):
        raise InputError(f"checks must be a string, not {type(checks).__name__}", hint='checks="assert f(2) == 4"')
    for name, value in (("timeout", timeout), ("memory_mb", memory_mb)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InputError(f"{name} must be a positive number, not {value!r}", hint="timeout=5, memory_mb=256")


class _Isolation(NamedTuple):
    """How programs are isolated here.

    wrapper: bubblewrap's command, which comes before Python's; empty if bubblewrap does not work.
    as_user: programs of root run as a user without files.
    problem: why bubblewrap is not used.
    """

    wrapper: tuple[str, ...]
    as_user: bool
    problem: str

    @property
    def own_processes(self) -> int:
        """Processes besides the program's: the supervisor and, with bubblewrap, the first one of its namespace."""
        return 2 if self.wrapper else 1


@cache
def _isolation(bwrap: str | None) -> _Isolation:
    """Find the strongest isolation that works here, by starting Python in each."""
    is_root = os.getuid() == 0
    problem = "it is not installed"
    for wrapper in ([_bubblewrap_command(bwrap)] if bwrap else []) + [()]:
        for as_user in (True, False) if is_root else (False,):  # Python may lie where no other user can read it
            try:
                subprocess.run(
                    [*wrapper, sys.executable, "-I", "-c", ""], capture_output=True, text=True, check=True, cwd="/",
                    env={}, **_identity(_FIRST_UID if as_user else None),
                )  # fmt: skip
                return _Isolation(wrapper, as_user, problem)
            except (OSError, subprocess.CalledProcessError) as error:
                if wrapper:
                    problem = " ".join((getattr(error, "stderr", "") or str(error)).split())[-200:]
    return _Isolation((), False, problem)


def _bubblewrap_command(bwrap: str) -> tuple[str, ...]:
    """Make the command of bubblewrap (bwrap(1)): all kinds of namespaces, and read-only files, of Python alone."""
    searched = subprocess.run(
        [sys.executable, "-I", "-c", "import sys; print(*sys.path, sep='\\0', end='')"],
        capture_output=True, text=True, check=False,
    ).stdout.split("\0")  # fmt: skip
    shown: list[str] = []
    for path in (*_SYSTEM, sys.base_prefix, sys.prefix, *searched):
        for each in (os.path.realpath(path), path):
            below = any(each != up and Path(each).is_relative_to(up) for up in shown)
            if each not in shown and not below and Path(each).exists():
                shown.append(each)
    binds = [part for path in shown for part in ("--ro-bind", path, path)]
    apart = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
    memory = ("--proc", "/proc", "--dev", "/dev", "--size", str(DISK_MB * 2**20), "--tmpfs", "/dev/shm")
    # /proc is read-only too, because root could change settings of the kernel there without any capability
    return (bwrap, *apart, *binds, *memory, "--remount-ro", "/dev", "--remount-ro", "/proc")


def _identity(user: int | None) -> dict[str, Any]:
    """Return the arguments of Popen that run a process as another user; none if `user` is None."""
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


@cache
def _say_once(problem: str) -> None:
    """Print that there is no bubblewrap, only in the first cell that runs a program."""
    lacks = "so the code of a policy has your network, and can read your files and signal your processes"
    is_missing = not shutil.which("bwrap") and shutil.which("apt-get")
    hint = "!apt-get install -y bubblewrap" if is_missing else 'lab.sandbox.python("").unprotected lists it'
    print(f"the sandbox has limits alone, without bubblewrap ({problem}), {lacks} -> {hint}")


class _Pipes:
    """Opens pipes. Ends that are still open when `stack` is left are closed then."""

    def __init__(self, stack: ExitStack) -> None:
        self._open: set[int] = set()
        stack.callback(lambda: self.close(*self._open))

    def open(self) -> tuple[int, int]:
        ends = os.pipe()
        self._open.update(ends)
        return ends

    def close(self, *ends: int) -> None:
        for end in ends:
            if end in self._open:
                self._open.remove(end)
                os.close(end)


def _command(file: IO[bytes], options: Mapping[str, Any]) -> list[str]:
    """Make the command of a child. Its options are in a file, because other processes can read arguments."""
    file.write(json.dumps(options).encode())
    file.seek(0)
    child = _CHILD.read_text("utf-8")  # as a text, because the program's user may not be able to read the file
    return [sys.executable, "-I", "-u", "-B", "-X", "utf8", "-c", child, str(file.fileno())]


def _environment(folder: str = "/") -> dict[str, str]:
    """Make the environment variables of a child."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # by default glibc reserves 64 MB of address space for each thread, which would count as memory
    return {"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": folder, "TMPDIR": folder, "MALLOC_ARENA_MAX": "1"} | threads


def _process_limits(memory: int, timeout: float) -> dict[str, int]:
    """Return the limits of each process of a program, by their names in resource(3)."""
    seconds = (int(min(timeout, 10**9)) + 1) * (os.cpu_count() or 1)  # of all threads, on all cores
    return {"CPU": seconds, "FSIZE": DISK_MB * 2**20, "CORE": 0, "AS": memory, "NOFILE": 256}


def _start_program(
    isolation: _Isolation, folder: str, options: dict[str, Any], limits: dict[str, int], stdin: IO[bytes]
) -> "subprocess.Popen[bytes]":
    """Start the supervisor of a program, which then starts the program in a process of its own."""
    user = _FIRST_UID + secrets.randbelow(2**27) if isolation.as_user else None
    if user is not None:
        os.chown(folder, user, user)
    if sys.platform == "linux":  # on other systems the limit is not one of the user's threads
        # a user that this process shares has threads already, which the limit counts too
        limits["NPROC"] = PROCESSES + (isolation.own_processes if user else _count_tasks(os.getuid()))
    own = ("--size", str(DISK_MB * 2**20), "--tmpfs", folder, "--chdir", folder, "--remount-ro", "/")
    wrapper = (*isolation.wrapper, *own) if isolation.wrapper else ()
    with tempfile.TemporaryFile() as file:
        program = subprocess.Popen(
            [*wrapper, *_command(file, options | {"limits": limits})],
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, env=_environment(folder),
            pass_fds=[file.fileno(), options["report"], *options["calls"]], start_new_session=True, **_identity(user),
        )  # fmt: skip
    with suppress(OSError):  # so that the kernel ends the program first when memory runs out
        Path(f"/proc/{program.pid}/oom_score_adj").write_text("1000")
    return program


class _Checks:
    """The process of checks, which waits until the program has run, and the pipes between the two.

    calls: the program's ends of the pipes. It reads requests from the first, and writes answers to the second.
    """

    def __init__(self, checks: str, pipes: _Pipes, output: IO[bytes]) -> None:
        (asked, ask), (answers, answer) = pipes.open(), pipes.open()
        self.calls = [asked, answer]
        self._options: dict[str, Any] = {"checks": checks, "requests": ask, "answers": answers}
        self._pipes, self._output = pipes, output
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, memory: int, timeout: float) -> None:
        """Start the checks, after the program has started.

        This process then closes its ends of the pipes, so that each side notices when the other one ends.
        """
        limits = {"AS": max(memory, _LEAST_MB * 2**20), "CPU": math.ceil(min(timeout, 10**9)) + 1}
        own = [self._options["requests"], self._options["answers"]]
        with tempfile.TemporaryFile() as file:
            self._process = subprocess.Popen(
                _command(file, self._options | {"limits": limits}),
                stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,  # doctest prints what failed
                env=_environment(), pass_fds=[file.fileno(), *own], start_new_session=True,
            )  # fmt: skip
        self._pipes.close(*own, *self.calls)

    def end(self, until: float) -> tuple[bool, str]:
        """Wait for the checks; return whether they passed, and what they wrote.

        They end with the program, or are ended soon after the time limit.
        """
        if self._process is None:
            return False, ""
        try:
            code = self._process.wait(max(until - time.monotonic(), 0) + _LAST_SECONDS)
        except BaseException as error:
            os.killpg(self._process.pid, signal.SIGKILL)
            code = self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):  # an interrupt
                raise
        self._output.seek(0)
        text = self._output.read(OUTPUT).decode(errors="replace")
        return code == 0, text if code >= 0 else f"{text}the checks did not end within the limits of time and memory\n"


def _watch(
    process: "subprocess.Popen[bytes]", isolation: _Isolation, memory: int, end: float
) -> tuple[str, str, Literal["", "timeout", "memory", "processes"], bool]:
    """Read what a program prints until it ends or runs into a limit.

    Returns:
        Its stdout, its stderr, the limit or an empty text, and whether more was printed than is kept.
    """
    assert process.stdout
    assert process.stderr
    kept = {stream.fileno(): bytearray() for stream in (process.stdout, process.stderr)}
    limit: Literal["", "timeout", "memory", "processes"] = ""
    truncated, look = False, 0.0
    with selectors.DefaultSelector() as selector:
        for stream in kept:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() or process.poll() is None:
            ready = selector.select(_LOOK)
            if not ready and process.poll() is not None:
                ready = selector.select(0)  # what it wrote before it ended
                if not ready:
                    break  # a process that has escaped still holds a pipe
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                room = OUTPUT - len(kept[key.fd])
                kept[key.fd] += data[:room]
                truncated |= len(data) > room
                if not data:
                    selector.unregister(key.fd)
            now = time.monotonic()
            if now > end:
                limit = "timeout"
            elif now > look:
                look, limit = now + _LOOK, _exceeded_limit(process.pid, isolation, memory)
            if limit:
                break
    out, err = (bytes(each).decode(errors="replace") for each in kept.values())
    return out, err, limit, truncated


def _descendants(pid: int) -> list[int]:
    """List the descendants of a process, parents before children; none if /proc does not list them."""
    below = [pid]
    for each in below:  # which grows
        with suppress(OSError):  # it has ended
            for task in Path(f"/proc/{each}/task").iterdir():
                below += map(int, (task / "children").read_text().split())
    return below[1:]


def _exceeded_limit(pid: int, isolation: _Isolation, memory: int) -> Literal["", "memory", "processes"]:
    """Find the limit that all processes of the program together exceed. The kernel only limits the memory of each."""
    own = isolation.own_processes if isolation.wrapper else 0  # without bubblewrap `pid` is the supervisor itself
    programs, pages = _descendants(pid)[own:], 0
    for each in programs:
        with suppress(OSError):  # it has ended
            _, resident, shared, *_ = map(int, Path(f"/proc/{each}/statm").read_text().split())
            pages += resident - shared
    if len(programs) > PROCESSES:
        return "processes"
    return "memory" if pages * os.sysconf("SC_PAGE_SIZE") > memory else ""


def _end_program(process: "subprocess.Popen[bytes]", isolation: _Isolation) -> None:
    """End a program that still runs, and wait until everything that it has started has ended."""
    with process:
        if process.poll() is not None:
            return
        first = _descendants(process.pid)[:1] if isolation.wrapper else []
        for each in first:  # when the first process of a namespace is killed, the kernel ends all others in it
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        if not first:
            process.terminate()  # the supervisor then ends the others
        try:
            process.wait(_LAST_KILL)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _count_tasks(user: int) -> int:
    """Count the threads that a user has already."""
    tasks = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            tasks += len([*Path(process, "task").iterdir()]) if process.stat().st_uid == user else 0
    return tasks


def _unprotected(isolation: _Isolation, checked: bool | None) -> tuple[str, ...]:
    """List what a run was not protected from."""
    root = os.getuid() == 0 and not isolation.as_user
    lines = {
        "ok: a program can pretend that it reached its end -> checks=": checked is None,
        "kernel: it shared the kernel of this machine, with all its system calls": True,
        "files: it could read your files, and change those that its user may": not isolation.wrapper,
        "processes: it could see and signal yours, and end its own supervisor": not isolation.wrapper,
        "network: it had yours, and the sockets of Docker or an SSH agent": not isolation.wrapper,
        "root: it ran as root, without capabilities": root and not isolation.wrapper,
    }
    return tuple(line for line, holds in lines.items() if holds)
