"""Thread of an environment: its calls one after the other, its coroutines on one event loop, each with a time-out."""

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from rolloutlab.runtime import EndedError, Outcome, raise_in_thread, run_to_end

_NAME = "rolloutlab-environment"


class EnvironmentThread:
    """Runs the calls of one environment, in order. A call that waits for ever is left behind with its thread.

    All calls share one thread, because libraries may be bound to the thread that first used them. That is unlike
    `ThreadCall`, where each call has its own thread, and unlike `LoopThread`, where calls have no time-out.

    on_loop: whether to run all calls on an event loop that also runs between them. Clients that answer pings need that.
    Otherwise each awaitable result is awaited on a loop that runs only for it.
    """

    def __init__(self, *, on_loop: bool) -> None:
        self._loop = asyncio.new_event_loop() if on_loop else None
        self._ended = asyncio.Event()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Outcome]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_quietly, name=_NAME, daemon=True)
        self._under_way: Future[Outcome] | None = None
        self._last: Callable[[], Any] | None = None
        self._thread.start()

    async def is_free(self, patience: float) -> bool:
        """Return whether the last call has returned, even if nothing waits for it any more.

        patience: the most seconds to wait for it.
        """
        if self._under_way is not None and not self._under_way.done():
            await asyncio.wait([asyncio.wrap_future(self._under_way)], timeout=patience)
        return self._under_way is None or self._under_way.done()

    async def call(self, work: Callable[[], Any], timeout: float | None) -> Any:
        """Call `work` and return its result. A result that can be awaited is awaited.

        timeout: in seconds; None for no limit.

        Raises:
            RaisedError: the call raised an exception.
            CallTimeoutError: it took longer than the time-out. A coroutine is then cancelled.
        """
        done, scheduled = self._enqueue(work)
        self._under_way = done
        try:
            async with asyncio.timeout(timeout):  # not wait_for: in Python 3.11 it may lose a cancellation
                result, error = await asyncio.wrap_future(done)
        except TimeoutError:
            scheduled.cancel()
            raise CallTimeoutError from None
        except asyncio.CancelledError:
            scheduled.cancel()
            raise
        if error is not None:
            raise RaisedError(error)
        return result

    def call_last(self, work: Callable[[], Any]) -> None:
        """Let the thread call `work` after the running call, before it ends. Nothing waits for the result."""
        self._last = work

    async def call_beside(self, work: Callable[[], Any], timeout: float) -> Any:
        """Call `work` as `call` does, but in another thread: for an environment whose thread is busy."""
        beside = EnvironmentThread(on_loop=False)
        try:
            return await beside.call(work, timeout)
        finally:
            await beside.stop()

    def end(self) -> None:
        """Let the thread end after the running call."""
        self._calls.put(None)
        if self._loop:
            with suppress(RuntimeError):  # the loop is closed already
                # not loop.stop: called twice, it would also stop what `_run_loop` does at the end
                self._loop.call_soon_threadsafe(self._ended.set)

    async def stop(self) -> None:
        """End the thread and its running call. Python code ends at once, a wait in C only when it is over."""
        self.end()
        if not await self.is_free(0.1):
            raise_in_thread(self._thread.ident, EndedError)

    def _enqueue(self, work: Callable[[], Any]) -> tuple[Future[Outcome], Future[Any]]:
        """Queue a call; return the future of its outcome, and the future whose `cancel` cancels it."""
        done = Future[Outcome]()
        if self._loop is None:
            self._calls.put((work, done))
            return done, done
        done.set_running_or_notify_cancel()
        return done, asyncio.run_coroutine_threadsafe(_call_into(done, work), self._loop)

    def _run_quietly(self) -> None:
        with suppress(EndedError):  # of `stop`: it comes here if a coroutine does not end when it is cancelled
            (self._run_loop if self._loop else self._run)()

    def _run(self) -> None:
        runner = asyncio.Runner()  # it opens a loop, with its file descriptors, only for the first coroutine
        try:
            while call := self._calls.get():
                work, done = call
                if done.set_running_or_notify_cancel():
                    done.set_result(_run_call(work, runner))
            if self._last:
                _run_call(self._last, runner)
        finally:
            runner.close()

    def _run_loop(self) -> None:
        assert self._loop
        asyncio.set_event_loop(self._loop)
        try:
            run_to_end(self._loop, self._ended.wait())
            if self._last:
                run_to_end(self._loop, _call_into(Future(), self._last))
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            run_to_end(self._loop, asyncio.wait(tasks) if tasks else asyncio.sleep(0))
            run_to_end(self._loop, self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


class RaisedError(Exception):
    """A call of an environment raised `error`, which may be any exception, even SystemExit or CancelledError."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class CallTimeoutError(Exception):
    """A call of an environment took too long."""


def _run_call(work: Callable[[], Any], runner: asyncio.Runner) -> Outcome:
    try:
        result = work()
        return (runner.run(_await(result)) if inspect.isawaitable(result) else result), None
    except BaseException as error:  # noqa: BLE001 - an environment may fail in any way
        return None, error


async def _await(result: Any) -> Any:
    return await result


async def _call_into(done: "Future[Outcome]", work: Callable[[], Any]) -> None:
    """Call `work`, and put the outcome into a future, even if this task is cancelled."""
    outcome: Outcome = (None, asyncio.CancelledError())
    try:
        result = work()
        outcome = (await result if inspect.isawaitable(result) else result), None
    except BaseException as error:  # noqa: BLE001 - as above; the future has the outcome, also a cancellation
        outcome = None, error
    finally:
        with suppress(Exception):
            done.set_result(outcome)
