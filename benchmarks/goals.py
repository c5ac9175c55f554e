"""The last lines of every benchmark: one per goal, and the exit status. `history.py` reads them again."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

_RELATIONS = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True)
class Goal:
    """A figure and what it is to be."""

    name: str
    figure: float
    relation: str
    goal: float

    @property
    def met(self) -> bool:
        return bool(_RELATIONS[self.relation](self.figure, self.goal))

    def __str__(self) -> str:
        verdict = "met" if self.met else "missed"
        return f"GOAL {self.name} {self.figure:.3g} {self.relation} {self.goal:g} {verdict}"


def conclude(goals: Sequence[Goal]) -> int:
    """Print a line per goal; 0 when all are met, else 1."""
    for goal in goals:
        print(goal)
    return 0 if all(goal.met for goal in goals) else 1
