"""Ways to take a figure."""

import os
import re
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
THREADS = sorted({1, os.cpu_count() or 1})
"""Numbers of threads to give a peer; its best figure counts."""


def best(work: Callable[[], object], repeats: int = 3, seconds: float = 3) -> float:
    """Seconds of the fastest run of so many seconds, and of a few at least, after one to warm up; only noise adds."""
    work()
    times: list[float] = []
    while len(times) < repeats or sum(times) < seconds:
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a process of its own: the thread pools of two sides in one process would get in each other's way."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def peak_memory(pid: int) -> int:
    """The most bytes that a process has had in memory since `forget_peak`."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found, "Linux says the peak; there is none here"
    return int(found[1]) * 1024


def forget_peak(pid: int) -> None:
    """Count the peak from what the process has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peer_python(name: str, root: Path = ROOT) -> str:
    """The Python of a peer's own environment, which is made first where it is missing or out of date.

    name: that of its requirements in benchmarks/peers or tests/acceptance. Raises CalledProcessError when pip fails.
    """
    environment = root / ".venvs" / name
    subprocess.run(["make", "--silent", f"{environment.relative_to(root)}/.ready"], cwd=root, check=True)
    return str(environment / "bin/python")


def packages_of(name: str, root: Path = ROOT) -> str:
    """The folder with the packages of such an environment, made likewise."""
    found = Path(peer_python(name, root)).parent.parent.glob("lib/python*/site-packages")
    return str(next(found))
