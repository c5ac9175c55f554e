"""A hint: a fact with its number, the evidence for it, and the cell to run about it."""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["bad", "warn", "info", "ok"]


@dataclass(frozen=True)
class Hint:
    """A fact with its number, the evidence for it, and the cell to run about it, if any."""

    fact: str
    evidence: str = ""
    cell: str = ""
    kind: Kind = "warn"

    def line(self) -> str:
        """It as a line of text."""
        return " ".join(filter(None, [self.fact, self.evidence])) + (f" -> {self.cell}" if self.cell else "")


def as_hint(line: str, kind: Kind = "warn") -> Hint:
    """A line of a report as a hint: ` -> ` parts what to type, which is a cell unless it is advice in words."""
    text, _, fix = line.partition(" -> ")
    expected = fix.removeprefix("nothing: ")
    if expected != fix:
        return Hint(f"{text}: {expected}", kind=kind)
    is_cell = fix.startswith("%") and not re.search(r", or |, then | with a |; ", fix)
    return Hint(text, "" if is_cell or not fix else f"-> {fix}", fix if is_cell else "", kind)
