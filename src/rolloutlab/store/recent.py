"""Recent values: what views of one lab have read last, shared by all of them"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

KEPT = 4


class RecentValues:
    """The last few values that were made, by their keys; what is older is made again when it is asked for.

    Each output of a notebook keeps its view until the kernel ends. Views therefore keep no rows of their own: those of
    16,000 trajectories take 11 MB.
    """

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value of a key, made if it is missing."""
        with self._lock:
            if key not in self._values:
                made = make()  # which may get values of its own
                self._values[key] = made
            self._values.move_to_end(key)
            while len(self._values) > KEPT:
                self._values.popitem(last=False)
            return self._values[key]
