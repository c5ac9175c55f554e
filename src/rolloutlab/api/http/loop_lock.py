"""Locks of coroutines that outlive an event loop, as `HttpClient` begins another one after `close`."""

import asyncio


class LoopLock:
    """An asyncio.Lock per event loop, so a dead loop cannot hold the lock for the next one."""

    def __init__(self) -> None:
        self._current: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def lock(self) -> asyncio.Lock:
        """The lock of the running loop."""
        loop = asyncio.get_running_loop()
        if self._current is None or self._current[0] is not loop:
            self._current = loop, asyncio.Lock()
        return self._current[1]
