"""A registered model, as a notebook holds it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from rolloutlab.errors import InputError, NotFoundError, NotOfferedError
from rolloutlab.visible import visible
from rolloutlab.wire.training import ModelCard

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

    def __repr__(self) -> str:
        if not self.steps:
            return f"model {self.name}: {_NO_STEPS}"
        steps = "checkpoint 0" if len(self.steps) == 1 else f"{len(self.steps)} checkpoints, newest {self.newest}"
        return visible(f"model {self.name}{self.base and f' on {self.base}'}: {steps}")


def table(cards: Sequence[ModelCard]) -> "pd.DataFrame":
    """One row per model that can be sampled, by its name.

    A base policy has no checkpoints, and of a service that only names its models no more is known.
    """
    import pandas as pd

    from rolloutlab.widgets.frame import Frame

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
