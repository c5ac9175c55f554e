"""A registered model and tables of models and lost checkpoints, as a notebook holds them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from rolloutlab.api.wire.training import LostCheckpoint, ModelCard
from rolloutlab.errors import InputError, NotFoundError, NotOfferedError
from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import escape_control_chars

if TYPE_CHECKING:
    import pandas as pd

_ID_LENGTH = 36
_NO_STEPS = "its service lists no checkpoints"
_NAME = re.compile(r"(?P<project>[\w.-]+)/(?P<name>[\w.-]+)")


@dataclass(frozen=True)
class SelectedModel:
    """A trainable policy: its name, the service's id for it, what it stands on, and the steps it has checkpoints of.

    The name is the id where it was selected by that, and nothing is known of what it stands on; there are no steps
    where the service lists no checkpoints.
    """

    name: str
    id: str
    base: str
    steps: tuple[int, ...]

    @property
    def newest(self) -> int:
        """The newest step.

        Raises:
            NotOfferedError: the service lists no checkpoints.
        """
        if not self.steps:
            raise NotOfferedError(f"{self.name}: {_NO_STEPS}", hint=f"%%chat NAME samples {self.name} as it is")
        return max(self.steps)

    def checked(self, step: int) -> int:
        """The step; NotFoundError when it has no checkpoint."""
        if step not in self.steps and self.newest >= 0:
            some = ", ".join(map(str, sorted(self.steps)[-8:]))
            raise NotFoundError(f"{self.name} has no checkpoint {step}; there are {some}", hint="%models lists them")
        return step

    def two_steps(self, before: int, after: int | None, *, hint: str) -> tuple[int, int]:
        """Two steps that have checkpoints; `after` is the newest where it is None. hint: what makes a newer one.

        Raises:
            NotFoundError: one has no checkpoint. InputError: `before` is the newest.
        """
        steps = self.checked(before), self.newest if after is None else self.checked(after)
        if after is None and steps[0] == steps[1]:
            raise InputError(f"{self.name} has no checkpoint after {before} yet", hint=hint)
        return steps

    def __repr__(self) -> str:
        if not self.steps:
            return f"model {self.name}: {_NO_STEPS}"
        steps = "checkpoint 0" if len(self.steps) == 1 else f"{len(self.steps)} checkpoints, newest {self.newest}"
        return escape_control_chars(f"model {self.name}{self.base and f' on {self.base}'}: {steps}")


def table(cards: Sequence[ModelCard]) -> "pd.DataFrame":
    """One row per model that can be sampled, by its name.

    A base policy has no checkpoints, and of a service that only names its models no more is known.
    """
    import pandas as pd

    from rolloutlab.trajectories.frame import Frame

    index = pd.Index([card.id for card in cards], name="model")
    return Frame(
        {
            "base": pd.array([card.base_model for card in cards], dtype="string"),
            "newest": pd.array([card.newest_step for card in cards], dtype="Int64"),
            "checkpoints": pd.array([card.checkpoints for card in cards], dtype="Int64"),
        },
        index=index,
    )


def as_id(name: str) -> UUID | None:
    """The id of a model, where that is what it is called by."""
    try:
        return UUID(name) if isinstance(name, str) and len(name) == _ID_LENGTH else None
    except ValueError:
        return None


def split_name(name: str) -> tuple[str, str]:
    """Project and name of `project/name`.

    Raises:
        InputError: the name is of another form.
    """
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if not found:
        raise InputError(f"{name!r} is no name for a model", hint="project/name, such as lab/practice")
    return found["project"], found["name"]


_KINDS = "checkpoint"


@dataclass(frozen=True)
class LostCheckpointTable:
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
class RecoveredCheckpointTable:
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
