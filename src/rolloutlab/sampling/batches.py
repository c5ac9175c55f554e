"""Batches of what a run has sampled, which are stored in a thread while sampling goes on."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rolloutlab.errors import LabError

T = TypeVar("T")


class Batches(Generic[T]):
    """Passes items to `take` in a thread. Items that are added meanwhile form the next batch.

    If the caller of `flush` is cancelled, the batch goes on, and the next one waits for it. The items of a batch that
    fails are kept, and are part of the next batch.
    """

    def __init__(self, take: Callable[[Sequence[T]], None]) -> None:
        self._take = take
        self._items: list[T] = []
        self._batch: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T) -> None:
        """Add an item to the next batch."""
        self._items.append(item)

    async def flush(self) -> None:
        """Pass the items to `take`; its errors are raised here."""
        while self._batch:  # a batch of another caller: if it fails, its items are in `_items` again
            await asyncio.gather(asyncio.shield(self._batch), return_exceptions=True)
        items, self._items = self._items, []
        if items:
            self._batch = asyncio.create_task(self._pass_on(items))
            await asyncio.shield(self._batch)

    async def flush_at_end(self) -> None:
        """Flush, with a second try after a LabError: a disk may be locked or full for a moment only."""
        try:
            await self.flush()
        except LabError:
            await self.flush()

    async def _pass_on(self, items: list[T]) -> None:
        try:
            await asyncio.to_thread(self._take, items)
        except BaseException:
            self._items[:0] = items
            raise
        finally:
            self._batch = None
