"""A registered model, as a notebook holds it."""

import re
from dataclasses import dataclass

from rolloutlab.errors import InputError, NotFoundError

_NAME = re.compile(r"(?P<project>[\w.-]+)/(?P<name>[\w.-]+)")


@dataclass(frozen=True)
class SelectedModel:
    """A trainable policy: its name, the service's id for it, what it stands on, and the steps it has checkpoints of."""

    name: str
    id: str
    base: str
    steps: tuple[int, ...]

    @property
    def newest(self) -> int:
        return max(self.steps)

    def checked(self, step: int) -> int:
        """The step; NotFoundError when it has no checkpoint."""
        if step not in self.steps:
            some = ", ".join(map(str, sorted(self.steps)[-8:]))
            raise NotFoundError(f"{self.name} has no checkpoint {step}; there are {some}", hint="%models lists them")
        return step

    def __repr__(self) -> str:
        steps = "checkpoint 0" if len(self.steps) == 1 else f"{len(self.steps)} checkpoints, newest {self.newest}"
        return f"model {self.name} on {self.base}: {steps}"


def split_name(name: str) -> tuple[str, str]:
    """Project and name of `project/name`.

    Raises:
        InputError: the name is of another form.
    """
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if not found:
        raise InputError(f"{name!r} is no name for a model", hint="project/name, such as lab/practice")
    return found["project"], found["name"]
