"""Searches made up by hypothesis: as values, and as dictionaries the way people write them."""

from typing import Any

from hypothesis import strategies as st

from rolloutlab.search import FieldTerm, GroupBy, Knn, Limit, MaxK, MinK, Rank, Search, Select, SparseVector, Val, Where
from rolloutlab.search.dictionary import dump
from rolloutlab.search.rank import Applied, Combined, Difference, Ratio
from rolloutlab.search.where import DOCUMENT, ID, All, Among, AnyOf, Compare, Contains, Matches

WORDS = st.text(min_size=1, max_size=6)
FIELDS = st.sampled_from(
    ["reward", "model", "step", "class", "__x", "id", "reward.exact match", "é", "ﬁ", "a b", "F"]
) | (WORDS.filter(lambda name: name[0] not in "$#"))
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.booleans() | NUMBERS | st.text(max_size=6)
SCORES = st.integers(-1000, 1000) | st.floats(-1e30, 1e30)
PATTERNS = st.sampled_from(["a+", r"\d\.", "(?i)paris|oslo", "'", '"', "^x$"])


LEAVES: st.SearchStrategy[Where] = st.one_of(
    st.builds(Compare, FIELDS, st.sampled_from(["$eq", "$ne"]), SCALARS),
    st.builds(Compare, FIELDS, st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), NUMBERS),
    st.builds(
        Among,
        FIELDS,
        st.one_of(*(st.lists(kind, min_size=1, max_size=3).map(tuple) for kind in (st.booleans(), NUMBERS, WORDS))),
        st.booleans(),
    ),
    st.builds(Contains, FIELDS, SCALARS, st.booleans()),
    st.builds(Contains, st.just(DOCUMENT), WORDS, st.booleans()),
    st.builds(Compare, st.just(ID), st.sampled_from(["$eq", "$ne"]), st.text(max_size=6)),
    st.builds(Among, st.just(ID), st.lists(WORDS, min_size=1, max_size=3).map(tuple), st.booleans()),
    st.builds(Contains, st.just("reasoning_text"), SCALARS, st.booleans()),
    st.builds(Matches, PATTERNS, st.booleans(), st.sampled_from([DOCUMENT, "reasoning", "reasoning_text"])),
)
WHERES: st.SearchStrategy[Where] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(*(st.lists(inner, min_size=2, max_size=3).map(tuple).map(kind) for kind in (All, AnyOf))),
    max_leaves=6,
)
SPARSE = st.dictionaries(st.integers(0, 2**32 - 1), SCORES, min_size=1, max_size=3).map(
    lambda found: SparseVector(tuple(found), tuple(map(float, found.values())))
)
QUERIES = st.one_of(
    st.text(min_size=1, max_size=6).filter(str.strip), st.lists(SCORES, min_size=1, max_size=3).map(tuple), SPARSE
)
KNNS = st.builds(Knn, QUERIES, st.just("#embedding") | FIELDS, st.integers(1, 99), st.none() | SCORES, st.booleans())
RANKS: st.SearchStrategy[Rank] = st.recursive(
    KNNS | st.builds(Val, SCORES) | st.builds(FieldTerm, FIELDS, st.none() | SCORES),
    lambda inner: st.one_of(
        st.builds(
            Combined,
            st.sampled_from(["$sum", "$mul", "$max", "$min"]),
            st.lists(inner, min_size=2, max_size=3).map(tuple),
        ),
        st.builds(Difference, inner, inner),
        st.builds(Ratio, inner, inner),
        st.builds(Applied, st.sampled_from(["$abs", "$exp", "$log"]), inner),
    ),
    max_leaves=6,
)
KEYS = st.lists(FIELDS, min_size=1, max_size=3).map(tuple)
BEST = st.one_of(*(st.builds(kind, KEYS | st.just(("#score",)), st.integers(1, 9)) for kind in (MinK, MaxK)))
LIMITS = st.builds(Limit, st.integers(0, 99), st.integers(0, 99))
SELECTS = st.lists(FIELDS | st.sampled_from(["#id", "#document", "#score"]), max_size=3).map(tuple).map(Select)
SEARCHES: st.SearchStrategy[Search] = st.one_of(
    st.builds(Search, st.none() | WHERES, RANKS, st.none() | st.builds(GroupBy, KEYS, BEST), LIMITS, SELECTS),
    st.builds(Search, st.none() | WHERES, st.none(), st.none(), LIMITS, SELECTS),
)


def _loosely(tree: Any, choose: Any) -> Any:
    """The same dictionary as people write it: `$eq` and `$val` left out here and there, nulls where nothing is."""
    if isinstance(tree, list):
        return [_loosely(item, choose) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if set(tree) == {"$val"} and choose(st.booleans()):
        return tree["$val"]
    return {
        key: inside["$eq"]
        if isinstance(inside, dict) and set(inside) == {"$eq"} and choose(st.booleans())
        else _loosely(inside, choose)
        for key, inside in tree.items()
    }


@st.composite
def dictionaries(draw: Any) -> dict[str, Any]:
    """Valid dictionaries, in any of the forms that may be written."""
    search = draw(SEARCHES)
    tree: dict[str, Any] = _loosely(dump(search), draw)
    if "where" in tree and draw(st.booleans()):
        tree["filter"] = tree.pop("where")
    if set(tree.get("limit", {})) == {"limit"} and draw(st.booleans()):
        tree["limit"] = tree["limit"]["limit"]
    if "select" in tree and draw(st.booleans()):
        tree["select"] = tree["select"]["keys"]
    missing = [key for key in ("rank", "limit", "select") if key not in tree and draw(st.booleans())]
    return {**tree, **dict.fromkeys(missing)}
