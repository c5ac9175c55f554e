"""One at a time, on whatever event loop there is."""

import asyncio


class Turns:
    """Turns at something. One that hangs with its loop keeps nobody on the next loop waiting."""

    def __init__(self) -> None:
        self._here: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def one(self) -> asyncio.Lock:
        """For `async with`: one turn."""
        loop = asyncio.get_running_loop()
        if self._here is None or self._here[0] is not loop:
            self._here = loop, asyncio.Lock()
        return self._here[1]
