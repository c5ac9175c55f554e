"""Conditions and ranks as text: `reward < 0.5 and 'paris' in document`, `knn('paris') - field('reward')`.

The text is read as Python's grammar has it, by `ast`, and nothing of it is ever run. Names are fields; a field whose
name is no name of Python stands in backticks or as `F["..."]`. `id` and `document` are those of the record itself. What
`repr` writes of a condition or a rank is read as well.
"""

from collections.abc import Collection

from rolloutlab.search.dictionary import check_fields, check_where, parse_rank
from rolloutlab.search.expression.parse import read_where
from rolloutlab.search.expression.rank import read_rank
from rolloutlab.search.expression.source import Text
from rolloutlab.search.rank import Rank
from rolloutlab.search.where import Where

__all__ = ["check_fields", "rank_of", "where_of"]


def where_of(text: str, known: Collection[str] | None = None) -> Where:
    """The condition that a text says.

    known: names of the metadata fields there are; without it any name will do.

    Raises:
        InputError: it says none; the message points at the place, the hint is something to type.
    """
    source = Text(text, "reward > 0.5 and model == 'lab/practice'", known)
    return check_where(read_where(source.tree(), source))


def rank_of(text: str, known: Collection[str] | None = None) -> Rank:
    """As `where_of`, of a rank."""
    source = Text(text, "knn('paris') - field('reward')", known)
    return parse_rank(read_rank(source.tree(), source))
