"""Threads and event loops: a loop in a thread of its own, and calls in threads that may hang.

Other modules make a thread where they need one of another kind: `store.file_thread`, whose calls an interrupt must
not cut; `environments.thread`, whose loop answers pings between two calls; queues, pools and watches of their own.
"""

import asyncio
import atexit
import contextvars
import ctypes
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, TypeVar, cast

from rolloutlab.fsutil import keep_for_ever

T = TypeVar("T")
Outcome = tuple[Any, BaseException | None]
"""A result and None, or None and an exception.

A future can carry neither StopIteration nor, in Python 3.11, an exception that is false as a truth value.
"""
_End = Future[list[Coroutine[Any, Any, object]]]
"""Done when a loop is to end; its result are the coroutines that the loop runs before that."""
_CANCEL_TIMEOUT = 0.5
"""Seconds for a cancelled coroutine to end."""
_LOOP_TIMEOUT = 0.2
"""Seconds for a callback to run after an interrupt. A loop that takes longer counts as blocked."""
_RESPONSE = 2.0
"""Seconds for a callback to run at other times, when coroutines may compute; `close` waits as long for the end."""
_GRACE = 3.0
"""Seconds that the coroutine of a call has to clean up."""


class LoopThread:
    """An event loop in a daemon thread, which begins with the first coroutine.

    Clients such as `httpx.AsyncClient` work on the loop of their first request only, so one loop runs until `close`.
    There are two exceptions. If a coroutine blocks the loop, the loop is left behind and the next coroutine begins a
    new one. A forked process begins a new one too, because threads do not survive a fork.

    Args:
        name: The name of the thread.
        cleanup: Makes a coroutine that closes what users of the loop hold, such as connections. It is called, in any
            thread, when a loop is given up or the process ends, and the loop runs the coroutine last. A forked process
            calls it as well, but does not run the coroutine. It keeps it, so that what the coroutine refers to is never
            finalized: the parent still uses the same connections. None if nothing has to be closed.
    """

    def __init__(self, name: str, cleanup: Callable[[], Coroutine[Any, Any, object]] | None = None) -> None:
        self._name, self._cleanup = name, cleanup
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread, self._end = threading.Thread(), _End()
        self._lock = threading.RLock()  # reentrant: after an interrupt the main thread may still hold it

    def start(self) -> asyncio.AbstractEventLoop:
        """Return the running loop; begin one if none runs. OSError: no file descriptor is left for it."""
        self._leave_parent()
        with self._lock:
            if self._loop is None:
                loop, end = asyncio.new_event_loop(), _End()
                thread = threading.Thread(target=_run, args=(loop, end), name=self._name, daemon=True)
                thread.start()
                self._loop, self._end, self._thread = loop, end, thread
                if self._cleanup:  # open connections would cause warnings at the end of a script
                    atexit.register(self.close)
            return self._loop

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine on the loop; cancelling the future cancels it. OSError: as of `start`."""
        self._leave_parent()  # first: another thread of the parent may have held the lock at the fork
        with self._lock:  # so that no thread leaves the loop in between
            return asyncio.run_coroutine_threadsafe(work, self.start())

    def run(
        self,
        work: Coroutine[Any, Any, T],
        tick: Callable[[], None] | None = None,
        every: float = 0.1,
        *,
        to_its_end: bool = False,
    ) -> T:
        """Run a coroutine on the loop while this thread waits for it.

        Args:
            work: The coroutine. An exception in the wait, such as a KeyboardInterrupt, cancels it, and is raised once
                it has ended.
            tick: Called in this thread meanwhile.
            every: Seconds between two ticks.
            to_its_end: Wait without a limit for the end of a cancelled coroutine, as for a slow disk. A second
                interrupt ends the wait. By default the wait is short. If the coroutine blocks the loop by then, both
                are left behind; if it only takes longer to end, it goes on without being waited for.

        Raises:
            OSError: as of `start`.
        """
        outcome: Future[Outcome] = Future()
        begun: list[asyncio.Task[T]] = []

        def begin() -> None:
            begun.append(asyncio.ensure_future(work))
            begun[0].add_done_callback(lambda task: _settle(outcome, task))

        self._leave_parent()
        loop = None
        try:  # before the coroutine begins, because it may interrupt this thread at once
            with self._lock:
                loop = self.start()
                loop.call_soon_threadsafe(begin)
            while True:
                try:
                    return cast("T", _result_of(outcome.result(timeout=every)))
                except FutureTimeoutError:
                    if outcome.done():
                        return cast("T", _result_of(outcome.result()))
                    if tick:
                        tick()
        except BaseException:
            if loop and not outcome.done():  # callbacks run in order: after `begin`, however early the interrupt comes
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(lambda: [task.cancel() for task in begun])
                self._let_end(outcome, to_its_end)
            raise

    def _let_end(self, outcome: "Future[Any]", to_its_end: bool) -> None:
        """Wait for a cancelled coroutine. If it blocks the loop, leave the loop: the next call gets a new one."""
        if to_its_end:
            wait([outcome])
        elif not wait([outcome], timeout=_CANCEL_TIMEOUT).done and self.is_blocked(_LOOP_TIMEOUT):
            self.leave()

    def is_blocked(self, patience: float = _RESPONSE) -> bool:
        """Whether the loop runs no callback for `patience` seconds: a coroutine computes, or waits without `await`."""
        self._leave_parent()
        if (loop := self._loop) is None:
            return False
        runs = threading.Event()
        try:
            loop.call_soon_threadsafe(runs.set)
        except RuntimeError:  # another thread has just closed it
            return False
        return not runs.wait(patience)

    def running_task(self) -> "tuple[asyncio.Task[Any] | None, traceback.StackSummary]":
        """Find the task that the loop runs now, and its stack, outermost first."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return asyncio.current_task(self._loop) if self._loop else None, traceback.extract_stack(frame)

    def leave(self) -> None:
        """Leave this loop; the next coroutine begins a new one. Once free, the old one cancels its tasks and ends."""
        self._leave_parent()
        with self._lock:
            if self._loop:
                atexit.unregister(self.close)
                self._end.set_result([self._cleanup()] if self._cleanup else [])
                with suppress(RuntimeError):  # it was stopping just then, and has ended
                    self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def close(self) -> None:
        """Cancel all coroutines and end the loop; leave it behind if it is blocked."""
        self.leave()
        if self._thread.is_alive():
            self._thread.join(_RESPONSE)

    def _leave_parent(self) -> None:
        """In a forked process, begin anew. The old loop and its connections are not touched: the parent uses them."""
        if self._process != os.getpid():
            keep_for_ever([self._loop, self._thread, self._cleanup and self._cleanup()])
            self._begin()


