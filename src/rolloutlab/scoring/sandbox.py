"""Sandbox for Python code that a policy wrote: a child process with limits, without network where Linux allows it."""

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, Self

from rolloutlab.errors import InputError, RewardError

OUTPUT = 1_000_000
"""Bytes of stdout, and of stderr, that are kept."""
PROCESSES = 32
"""Processes and threads that the code may have at a time."""
DISK_MB = 64
"""Size of the temporary folder and of any file in it."""
_CHILD = Path(__file__).with_name("sandbox_child.py")
_CHECKS = Path(__file__).with_name("sandbox_checks.py")
_VALUES = Path(__file__).with_name("sandbox_values.py")
_LEAST_MB = 256
"""Memory that checks have at least: they import more than most programs do."""
_LAST_SECONDS = 2.0
"""Seconds in which checks say what failed, after the time limit."""
_GRACE = 10.0
"""Seconds beyond the time limit after which the supervisor itself is ended."""
_CHUNK = 1 << 16
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class SandboxResult:
    """How a program ended.

    returncode: 1 after an exception, negative for a signal that ended it, else 0 or what it exited with. timed_out: it
    ran into `timeout`. limit: why the sandbox ended it: `timeout`, `memory` or `processes` (of all its processes
    together), else empty. truncated: more was printed than is in `stdout` and `stderr`. network_isolated: it had no
    network. files_read_only: all files but those of its temporary folder were read-only. finished: its last line was
    run, an exit by that line included; False after `os._exit(0)` or `sys.exit()` before it; a program can forge it.
    checked: the checks passed, in a process of their own; None without checks. unprotected: what this run was not
    protected from, a line each.
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
    is deleted, for `timeout` seconds, with `memory_mb` of memory, 32 processes or threads, 64 MB of files and 1 MB of
    kept output. Of that what the system has: on Linux in namespaces (namespaces(7)), where they are allowed: it has no
    network, sees no other process, cannot write to other files, and root's programs run as a user without files. Calls
    are safe in many threads at once.

    checks: Python that calls the functions of the program and compares what they return, such as `assert double(2)
    == 4`; tests of unittest and functions named `test_...` run as well. It runs in another process when the program has
    ended, with the same limits; the functions run in the sandbox, and only plain values (numbers, texts, lists,
    dictionaries, ...) leave it. Names that the checks do not define are those of the program, but for built-in
    functions and modules of Python, which they import. Checks that call nothing of the program have not passed.
    Checks that are appended to `code` run in the process of the program, which can pretend that they passed.

    It stops accidents and usual reward hacks. It is no security boundary: the program can read every file that its user
    can read, it shares the kernel, and without namespaces it can write to the user's files and signal their processes.
    `unprotected` has what holds for this run. Run code that you fear in a container or a virtual machine.

    Raises:
        InputError: a limit is not positive, or this system has no `fork`.
        RewardError: the sandbox itself failed.
    """
    options = _options(code, timeout, memory_mb)
    if not isinstance(checks, str | None):
        raise InputError(f"checks must be a string, not {type(checks).__name__}", hint='checks="assert f(2) == 4"')
    with (
        tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as given,
        _Checks(checks, timeout, options["memory"]) as checking,
    ):
        Path(folder, "main.py").write_bytes(code.encode("utf-8", "surrogatepass"))
        given.write(stdin.encode("utf-8", "surrogatepass"))
        given.seek(0)
        reading, report = os.pipe()
        with os.fdopen(reading, "rb") as reports:
            try:
                process = _start(options | {"folder": folder, "report": report, "calls": checking.calls}, given)
            finally:
                os.close(report)
                checking.start()
            with process:
                try:
                    texts, truncated = _output(process, reports, time.monotonic() + timeout + _GRACE)
                finally:
                    _end(process)
                    passed, why = checking.end()
    out, err, ended = texts
    if not ended:
        raise RewardError(f"the sandbox did not start: {err.decode(errors='replace')[-500:] or 'no reason given'}")
    result = _result(json.loads(ended), out, err, truncated)
    unprotected = _unprotected(json.loads(ended), passed)
    return replace(result, checked=passed, stderr=result.stderr + why, unprotected=unprotected)


