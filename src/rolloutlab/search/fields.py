"""Which metadata fields a search speaks of."""

from collections.abc import Iterator

from rolloutlab.search.query import Search
from rolloutlab.search.rank import Applied, Combined, Difference, FieldTerm, Rank, Ratio
from rolloutlab.search.where import All, Among, AnyOf, Compare, Contains, Where


def fields_of(search: Search) -> list[str]:
    """Each once: those of the conditions, of the rank and of the groups."""
    groups = search.group_by
    named = [*_where(search.where), *_rank(search.rank), *(groups.keys + groups.aggregate.keys if groups else ())]
    return [name for name in dict.fromkeys(named) if not name.startswith("#")]


def _where(where: Where | None) -> Iterator[str]:
    match where:
        case Compare(field=field) | Among(field=field) | Contains(field=field):
            yield field
        case All(parts) | AnyOf(parts):
            for part in parts:
                yield from _where(part)


def _rank(rank: Rank | None) -> Iterator[str]:
    match rank:
        case FieldTerm(key=key):
            yield key
        case Combined(parts=parts):
            for part in parts:
                yield from _rank(part)
        case Difference(left, right) | Ratio(left, right):
            yield from _rank(left)
            yield from _rank(right)
        case Applied(part=part):
            yield from _rank(part)
