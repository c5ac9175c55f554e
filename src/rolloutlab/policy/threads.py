"""Threads of torch for one operation (intra-op): how many sampling takes, and when they end."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch

_SOFT = 1
"""The kind of pause after which nothing is forgotten but threads (OpenMP 5.0, section 3.6)."""


class Threads:
    """All threads for sampling while no job runs, and half of them beside one; a job always has all.

    A job's number never changes, since the bits of its result depend on it. torch has a number for each thread of
    Python once it has computed, and new ones begin with what any thread has set last: so each sets its own before it
    computes.
    """

    def __init__(self) -> None:
        self._all = torch.get_num_threads()
        self._jobs = 0
        self._lock = Lock()

    @contextmanager
    def training(self) -> Iterator[None]:
        """A context for a job, in the thread that trains."""
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
        """Set what the calling thread may use now."""
        count = max(1, self._all // 2) if self._jobs else self._all
        if torch.get_num_threads() != count:
            end_helpers()
            torch.set_num_threads(count)


def end_helpers() -> None:
    """End the threads that help the calling thread to compute; its next operation starts others.

    A thread of Python has helpers of its own, which stay. Once all threads with helpers and the helpers are more than
    the cores, GNU's OpenMP lets helpers that wait for work sleep, and to wake one takes longer than most operations:
    SmolLM2 was sampled at half the speed while the thread that had loaded it kept one helper. So an idle thread has
    none. Does nothing where torch has another OpenMP.
    """
    if (library := _openmp()) is not None:
        library.omp_pause_resource_all(_SOFT)


@cache
def _openmp() -> Any:
    """GNU's OpenMP that torch has brought; None without one that ends threads."""
    beside = Path(torch.__file__).parent
    for path in [*beside.glob("lib/libgomp*.so*"), *beside.parent.glob("torch.libs/libgomp*.so*")]:
        library = ctypes.CDLL(str(path))
        if hasattr(library, "omp_pause_resource_all"):
            return library
    return None
