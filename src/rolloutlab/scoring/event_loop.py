"""Event loop of a session's reward coroutines, in a thread: clients stay connected from run to run."""

import asyncio
import contextvars
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from rolloutlab.fsutil import keep_for_ever

_RESPONSE = 2.0
"""Seconds within which a loop that no coroutine blocks runs a callback."""


class RewardLoop:
    """One event loop for all reward coroutines of a session, which begins with the first of them.

    A client such as `httpx.AsyncClient` or `openai.AsyncOpenAI` works on the loop of its first request only, so the
    loop ends with the session, not with a run. A loop that a coroutine blocks is left behind, and the next is new.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread, self._left = threading.Thread(), threading.Event()
        self._lock = threading.Lock()

    def _leave_parent(self) -> None:
        """After a fork: begin with a new loop, since threads do not survive it."""
        if self._process != os.getpid():
            keep_for_ever(self._loop)
            self._begin()

    def submit(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Run a coroutine on the loop; cancelling the future cancels it."""
        self._leave_parent()
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = "rolloutlab-rewards"
                self._left = threading.Event()
                self._thread = threading.Thread(target=_run, args=(self._loop, self._left), name=name, daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def is_blocked(self) -> bool:
        """Whether the loop runs nothing else for two seconds: a coroutine computes or waits without `await`."""
        if self._loop is None:
            return False
        runs = threading.Event()
        self._loop.call_soon_threadsafe(runs.set)
        return not runs.wait(_RESPONSE)

    def blocking(self) -> "tuple[asyncio.Task[Any] | None, traceback.StackSummary]":
        """The task that the loop runs now, and its stack, outermost first."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return asyncio.current_task(self._loop) if self._loop else None, traceback.extract_stack(frame)

    def leave(self) -> None:
        """Go on with a new loop; this one ends when what blocks it does."""
        self._leave_parent()
        with self._lock:
            if self._loop:
                self._left.set()
                with suppress(RuntimeError):  # it was stopping just then, and has ended
                    self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def close(self) -> None:
        """Cancel what is under way and end the loop; a blocked one is left behind."""
        self.leave()
        if self._thread.is_alive():
            self._thread.join(_RESPONSE)


def _run(loop: asyncio.AbstractEventLoop, left: threading.Event) -> None:
    """Run a loop until it is left; what hangs in it then is cancelled. A coroutine that stops it stops no other."""

    async def cancel() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    while not left.is_set():
        with suppress(KeyboardInterrupt, SystemExit):  # of a task, which end the loop's thread otherwise
            loop.run_forever()
    loop.run_until_complete(cancel())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def in_thread(function: Callable[..., Any], /, **arguments: Any) -> Any:
    """The result of a plain function, in a thread of its own: in those of `asyncio.to_thread`, which are few, calls
    that hang would take the place of later ones.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():  # it was cancelled
            setter(value)

    def work() -> None:
        try:
            outcome = future.set_result, context.run(function, **arguments)
        except BaseException as error:  # noqa: BLE001 - it is raised by the await
            outcome = future.set_exception, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=work, name="rolloutlab-reward", daemon=True).start()
    return await future
