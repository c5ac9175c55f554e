"""Conditions and ranks as text: `reward < 0.5 and 'paris' in document`, `knn('paris') - field('reward')`.

The text is parsed by `ast` and never evaluated. Names are fields; other field names are written in backticks or as
`F["..."]`. `id` and `document` are the record's own. The `repr` of a condition or a rank can be parsed too.
"""

from collections.abc import Collection

from rolloutlab.search.dictionary import check_where, parse_rank
from rolloutlab.search.expression.parse import read_rank, read_where
from rolloutlab.search.expression.source import Text
from rolloutlab.search.rank import Rank
from rolloutlab.search.where import Where

__all__ = ["rank_of", "where_of"]


def where_of(text: str, known: Collection[str] | None = None) -> Where:
    """Parse a condition.

    known: names of the metadata fields; None allows any name.

    Raises:
        InputError: the text is not a condition. The message points at the position, the hint is something to type.
    """
    source = Text(text, "reward > 0.5 and model == 'lab/practice'", known)
    return check_where(read_where(source.tree(), source))


def rank_of(text: str, known: Collection[str] | None = None) -> Rank:
    """Parse a rank as `where_of` parses a condition."""
    source = Text(text, "knn('paris') - field('reward')", known)
    return parse_rank(read_rank(source.tree(), source))
