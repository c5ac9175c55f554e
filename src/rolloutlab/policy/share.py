"""Data parallelism: the part of one process in a gradient step, and the sums over all processes."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor


def release_memory() -> None:
    """Give freed memory back; nothing where the C library has no such call.

    glibc keeps what tensors have left between others, and a batch or completion of another length seldom fits in there:
    a process that trained SmolLM2 grew by 2.7 GB with each job, of which nothing was in use.
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
    """Process `rank` of `size`, which all do the same but for their parts of each step.

    parts: how many there are; results depend on it alone, not on how many processes take them. None is one for each
    worker of the only process. add: None where there is one process. beat: called before each batch, as a sign of life.
    """

    rank: int = 0
    size: int = 1
    parts: int | None = None
    add: Add | None = None
    beat: Callable[[], None] = lambda: None

    def of(self, parts: list[T]) -> list[T]:
        """Every `size`-th part."""
        return parts[self.rank :: self.size]

    def sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum of each tensor over the processes, in one message of fp64."""
        if self.add is None:
            return list(tensors)
        flat = torch.cat([tensor.detach().flatten().to("cpu", torch.double) for tensor in tensors])
        self.add(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view_as(tensor).to(tensor) for part, tensor in zip(parts, tensors, strict=True)]


WHOLE = Share()
"""Of the only process."""