class ThreadCall:
    """A call of a plain or async function in a daemon thread of its own, so that one that hangs harms no other.

    A coroutine runs on an event loop of its own there. outcome: done as soon as the call has returned or raised.
    """

    def __init__(self, work: Callable[[], Any], name: str) -> None:
        self.outcome: Future[Outcome] = Future()
        self.outcome.set_running_or_notify_cancel()  # cancelling a wait for it does not end the call
        self._work = work
        self._awaited: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
        self._is_ending = False
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True)
        self._thread.start()

    async def end(self) -> None:
        """Cancel a coroutine and give it some seconds to end. A plain function, or one that blocks, is left behind."""
        if self.outcome.done():
            return
        self._is_ending = True
        self._cancel_awaited()
        await asyncio.wait([asyncio.wrap_future(self.outcome)], timeout=_GRACE)

    def _cancel_awaited(self) -> None:
        """Cancel the coroutine if it has begun; only once, as a second cancellation would cut its clean-up short."""
        with suppress(IndexError, RuntimeError):  # it has not begun, or its loop has ended
            loop, task = self._awaited.pop()
            loop.call_soon_threadsafe(task.cancel)

    def interrupt(self) -> None:
        """Raise an EndedError in the call; see `raise_in_thread`."""
        raise_in_thread(self._thread.ident, EndedError)

    def _run(self) -> None:
        try:
            result = self._work()
            if inspect.isawaitable(result):
                asyncio.run(self._wait(result))  # which also ends what it has left running
            else:
                self.outcome.set_result((result, None))
        except BaseException as error:  # noqa: BLE001 - it may fail in any way, also by SystemExit
            if not self.outcome.done():
                self.outcome.set_result((None, error))

    async def _wait(self, result: Awaitable[Any]) -> None:
        task = asyncio.current_task()
        assert task, "this is a coroutine"
        self._awaited.append((asyncio.get_running_loop(), task))
        if self._is_ending:  # the plain part of the call took until now
            self._cancel_awaited()
        self.outcome.set_result((await result, None))


async def call_in_thread(work: Callable[[], Any], name: str) -> Any:
    """Call a function in a thread of its own. `asyncio.to_thread` has few threads, which calls that hang would fill."""
    return _result_of(await asyncio.wrap_future(ThreadCall(work, name).outcome))


class EndedError(BaseException):
    """Raised in the thread of a call that is to end."""


def raise_in_thread(ident: int | None, error: type[BaseException]) -> None:
    """Raise an exception in a thread at its next bytecode. This ends a loop in Python, but not a wait in C."""
    if ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))


def run_to_end(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine to its end on a loop, even if another one stops the loop or raises SystemExit.

    In both cases `run_until_complete` would raise.
    """
    task = loop.create_task(work)
    task.add_done_callback(lambda _: loop.stop())
    while not task.done():
        with suppress(KeyboardInterrupt, SystemExit):
            loop.run_forever()


async def finish_despite_cancellation(work: Coroutine[Any, Any, None]) -> None:
    """Wait until `work` has ended, even if the caller is cancelled meanwhile; then raise the cancellation."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])  # if `wait` is cancelled, the task is not
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled:
        raise cancelled


def _run(loop: asyncio.AbstractEventLoop, end: _End) -> None:
    """Run a loop until `end` is done, then the coroutines of `end`; cancel the tasks that are left, and close it."""
    while not end.done():  # again after a coroutine has stopped the loop
        with suppress(KeyboardInterrupt, SystemExit):  # raised by a task; it would end the thread
            loop.run_forever()
    for work in end.result():
        run_to_end(loop, work)
    run_to_end(loop, _cancel_others())
    run_to_end(loop, loop.shutdown_asyncgens())
    loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _result_of(outcome: Outcome) -> Any:
    """Return the result, or raise the exception, which may be false as a truth value."""
    result, error = outcome
    try:
        if error is not None:
            raise error
        return result
    finally:
        del outcome, error  # the exception holds this frame


def _settle(outcome: "Future[Outcome]", task: "asyncio.Task[Any]") -> None:
    """Pass the outcome of a task to the thread that waits for it."""
    if task.cancelled():
        outcome.cancel()
        outcome.set_running_or_notify_cancel()
    else:
        error = task.exception()
        outcome.set_result((task.result() if error is None else None, error))