class _Checks:
    """The process of checks, and the pipes between it and the program; nothing where there are no checks."""

    def __init__(self, checks: str | None, timeout: float, memory: int) -> None:
        self._checks = checks
        self._limits = {"memory": max(memory, _LEAST_MB * 2**20), "seconds": math.ceil(min(timeout, 10**9)) + 1}
        self._give_up = time.monotonic() + timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self.calls: tuple[int, ...] = ()
        """The two ends of the program: requests to read, answers to write."""
        self._own: tuple[int, ...] = ()

    def __enter__(self) -> Self:
        if self._checks is not None:
            (asked, ask), (answers, answer) = os.pipe(), os.pipe()
            self.calls, self._own = (asked, answer), (ask, answers)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        for file in (*self.calls, *self._own):
            os.close(file)
        self.calls = self._own = ()

    def start(self) -> None:
        """Start the checks, which wait until the program has ended; then the pipes are theirs alone."""
        if self._checks is None:
            return
        options = {"checks": self._checks, "requests": self._own[0], "answers": self._own[1]} | self._limits
        options["values"] = _VALUES.read_text("utf-8")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        with tempfile.TemporaryFile() as given:  # not by arguments, which other processes can read
            given.write(json.dumps(options).encode())
            given.seek(0)
            self._process = self._started(given)
        for file in (*self.calls, *self._own):
            os.close(file)
        self.calls = self._own = ()

    def _started(self, given: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-I", "-X", "utf8", str(_CHECKS)],
            stdin=given,
            stdout=self._errors,  # on which doctest says what failed
            stderr=self._errors,
            env={"LANG": "C.UTF-8", "PATH": os.defpath, "MALLOC_ARENA_MAX": "1"} | _ONE_THREAD,
            pass_fds=self._own,
            start_new_session=True,
        )

    def end(self) -> tuple[bool | None, str]:
        """Whether the checks passed, and what they wrote to stderr; they end with the program, for which they wait."""
        if self._process is None or self._errors is None:
            return None, ""
        try:
            code = self._process.wait(max(self._give_up - time.monotonic(), 0) + _LAST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            code = self._process.wait()
        with self._errors as errors:
            errors.seek(0)
            errors_text = errors.read(OUTPUT).decode(errors="replace")
        self._process = self._errors = None
        if code < 0:
            errors_text += "the checks did not end within the limits of time and memory\n"
        return code == 0, errors_text


def _unprotected(ended: dict[str, Any], checked: bool | None) -> tuple[str, ...]:
    """What a run was not protected from."""
    isolated = ended["isolated"]
    root = "root: it ran as root, without capabilities, as Python lies where no other user can read it"
    if not isolated["files"]:
        root += "; it could change devices and settings of the system"
    lines = [
        (checked is not None, "ok: a program can pretend that it reached its end -> checks="),
        (False, "reading: it could read every file, and write to every named pipe, that its user can"),
        (isolated["files"], "writing: it could change your files"),
        (isolated["network"] or ended["sockets"], "network: it had yours"),
        (ended["sockets"], "sockets: it could connect to those with a path, as of Docker or an SSH agent"),
        (isolated["processes"], "processes: it could see, signal and change yours"),
        (ended["user"], root),
    ]
    return tuple(line for is_protected, line in lines if not is_protected)


def _options(code: str, timeout: float, memory_mb: int) -> dict[str, Any]:
    if not hasattr(os, "fork"):
        raise InputError("the sandbox needs Linux or macOS", hint="run the notebook in WSL or in a container")
    if not isinstance(code, str):
        raise InputError(f"code must be a string, not {type(code).__name__}", hint="lab.sandbox.python(answer)")
    for name, value in (("timeout", timeout), ("memory_mb", memory_mb)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InputError(f"{name} must be a positive number, not {value!r}", hint="timeout=5, memory_mb=256")
    return {
        "timeout": timeout,
        "memory": int(memory_mb * 2**20),
        "processes": PROCESSES,
        "disk": DISK_MB * 2**20,
        "python": sys.executable,
        "values": _VALUES.read_text("utf-8"),
    }


def _start(options: dict[str, Any], stdin: IO[bytes]) -> "subprocess.Popen[bytes]":
    environment = {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "HOME": options["folder"],
        "TMPDIR": options["folder"],
        "MALLOC_ARENA_MAX": "1",  # glibc reserves 64 MB of address space per thread for others
    } | _ONE_THREAD
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_CHILD), json.dumps(options | {"environment": environment})],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"LANG": "C.UTF-8"},
        pass_fds=[options["report"], *options["calls"]],
        start_new_session=True,
    )


def _output(
    process: "subprocess.Popen[bytes]", report: IO[bytes], give_up: float
) -> tuple[tuple[bytes, bytes, bytes], bool]:
    """stdout, stderr and the report, and whether some of it was left out; read until all are closed."""
    assert process.stdout
    assert process.stderr
    kept = {stream.fileno(): bytearray() for stream in (process.stdout, process.stderr, report)}
    truncated = False
    with selectors.DefaultSelector() as selector:
        for stream in kept:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < give_up:
            ready = selector.select(0.1)
            if not ready and process.poll() is not None:
                ready = selector.select(0)  # what it wrote since
                if not ready:
                    break  # a process that escaped holds a pipe open
            for key, _ in ready:
                data = os.read(key.fd, _CHUNK)
                room = OUTPUT - len(kept[key.fd])
                kept[key.fd] += data[:room]
                truncated |= len(data) > room
                if not data:
                    selector.unregister(key.fd)
    out, err, ended = map(bytes, kept.values())
    return (out, err, ended), truncated


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a supervisor that still runs: by SIGTERM it first ends what it supervises."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _result(ended: dict[str, Any], out: bytes, err: bytes, truncated: bool) -> SandboxResult:
    return SandboxResult(
        out.decode(errors="replace"),
        err.decode(errors="replace"),
        ended["returncode"],
        ended["limit"],
        truncated,
        ended["isolated"]["network"] or ended["sockets"],
        ended["isolated"]["files"],
        ended["finished"],
    )
