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
_LONGEST_END = 2.0
"""Seconds that closing waits for a piece of work: somebody else's code may hang in it."""

Work = Callable[[Callable[[], None]], None]
"""It calls what it is given after every piece, which waits as long as somebody else goes first."""


class Background:
    """One piece of work at a time, in a thread that gives way to everything else in the process.

    others: seconds of processor time that other threads have taken so far.
    """

    def __init__(self, name: str, work: Work, others: Callable[[], float] | None = None) -> None:
        self._name = name
        self._work = work
        self._others = others or _of_other_threads
        self._guard = threading.Lock()
        self._stop = threading.Event()
        """Set while somebody wants the work to stop, for however long."""
        self._stoppers = 0
        self._requested = False
        self._thread: threading.Thread | None = None
        self.problem: str | None = None
        """What kept the work from its end, the last time."""

    def begin(self) -> None:
        """Do the work when there is time for it; where it is being done already, once more after that."""
        with self._guard:
            self._requested = True
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The work stops after the piece that it is at, for somebody who does it now."""
        self._hold()
        try:
            yield
        finally:
            with self._guard:
                self._stoppers -= 1
                if not self._stoppers:
                    self._stop.clear()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the work, so many seconds at most."""
        if thread := self._thread:
            thread.join(timeout)

    def close(self) -> None:
        """Stop after the piece that it is at, for good."""
        self._hold()
        self.join(_LONGEST_END)

    def _hold(self) -> None:
        with self._guard:
            self._stoppers += 1
            self._stop.set()

    def _run(self) -> None:
        while self._take_request():
            try:
                self._give_way(quiet=0.0)
                self._work(lambda: self._give_way(quiet=QUIET))
                self.problem = None
            except _Stopped:
                pass
            except Exception as error:  # noqa: BLE001 - whatever it raises belongs to no cell
                self.problem = f"{type(error).__name__}: {error}"

    def _take_request(self) -> bool:
        """Whether somebody asked since the work was begun last; else this thread is none any more."""
        with self._guard:
            requested = self._requested and not self._stop.is_set()
            if requested:
                self._requested = False
            else:
                self._thread = None
            return requested

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
