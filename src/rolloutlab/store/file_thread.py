"""Work that no interrupt may cut in two: a thread of its own does it, since Python interrupts only the main thread."""

import os
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import finalize

T = TypeVar("T")

Abandoned = Callable[[], bool]
"""Whether the caller was interrupted while it waited, so that what is not final yet should be undone."""


class Uninterrupted:
    """A thread that does work for the main thread, one piece after the other; other threads do theirs themselves.

    A `with` or a `try` in the main thread has gaps: an interrupt between two of its instructions leaves a lock held or
    a transaction open. Here the main thread only waits, on a lock of the call itself, and can leave at any instruction.
    """

    def __init__(self, name: str) -> None:
        pieces: SimpleQueue[_Piece[Any] | None] = SimpleQueue()
        self._name = name
        self._pieces = pieces
        self._start()
        self.end = finalize(self, pieces.put, None)

    def do(self, work: Callable[[Abandoned], T]) -> T:
        """What `work` returns, or raises. An interrupt leaves at once; a piece that was not begun is then not done."""
        if threading.current_thread() is not threading.main_thread() or not self.end.alive:
            return work(lambda: False)
        piece = _Piece(work)
        try:
            self._pieces.put(piece)
            if not self.end.alive:  # another thread ended it just now: the piece may lie behind the end
                self._pieces.put(None)
                self._start()
            piece.ended.acquire()
        except BaseException:
            piece.abandoned = True
            raise
        return piece.outcome()

    def between(self, begin: Callable[[], object], work: Callable[[], T], end: Callable[[], object]) -> T:
        """What `work` returns, done by the caller itself between two pieces.

        However the caller leaves, `end` is done before the next piece.
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
            last()  # of the main thread: one call into C, before which Python does not look for interrupts

    def _start(self) -> None:
        threading.Thread(target=_work, args=(self._pieces,), name=self._name, daemon=True).start()


class Turns:
    """A lock that no interrupt leaves held: one thread at a time has its turn, and may take another inside of it.

    first: done as each turn begins, where no interrupt reaches it.
    """

    def __init__(self, name: str, first: Callable[[], object]) -> None:
        self._name, self._first = name, first
        self._begin()

    def take(self, work: Callable[[], T]) -> T:
        """What `work` returns, done by the caller; no other thread's turn begins before it has ended."""
        if self._process != os.getpid():  # neither a thread nor the turn of another one outlives a fork
            self._begin()
        turn = threading.get_ident(), object()
        return self._thread.between(partial(self._enter, turn), work, partial(self._leave, turn))

    def end(self) -> None:
        self._thread.end()

    def _begin(self) -> None:
        self._lock = threading.Lock()  # which one thread may take and another one release
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
    """One call: what is to be done, and what came of it."""

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
        error, self._error = self._error, None  # which holds the frame that holds this
        if error:
            raise error
        return self._results[0]


def _work(pieces: "SimpleQueue[_Piece[Any] | None]") -> None:
    while piece := pieces.get():
        piece.run()
        del piece  # what it returned belongs to the caller
