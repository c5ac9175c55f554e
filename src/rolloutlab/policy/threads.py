"""Threads of torch for one operation (intra-op): how many sampling takes, while a job runs and while none does"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch


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

    def take_for_sampling(self) -> None:
        """Set what the calling thread may use now."""
        count = max(1, self._all // 2) if self._jobs else self._all
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)
