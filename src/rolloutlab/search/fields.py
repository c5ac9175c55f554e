"""Which metadata fields a search speaks of."""

from rolloutlab.search.query import Search
from rolloutlab.search.rank import FieldTerm, terms_of
from rolloutlab.search.where import Among, Compare, Contains, conditions_of


def fields_of(search: Search) -> list[str]:
    """Each once: those of the conditions, of the rank and of the groups."""
    asked = [each.field for each in conditions_of(search.where) if isinstance(each, Compare | Among | Contains)]
    ranked = [term.key for term in terms_of(search.rank) if isinstance(term, FieldTerm)]
    groups = search.group_by
    grouped = groups.keys + groups.aggregate.keys if groups else ()
    return [name for name in dict.fromkeys([*asked, *ranked, *grouped]) if not name.startswith("#")]
