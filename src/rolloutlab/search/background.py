"""A background thread that works while the rest of the process is idle."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIET = 2.0
"""Seconds that the process must be idle before work starts or continues, so that cells go first."""
_BREATH = 0.05
"""Seconds between two measurements of the processor time of other threads."""
_SHARE = 0.2
"""The process is busy if other threads use more than this share of a processor."""
_LONGEST_END = 2.0
"""Closing waits at most this many seconds for the current step, because an embedding model may hang."""
Work = Callable[[Callable[[], None]], None]
"""A function that does the work. After every step it calls its argument, which returns once the process is idle."""


class Background:
    """One task at a time, in a thread that yields to the rest of the process.

    others: returns the seconds of processor time that the other threads of the process have used so far.
    """

    def __init__(self, name: str, work: Work, others: Callable[[], float] | None = None) -> None:
        self._name = name
        self._work = work
        self._others = others or _measure_other_threads
        self._begin_idle()
        self.problem: str | None = None
        """The error of the last run; None if it finished."""

    def _begin_idle(self) -> None:
        """Reset to no work and no thread.

        Also needed after a fork: the child has no such thread, and a lock that was held then would stay held.
        """
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._stop = threading.Event()
        """Set while any caller has the work stopped."""
        self._stoppers = 0
        self._requested = False
        self._thread: threading.Thread | None = None

    def _leave_parent(self) -> None:
        if self._process != os.getpid():
            self._begin_idle()

    def begin(self) -> None:
        """Start the work when the process is idle. If it runs already, run it once more afterwards."""
        self._leave_parent()
        with self._guard:
            self._requested = True
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Keep work from beginning in this context. Work under way stops after its current step."""
        self._hold()
        try:
            yield
        finally:
            with self._guard:
                self._stoppers -= 1
                if not self._stoppers:
                    self._stop.clear()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the work to finish, at most `timeout` seconds."""
        if thread := self._thread:
            thread.join(timeout)

    def close(self) -> None:
        """Stop for good after the current step."""
        self._hold()
        self.join(_LONGEST_END)

    def _hold(self) -> None:
        """Stop the work until as many callers release it as have called this. `close` never does."""
        self._leave_parent()
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
            except Exception as error:  # noqa: BLE001 - an error here belongs to no cell
                self.problem = f"{type(error).__name__}: {error}"

    def _take_request(self) -> bool:
        """Take the request that came since the last run began.

        False if there is none, or if the work is stopped: then the thread is to end.
        """
        with self._guard:
            requested = self._requested and not self._stop.is_set()
            if requested:
                self._requested = False
            else:
                self._thread = None
            return requested

    def _give_way(self, quiet: float) -> None:
        """Wait until the process has been idle for `QUIET` seconds. quiet: for how many it has been idle already."""
        idle_since, before = time.monotonic() - quiet, self._others()
        while not self._stop.wait(_BREATH):
            now, used = time.monotonic(), self._others()
            if used - before > _SHARE * _BREATH:
                idle_since = now
            elif now - idle_since >= QUIET:
                return
            before = used
        raise _Stopped


class _Stopped(Exception):  # noqa: N818 - control flow, not a failure
    """The work was stopped before it finished."""


def _measure_other_threads() -> float:
    return time.process_time() - time.thread_time()
