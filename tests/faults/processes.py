"""Services and clients as forks of one process that has imported everything: a start takes a second, not ten."""

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["ROLLOUTLAB_SETTINGS"] = os.devnull
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # it would complain of the fork

import rolloutlab.service.serve  # noqa: F401 - before the forks
from rolloutlab.cli.commands import main as command_line
from rolloutlab.policy import progress

progress._LEAST_SECONDS = progress._SHARE = 0  # jobs of a second keep what they have done after every row


def fork(work: Callable[[], object], log: Path) -> int:
    """Process id of a child that does the work in a session of its own and writes to the log; status 1: it raised."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its jobs in the background ignore it
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    status = 1
    try:
        status = int(work() or 0)
    except SystemExit:
        status = 0
    except BaseException:  # noqa: BLE001 - the child must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def serve(home: Path) -> int:
    """The embedded service of a lab folder, as a kernel starts it."""
    return command_line(["serve", "--home", str(home), "--policy", "practice", "--linger", "600"])


def wait_for_services() -> None:
    """Where this process would start a service it waits for one that its parent forks."""
    popen = subprocess.Popen
    subprocess.Popen = lambda command, **options: popen(["sleep", "120"], **options)  # type: ignore[assignment,misc]


def published(home: Path, pid: int) -> bool:
    """Whether the service with this process id has said where it listens."""
    try:
        return f'"pid": {pid}' in (home / "service" / "service.json").read_text()
    except OSError:
        return False


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def end(pid: int, number: int = signal.SIGKILL) -> int:
    """Send a signal to a child, wait for its end, and return its status; 0 when it has gone already."""
    try:
        os.kill(pid, number)
        return os.waitpid(pid, 0)[1]
    except (ProcessLookupError, ChildProcessError):
        return 0


def gone(pid: int) -> bool:
    """Whether a child has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def strays(home: Path, shared: bool = False) -> list[Path]:
    """Drafts, bodies of jobs and tensors that no start would ever sweep; to be called when no service runs.

    shared: the service's folder is that of other labs, too, and is left out.
    """
    drafts = [path for path in home.rglob("*") if path.name.endswith(".draft")]
    hidden = [path for path in home.rglob(".*") if path.name != ".lost" and path not in drafts]
    found = (home / "service" / "jobs").glob("*")
    bodies = [path for path in found if path.name != ".lost" and path not in drafts and not shared]
    return [*drafts, *hidden, *bodies]
