"""The outcome of a search with notes on how it was executed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rolloutlab.search.engine.execute import SearchOutcome
from rolloutlab.search.query import Search
from rolloutlab.search.where import Among, Compare, Contains, conditions_of

_KINDS: dict[type, str] = {bool: "bool", int: "number", float: "number", str: "str"}
_TYPE_NAMES = {"bool": "true or false", "number": "a number", "str": "a text", "list": "a list"}


@dataclass(frozen=True)
class Answer:
    """The outcome of a search, with notes.

    Attributes:
        outcome: The outcome.
        executed: The search as it was executed, with vectors or a search for words in place of texts.
        search: The search as it was given.
        notes: Lines about how it was executed.
    """

    outcome: SearchOutcome
    executed: Search
    search: Search
    notes: tuple[str, ...]


def find_odd_conditions(search: Search, fields: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Find conditions that match nothing because no record has a value of that type in the field.

    fields: the types of each field, from `Records.fields`.
    """
    for each in conditions_of(search.where):
        if not isinstance(each, Compare | Among | Contains) or each.field not in fields:
            continue
        if getattr(each, "negated", False):
            continue
        kinds = {"number" if kind in ("int", "float") else kind for kind in fields[each.field]}
        kind = _KINDS[type(each.values[0] if isinstance(each, Among) else each.value)]
        if isinstance(each, Contains):
            if "list" not in kinds:
                yield f"{each!r}: {each.field} is {_list_kinds(kinds)} and no list -> == compares it as a whole"
        elif kind not in kinds and getattr(each, "operator", "") != "$ne":
            inside = f" -> {each.value!r} in {each.field}" if "list" in kinds and isinstance(each, Compare) else ""
            yield f"{each!r}: {each.field} is {_list_kinds(kinds)} in every record, never {_TYPE_NAMES[kind]}{inside}"


def _list_kinds(kinds: set[str]) -> str:
    return " or ".join(sorted(_TYPE_NAMES.get(kind, kind) for kind in kinds))
