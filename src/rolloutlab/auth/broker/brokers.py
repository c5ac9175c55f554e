"""Who asks the person that sits at a notebook, however it is shown by then."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from rolloutlab.auth.broker.broker import Broker
from rolloutlab.auth.consent import Prepare
from rolloutlab.errors import SignInError

_WATCHED = 5.0
"""Seconds in which the thread of a cell that waits has looked, several times."""


class Brokers:
    """The `Consent` of a notebook. make: a broker for how the notebook is shown now; whether addresses are pasted."""

    def __init__(self, make: Callable[[bool], Broker]) -> None:
        self._make = make
        self._known: dict[bool, Broker] = {}
        self._looking = 0
        self._awaited: list[Callable[[], object]] = []

    def of(self, *, paste: bool) -> Broker:
        """The one that asks already, else a new one."""
        if paste not in self._known or not self._known[paste].busy:
            self._known[paste] = self._make(paste)
        return self._known[paste]

    def tick(self) -> None:
        """For the thread of a cell that waits, as `Broker.tick`."""
        self._looking += 1
        try:
            for seen in list(self._awaited):
                seen()
            for broker in list(self._known.values()):
                broker.tick()
        finally:
            self._looking -= 1

    async def __call__(self, server: str, prepare: Prepare, port: int | None = None) -> Mapping[str, str]:
        """Ask on the way, where a cell waits below which it can be shown.

        Raises:
            As `Broker`; SignInError also when no cell waits.
        """
        if not await self._watched():
            said = f"{server} wants you to allow more, and no cell waits that could ask you"
            raise SignInError(said, hint=f"%login {server}")
        return await self.of(paste=False)(server, prepare, port)

    def settled(self, server: str, well: bool, note: str) -> None:
        """Tell who asked what came of it."""
        for broker in list(self._known.values()):
            broker.settled(server, well, note)

    async def _watched(self) -> bool:
        """Whether a thread looks now, or soon; one may be held by a question of its own."""
        watched = asyncio.Event()
        seen = partial(asyncio.get_running_loop().call_soon_threadsafe, watched.set)
        self._awaited.append(seen)
        try:
            await asyncio.wait_for(watched.wait(), 0 if self._looking else _WATCHED)
        except TimeoutError:
            return self._looking > 0
        finally:
            self._awaited.remove(seen)
        return True
