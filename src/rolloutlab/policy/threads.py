"""Threads that torch uses for one operation (intra-op): how many sampling takes, and when they end."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch

_SOFT = 1
"""The kind of pause that ends threads and keeps all other state (OpenMP 5.0, section 3.2.44)."""


class Threads:
    """The numbers of threads: a job has all of them; sampling has all while no job runs, and half of them beside one.

    A job's number never changes, because the bits of its result depend on it. torch keeps a number for each Python
    thread that has computed, and a new thread begins with the number that any thread has set last. So each thread sets
    its own number before it computes.
    """

    def __init__(self) -> None:
        self._all = torch.get_num_threads()
        self._jobs = 0
        self._lock = Lock()

    @contextmanager
    def training(self) -> Iterator[None]:
        """Enter a context for a job, in the thread that trains."""
        torch.set_num_threads(self._all)
        with self._lock:
            self._jobs += 1
        try:
            yield
        finally:
            with self._lock:
                self._jobs -= 1
            end_helpers()

    def take_for_sampling(self) -> None:
        """Set how many threads the calling thread may use now."""
        count = max(1, self._all // 2) if self._jobs else self._all
        if torch.get_num_threads() != count:
            end_helpers()
            torch.set_num_threads(count)


def end_helpers() -> None:
    """End the threads that help the calling thread to compute; its next operation starts others.

    Each Python thread that computes has helpers of its own, and keeps them. Once threads and helpers together are more
    than the cores, GNU's OpenMP lets waiting helpers sleep, and waking one takes longer than most operations: SmolLM2
    was sampled at half the speed while the thread that had loaded it kept one helper. So an idle thread should have no
    helpers. If torch has another OpenMP, this does nothing.
    """
    if (library := _openmp()) is not None:
        library.omp_pause_resource_all(_SOFT)


@cache
def _openmp() -> Any:
    """Load the GNU OpenMP that torch has brought; None if there is none that can end threads."""
    beside = Path(torch.__file__).parent
    for path in [*beside.glob("lib/libgomp*.so*"), *beside.parent.glob("torch.libs/libgomp*.so*")]:
        library = ctypes.CDLL(str(path))
        if hasattr(library, "omp_pause_resource_all"):
            return library
    return None
