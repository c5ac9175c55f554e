"""Calls in a thread and an event loop of their own, so that one that hangs or blocks harms no other."""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

_GRACE = 3.0
"""Seconds that a cancelled coroutine has to clean up."""


class OwnThread:
    """A call of a plain or async function.

    outcome: its result and None, or None and what it raised: a future cannot carry StopIteration.
    """

    def __init__(self, call: Callable[[], Any], name: str) -> None:
        self.outcome: Future[tuple[Any, BaseException | None]] = Future()
        self.outcome.set_running_or_notify_cancel()  # what waits for it may be cancelled, and the call goes on
        self._call = call
        self._awaited: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True).start()

    async def end(self) -> None:
        """Cancel a coroutine, and give it some seconds; one that blocks, or a plain function, is left behind."""
        if self.outcome.done():
            return
        for loop, task in self._awaited:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait([asyncio.wrap_future(self.outcome)], timeout=_GRACE)

    def _run(self) -> None:
        try:
            result = self._call()
            if inspect.isawaitable(result):
                asyncio.run(self._wait(result))  # which also ends what it has left running
            else:
                self.outcome.set_result((result, None))
        except BaseException as error:  # noqa: BLE001 - a program may fail in any way, also by SystemExit
            if not self.outcome.done():
                self.outcome.set_result((None, error))

    async def _wait(self, result: Awaitable[Any]) -> None:
        task = asyncio.current_task()
        assert task, "this is a coroutine"
        self._awaited.append((asyncio.get_running_loop(), task))
        self.outcome.set_result((await result, None))
