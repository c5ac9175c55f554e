"""Work in a thread of its own, done while its process has nothing else to do."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIET = 2.0
"""Seconds without anything else to do before the work begins, or goes on: whoever uses the notebook goes first."""
_BREATH = 0.05
"""Seconds between two pieces of work, in which is seen whether there is something else to do."""
_SHARE = 0.2
"""Something else is done where it takes more than this part of a processor."""

Work = Callable[[Callable[..., None]], None]
"""It calls what it is given after every piece, which waits as long as somebody else goes first."""


class Background:
    """One piece of work at a time, in a thread that gives way to everything else in the process.

    others: seconds of processor time that other threads have taken so far.
    """

    def __init__(self, name: str, work: Work, others: Callable[[], float] | None = None) -> None:
        self._name = name
        self._work = work
        self._others = others or _of_other_threads
        self._stop = threading.Event()
        self._closed = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self.problem: str | None = None
        """What kept the work from its end, the last time."""

    def begin(self) -> None:
        """Do the work when there is time for it, unless it is being done."""
        with self._starting:
            if not self._closed and not (self._thread and self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The work stops after the piece that it is at, for somebody who does it now."""
        self._stop.set()
        try:
            yield
        finally:
            if not self._closed:
                self._stop.clear()

    def join(self) -> None:
        """Wait for the end of the work."""
        if self._thread:
            self._thread.join()

    def close(self) -> None:
        """Stop after the piece that it is at, for good."""
        with self._starting:
            self._closed = True
        self._stop.set()
        self.join()

    def _run(self) -> None:
        try:
            self._give_way(quiet=0.0)
            self._work(lambda *_told: self._give_way(quiet=QUIET))
            self.problem = None
        except _Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it raises belongs to no cell
            self.problem = f"{type(error).__name__}: {error}"

    def _give_way(self, quiet: float) -> None:
        """Come back after a breath, or when it has been quiet long enough. quiet: seconds that it was, so far."""
        begun, before = time.monotonic() - quiet, self._others()
        while not self._stop.wait(_BREATH):
            now, used = time.monotonic(), self._others()
            if used - before > _SHARE * _BREATH:
                begun = now
            elif now - begun >= QUIET:
                return
            before = used
        raise _Stopped


class _Stopped(Exception):  # noqa: N818 - no error: somebody else does the work, or the notebook ends
    """The work ends before it is done."""


def _of_other_threads() -> float:
    return time.process_time() - time.thread_time()
