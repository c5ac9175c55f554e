"""The loops of a sweep as text and as a table, one row per loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutlab.hints import Hint, as_hint
from rolloutlab.objective.preflight import count
from rolloutlab.widgets.html import Html
from rolloutlab.widgets.kit import parts
from rolloutlab.widgets.kit.parts import band, figure, head, hints, panel
from rolloutlab.widgets.kit.table import Heading, TableRow, table


@dataclass(frozen=True)
class LoopResult:
    """What came of one loop of several; None is unknown.

    name, model: its collection and its model. settings: the settings in which the loops differ. seed: its number among
    the loops with these settings. rounds: how many are finished. before: the first held-out mean. best, again: the
    held-out mean of its best checkpoint, and the mean measured again with other seeds. step: the best checkpoint.
    """

    name: str
    model: str
    settings: Mapping[str, Any]
    seed: int
    rounds: int
    before: float | None
    best: float | None
    again: float | None
    step: int | None

    @property
    def numbers(self) -> tuple[int, int, float | None, float | None, float | None, int | None]:
        """Seed, rounds, before, best, again and step."""
        return self.seed, self.rounds, self.before, self.best, self.again, self.step


BestOfAll = tuple[str | None, float | None]
"""The best checkpoint of all loops, and its held-out mean with other seeds, if they are known."""


def text(name: str, planned: int, results: Sequence[LoopResult], best: BestOfAll, ended: str) -> str:
    """Write the loops as plain text, a line for each.

    Args:
        name: The name of the sweep.
        planned: How many loops there will be.
        results: The loops so far.
        best: The best checkpoint of all.
        ended: Why the sweep has stopped; empty while it runs.
    """
    heading = f"{_title(name, planned, results)}{f', best {best[0]}' if best[0] else ''}"
    heading += f": {_again(best[1])}" if best[1] is not None else ""
    return "\n".join([heading, *map(_line, results), *filter(None, [ended])])


def html(
    name: str, planned: int, results: Sequence[LoopResult], best: BestOfAll, ended: str, notes: Sequence[str]
) -> Html:
    """Draw the loops as a view, with the best one marked.

    Args:
        name: The name of the sweep.
        planned: How many loops there will be.
        results: The loops so far.
        best: The best checkpoint of all.
        ended: Why the sweep has stopped; empty while it runs.
        notes: Lines on single loops.
    """
    chosen, mean = best
    shown = figure("Best", chosen, "", *([parts.line(_again(mean))] if mean is not None else [])) if chosen else ""
    settings = list(dict.fromkeys(key for each in results for key in each.settings))
    headings = [Heading("loop"), *(Heading(key, number=True) for key in settings)]
    headings += [Heading(each, number=True, middle=each in {"rounds", "before"}) for each in _NUMBERS]
    rows = [
        TableRow(
            [each.name, *(_value(each.settings.get(key)) for key in settings), *map(_value, each.numbers)],
            chosen=chosen == f"{each.model}@{each.step}",
        )
        for each in results
    ]
    return panel(
        head(f"loops {name}", f"{len(results)} of {count(planned, 'loop')}"),
        hints([*_end(ended), *(as_hint(note, "info") for note in notes)]),
        band(shown) if shown else "",
        table(headings, rows, f"loops of {name}") if rows else "",
    )


_NUMBERS = ("seed", "rounds", "before", "best", "measured again", "at step")


def _title(name: str, planned: int, results: Sequence[LoopResult]) -> str:
    return f"loops {name}: {len(results)} of {count(planned, 'loop')}"


def _again(mean: float | None) -> str:
    return f"held-out {mean:.3f} with other seeds than it was chosen by"


def _line(one: LoopResult) -> str:
    pieces = [one.name, count(one.rounds, "round")]
    pieces += [f"held-out {one.before:.3f} before"] if one.before is not None else []
    pieces += [f"best {one.best:.3f} at step {one.step}"] if one.best is not None else []
    pieces += [f"{one.again:.3f} measured again"] if one.again is not None else []
    return "  ".join(pieces)


def _end(ended: str) -> list[Hint]:
    """Return a hint why the sweep has stopped, marked as bad if it can go on."""
    what, _, goes_on = ended.partition("; ")
    return [Hint(what, goes_on, kind="bad")] if goes_on else [as_hint(ended)] if ended else []


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)
