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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from rolloutlab.errors import InputError, RewardError

OUTPUT = 1_000_000
"""Bytes of stdout, and of stderr, that are kept."""
PROCESSES = 32
"""Processes and threads that the code may have at a time."""
DISK_MB = 64
"""Size of the temporary folder and of any file in it."""
_CHILD = Path(__file__).with_name("sandbox_child.py")
_GRACE = 10.0
"""Seconds beyond the time limit after which the supervisor itself is ended."""
_CHUNK = 1 << 16


@dataclass(frozen=True)
class SandboxResult:
    """How a program ended.

    returncode: 1 after an exception, negative for a signal that ended it, else 0 or what it exited with. timed_out: it
    ran into `timeout`. limit: why the sandbox ended it: `timeout`, `memory` or `processes` (of all its processes
    together), else empty. truncated: more was printed than is in `stdout` and `stderr`. network_isolated: it had no
    network. files_read_only: all files but those of its temporary folder were read-only. finished: its last line was
    run, an exit by that line included; False after `os._exit(0)` or `sys.exit()` before it.
    """

    stdout: str
    stderr: str
    returncode: int
    limit: Literal["", "timeout", "memory", "processes"] = ""
    truncated: bool = False
    network_isolated: bool = False
    files_read_only: bool = False
    finished: bool = True

    @property
    def timed_out(self) -> bool:
        return self.limit == "timeout"

    @property
    def ok(self) -> bool:
        """The program reached its end without an exception: what comes last in it, such as a check, has run."""
        return self.returncode == 0 and self.finished


def python(code: str, timeout: float = 5, memory_mb: int = 256, stdin: str = "") -> SandboxResult:
    """Run a Python program in a child process, and end it with every process it started.

    It runs in isolated mode (`python -I`) with the installed packages, an empty environment and a temporary folder that
    is deleted, for `timeout` seconds, with `memory_mb` of memory, 32 processes or threads, 64 MB of files and 1 MB of
    kept output. Of that what the system has: on Linux in namespaces (namespaces(7)), where they are allowed: it has no
    network, sees no other process, cannot write to other files, and root's programs run as a user without files. Calls
    are safe in many threads at once.

    It stops accidents and usual reward hacks. It is no security boundary: the program can read every file that its user
    can read, it shares the kernel, and without namespaces (`network_isolated` is False) it has the network and can
    write to the user's files. Run code that you fear in a container or a virtual machine.

    Raises:
        InputError: a limit is not positive, or this system has no `fork`.
        RewardError: the sandbox itself failed.
    """
    options = _options(code, timeout, memory_mb)
    with (
        tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as given,
    ):
        Path(folder, "main.py").write_bytes(code.encode("utf-8", "surrogatepass"))
        given.write(stdin.encode("utf-8", "surrogatepass"))
        given.seek(0)
        reading, report = os.pipe()
        with os.fdopen(reading, "rb") as reports:
            try:
                process = _start(options | {"folder": folder, "report": report}, given)
            finally:
                os.close(report)
            with process:
                try:
                    texts, truncated = _output(process, reports, time.monotonic() + timeout + _GRACE)
                finally:
                    _end(process)
    out, err, ended = texts
    if not ended:
        raise RewardError(f"the sandbox did not start: {err.decode(errors='replace')[-500:] or 'no reason given'}")
    return _result(json.loads(ended), out, err, truncated)


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
    }


def _start(options: dict[str, Any], stdin: IO[bytes]) -> "subprocess.Popen[bytes]":
    environment = {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "HOME": options["folder"],
        "TMPDIR": options["folder"],
        "MALLOC_ARENA_MAX": "1",  # glibc reserves 64 MB of address space per thread for others
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_CHILD), json.dumps(options | {"environment": environment})],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"LANG": "C.UTF-8"},
        pass_fds=[options["report"]],
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
        ended["isolated"]["network"],
        ended["isolated"]["files"],
        ended["finished"],
    )
