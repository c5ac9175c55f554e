"""Checkpoints that a service found on disk and its database does not list, in words."""

from collections.abc import Sequence
from dataclasses import dataclass

from rolloutlab.objective.preflight import count
from rolloutlab.wire.training import LostCheckpoint

_KINDS = "checkpoint"


@dataclass(frozen=True)
class LostCheckpoints:
    """What is set aside, or, with `removed`, what was until it was removed. False when there is nothing."""

    checkpoints: Sequence[LostCheckpoint]
    removed: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of all their files together."""
        return sum(lost.bytes for lost in self.checkpoints)

    def __bool__(self) -> bool:
        return bool(self.checkpoints)

    def __repr__(self) -> str:
        if not self:
            return "no checkpoint was removed" if self.removed else "no checkpoint is set aside"
        what = f"{count(len(self.checkpoints), _KINDS)} ({self.bytes:,} bytes)"
        if self.removed:
            return "\n".join([f"removed {what}:", *map(_line, self.checkpoints)])
        head = f"{what} in the service's folder models/.lost, which its database does not list:"
        typed = "  -> %models --recover lists them again; %models --purge removes them"
        return "\n".join([head, *(f"{_line(lost)}: {lost.reason}" for lost in self.checkpoints), typed])


@dataclass(frozen=True)
class RecoveredCheckpoints:
    """What is listed again, and what remains set aside, each with the reason."""

    recovered: Sequence[LostCheckpoint]
    remaining: Sequence[LostCheckpoint]

    def __repr__(self) -> str:
        if not self.recovered and not self.remaining:
            return "no checkpoint is set aside"
        lines = [f"listed again: {count(len(self.recovered), _KINDS)}", *map(_line, self.recovered)]
        return "\n".join([*lines, *(f"{_line(lost)} remains set aside: {lost.reason}" for lost in self.remaining)])


def _line(lost: LostCheckpoint) -> str:
    return f"  {lost.model or lost.model_id}@{lost.step}  {lost.bytes:,} bytes"
