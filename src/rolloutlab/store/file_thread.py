"""Interrupt-safe execution in a worker thread: Python raises KeyboardInterrupt in the main thread only."""

import os
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import finalize

T = TypeVar("T")
Abandoned = Callable[[], bool]
"""A function that returns whether the caller was interrupted while it waited. Work is then undone, not committed."""


class Uninterrupted:
    """A worker thread that runs the calls of the main thread, one at a time. Other threads run their calls themselves.

    An interrupt between two bytecode instructions of a `with` or `try` in the main thread could leave a lock held or a
    transaction open. With this class the main thread only waits, so an interrupt does no harm anywhere.
    """

    def __init__(self, name: str) -> None:
        pieces: SimpleQueue[_Piece[Any] | None] = SimpleQueue()
        self._name = name
        self._pieces = pieces
        self._start()
        self.end = finalize(self, pieces.put, None)

    def do(self, work: Callable[[Abandoned], T]) -> T:
        """Call `work` and return its result. An interrupt ends the wait, and skips a call that has not begun."""
        if threading.current_thread() is not threading.main_thread() or not self.end.alive:
            return work(lambda: False)
        piece = _Piece(work)
        try:
            self._pieces.put(piece)
            if not self.end.alive:  # another thread ended it just now: the call may be queued after the end
                self._pieces.put(None)
                self._start()
            piece.ended.acquire()
        except BaseException:
            piece.abandoned = True
            raise
        return piece.outcome()

    def between(self, begin: Callable[[], object], work: Callable[[], T], end: Callable[[], object]) -> T:
        """Run `begin` in the worker thread, `work` in the caller, and `end` in the worker thread.

        Returns the result of `work`. However the caller returns, `end` runs before the next call.
        """
        if threading.current_thread() is not threading.main_thread() or not self.end.alive:
            last: Callable[[], object] = end
        else:
            last = partial(self._pieces.put, _Piece(lambda _: end()))
        try:
            self.do(lambda _: begin())
            result = work()
            return result  # noqa: RET504 - Python looks for interrupts after the call, which is still inside `try`
        finally:
            last()  # in the main thread this is one call into C, before which Python does not look for interrupts

    def _start(self) -> None:
        threading.Thread(target=_work, args=(self._pieces,), name=self._name, daemon=True).start()


class Turns:
    """A reentrant lock that an interrupt cannot leave held.

    first: called whenever the lock is taken, in the worker thread for calls of the main thread.
    """

    def __init__(self, name: str, first: Callable[[], object]) -> None:
        self._name, self._first = name, first
        self._begin()

    def take(self, work: Callable[[], T]) -> T:
        """Call `work` while the lock is held, and return its result."""
        if self._process != os.getpid():  # threads and their turns do not survive a fork
            self._begin()
        turn = threading.get_ident(), object()
        return self._thread.between(partial(self._enter, turn), work, partial(self._leave, turn))

    def end(self) -> None:
        self._thread.end()

    def _begin(self) -> None:
        self._lock = threading.Lock()  # acquired and released by different threads
        self._turn: tuple[int, object] | None = None
        self._thread = Uninterrupted(self._name)
        self._process = os.getpid()

    def _enter(self, turn: tuple[int, object]) -> None:
        if self._turn and self._turn[0] == turn[0]:
            return
        self._lock.acquire()
        self._turn = turn
        self._first()

    def _leave(self, turn: tuple[int, object]) -> None:
        if self._turn is turn:
            self._turn = None
            self._lock.release()


class _Piece(Generic[T]):
    """One call and its outcome."""

    def __init__(self, work: Callable[[Abandoned], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self.abandoned = False
        self.ended = threading.Lock()
        self.ended.acquire()

    def run(self) -> None:
        try:
            if not self.abandoned:
                self._results.append(self._work(lambda: self.abandoned))
        except BaseException as error:  # noqa: BLE001 - it is raised where the caller waits
            self._error = error
        finally:
            self.ended.release()

    def outcome(self) -> T:
        error, self._error = self._error, None  # breaks a cycle: the error holds a frame, and the frame this object
        if error is not None:  # not `if error`: the class of an exception may define its truth value
            raise error
        return self._results[0]


def _work(pieces: "SimpleQueue[_Piece[Any] | None]") -> None:
    while piece := pieces.get():
        piece.run()
        del piece  # or its result would stay alive here until the next call
