"""Recent values: what the views of one lab have read last, shared by all of them."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

KEPT = 4
"""The number of values that are kept."""


class RecentValues:
    """The last few values that were made, by their keys. An older one is made again when it is needed.

    Each output of a notebook keeps its view until the kernel ends. Views therefore keep no rows of their own: those of
    16,000 trajectories take 11 MB.
    """

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the value of a key; make it if it is missing."""
        with self._lock:
            if key not in self._values:
                made = make()  # it may call `get`, so the value is stored only afterwards
                self._values[key] = made
            self._values.move_to_end(key)
            while len(self._values) > KEPT:
                self._values.popitem(last=False)
            return self._values[key]
