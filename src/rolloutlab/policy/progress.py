"""The state of a training job after some of its steps, from which it goes on after the process was killed."""

import json
import time
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rolloutlab.fsutil import remove
from rolloutlab.policy.checkpoints import State

_LEAST_SECONDS = 1.0
"""The least time between two writes."""
_SHARE = 20
"""Writing takes at most one part in so many of a job's time."""
_ADAPTER, _OPTIMIZER = "adapter/", "optimizer/"


class Progress:
    """One file, replaced after steps of the job that `key` identifies; a file of another job is not read.

    least_seconds: the least time between two writes; None is a second.
    """

    def __init__(self, path: Path, key: str, least_seconds: float | None = None) -> None:
        self._path = path
        self._key = key
        self._least_seconds = _LEAST_SECONDS if least_seconds is None else least_seconds
        self._written = time.monotonic()
        self._took = 0.0

    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._written >= max(self._least_seconds, _SHARE * self._took)

    def write(self, state: State, reported: list[dict[str, object]]) -> None:
        """Write the state and the metrics of the steps before it. A failure, such as a full disk, ends no job."""
        begun = time.monotonic()
        self._save(state, reported)
        self._written = time.monotonic()
        self._took = self._written - begun

    def _save(self, state: State, reported: list[dict[str, object]]) -> None:
        tensors = {_ADAPTER + name: tensor for name, tensor in state.adapter.items()}
        tensors |= {_OPTIMIZER + name: tensor for name, tensor in state.optimizer.items()}
        # A folder, because safetensors first writes a file of a random name beside its target. After a kill, the next
        # start of the service removes the folder with it.
        draft = self._path.with_name(f"{self._path.name}.draft")
        try:
            draft.mkdir(exist_ok=True)
            file = draft / self._path.name
            save_file(tensors, file, metadata={"key": self._key, "reported": json.dumps(reported)})
            file.replace(self._path)
        except (OSError, SafetensorError):
            pass
        finally:
            remove(draft)

    def read(self) -> tuple[State, list[dict[str, object]]] | None:
        """Read the state and metrics that were written last; None if there are none, and the job starts over."""
        try:
            with safe_open(self._path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("key") != self._key:
                    return None
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
                reported: list[dict[str, object]] = json.loads(metadata["reported"])
        except (OSError, SafetensorError, ValueError):  # never written, or cut off by a loss of power
            return None
        return State(_select_below(_ADAPTER, tensors), _select_below(_OPTIMIZER, tensors)), reported


def _select_below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Select the tensors whose names have a prefix, and remove it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
