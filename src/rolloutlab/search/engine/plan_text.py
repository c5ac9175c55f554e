"""Execution plan of a search in one line, and warnings about missing rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rolloutlab.objective.preflight import count
from rolloutlab.search.engine.backend import Hits
from rolloutlab.search.query import Search
from rolloutlab.search.rank import EMBEDDING, Knn


@dataclass(frozen=True)
class ExecutionPlan:
    """How a search was executed. `str()` gives "filter 50,054 of 100,000 → knn 16 → 3 groups → 6 rows, 5 ms".

    Attributes:
        total: The number of all records.
        qualified: The number of records that match the filter.
        filtered: Whether there is a filter.
        nearest: How many records each knn returned, by key.
        scored: The number of records with a score; None without a rank.
        groups: The number of groups; None without `group_by`.
        rows: The number of rows of the result.
        seconds: The time that the search took.
    """

    total: int
    qualified: int
    filtered: bool
    nearest: tuple[tuple[str, int], ...]
    scored: int | None
    groups: int | None
    rows: int
    seconds: float

    def __str__(self) -> str:
        of_total = f"filter {self.qualified:,} of {self.total:,}" if self.filtered else count(self.total, "record")
        knns = " + ".join(f"{'knn' if key == EMBEDDING else key} {number:,}" for key, number in self.nearest)
        steps = [of_total, *([knns] if knns else [])]
        if self.scored is not None and (len(self.nearest) != 1 or self.scored != self.nearest[0][1]):
            steps.append(f"{self.scored:,} scored")
        if self.groups is not None:
            steps.append(count(self.groups, "group"))
        return f"{' → '.join([*steps, count(self.rows, 'row')])}, {1000 * self.seconds:.0f} ms"


@dataclass(frozen=True)
class ServerPlan:
    """The plan of a search that a server executed. seconds: round trip."""

    origin: str
    rows: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.origin} → {count(self.rows, 'row')}, {1000 * self.seconds:.0f} ms"


def warnings(
    search: Search, plan: ExecutionPlan, hits: Mapping[Knn, Hits], *, available: int, smallest: int, nans: int
) -> Iterator[str]:
    """Warn that rows may be missing, or in an unintended order.

    Args:
        search: The search.
        plan: How it was executed.
        hits: The records that each `knn` found.
        available: The number of records after grouping, before `limit` and `offset`.
        smallest: The number of records in the smallest group.
        nans: The number of records whose score is not a number.
    """
    needed = search.limit.limit and search.limit.offset + search.limit.limit
    cut = [knn for knn, nearest in hits.items() if len(nearest.places_K) == knn.limit < plan.qualified]
    largest = max((knn.limit for knn in cut), default=0)
    if cut and largest < needed and available < needed and search.group_by is None:
        yield f"limit and offset need {needed} records, knn returns {largest}: set $knn.limit to {needed} or more"
    if cut and search.group_by is not None:
        short = smallest < search.group_by.aggregate.k
        if short or not search.limit.limit or available < needed:
            yield (
                f"group_by saw the {plan.scored:,} nearest of {plan.qualified:,} records: a larger $knn.limit may give "
                "more groups, and more in each"
            )
    if search.rank is not None and plan.qualified and not plan.scored:
        yield "the rank gives no record a score: " + (
            "no record matches its queries" if hits else "a number alone scores no record, and no field has numbers"
        )
    strict = [nearest for knn, nearest in hits.items() if knn.default is None]
    if len(strict) > 1:
        yield from _warn_of_intersection(strict, plan)
    if nans:
        yield f"{count(nans, 'score')} not a number, and last: a logarithm below 0, 0 / 0, or inf - inf"


def _warn_of_intersection(strict: Sequence[Hits], plan: ExecutionPlan) -> Iterator[str]:
    together = {place for hits in strict for place in hits.places_K.tolist()}
    if plan.scored is not None and plan.scored < len(together):
        yield (
            f"{len(strict)} knns have no default, so only records that all of them return are scored: {plan.scored:,} "
            f"of {len(together):,}; give each a default, such as its limit"
        )
