"""Data parallelism: the part of one process in a gradient step, and the sums over all processes."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor


def release_memory() -> None:
    """Give freed memory back to the system, if the C library has a call for it.

    glibc keeps the gaps that freed tensors leave between others, and a batch or completion of another length seldom
    fits into them. A process that trained SmolLM2 grew by 2.7 GB with each job, none of it in use.
    """
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # macOS and musl have none, and Windows no library of the process
        return None


T = TypeVar("T")
Add = Callable[[Tensor], None]
"""Replaces a flat fp64 tensor on the CPU by its sum over the processes (MPI's all-reduce)."""


@dataclass(frozen=True)
class Share:
    """Process `rank` of `size`. All processes do the same, except that each takes its own parts of each step.

    parts: how many parts a step is divided into; results depend on that number, not on the number of processes. None is
    one part for each worker of the only process. add: None if there is one process. beat: called before each batch, as
    a sign of life.
    """

    rank: int = 0
    size: int = 1
    parts: int | None = None
    add: Add | None = None
    beat: Callable[[], None] = lambda: None

    def of(self, parts: list[T]) -> list[T]:
        """Select every `size`-th part, beginning with part `rank`."""
        return parts[self.rank :: self.size]

    def sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sum each tensor over the processes, in one message of fp64."""
        if self.add is None:
            return list(tensors)
        flat = torch.cat([tensor.detach().flatten().to("cpu", torch.double) for tensor in tensors])
        self.add(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view_as(tensor).to(tensor) for part, tensor in zip(parts, tensors, strict=True)]


WHOLE = Share()
"""The share of the only process."""
