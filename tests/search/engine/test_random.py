"""Random searches on random records give what the slow reading of the semantics gives."""

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolloutlab.search import FieldTerm, GroupBy, Knn, Limit, MaxK, MinK, Rank, Search, Select, SparseVector, Val, Where
from rolloutlab.search.engine.execute import execute
from rolloutlab.search.engine.records import Record, Records
from rolloutlab.search.rank import Applied, Combined, Difference, Ratio
from rolloutlab.search.where import All, Among, AnyOf, Compare, Contains, Matches

from ..naive import found

WORDS = ("cat", "Cat", "dog", "owl", "cat cat", "x")
FIELDS = ("a", "b", "c")
small = st.integers(-2, 2)
halves = small.map(lambda n: n / 2)
numbers = small | halves | st.sampled_from([2**53, 2**53 + 1, float(2**53), -(2**63), 1e300])
texts = st.sampled_from(["1", "x", "", "cat"])
scalars = st.booleans() | numbers | texts
vectors = st.tuples(small | halves, small, st.sampled_from([0, 1, 0.1]))
sparse = st.dictionaries(st.integers(0, 4), halves, max_size=3).map(lambda d: SparseVector(tuple(d), tuple(d.values())))
documents = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)


def reasoning(record: Record, spans: list[tuple[int, int]]) -> Record:
    """The record with some parts of its document as reasoning."""
    return record if record.document is None else replace(record, reasoning=spans)


def record(id_: str) -> st.SearchStrategy[Record]:
    return st.builds(
        reasoning, conversation(id_), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=2)
    )


def conversation(id_: str) -> st.SearchStrategy[Record]:
    return st.builds(
        Record,
        st.just(id_),
        st.none() | documents,
        st.dictionaries(st.sampled_from(FIELDS), scalars | st.lists(scalars, max_size=2)),
        st.none() | vectors,
        st.just({}) | sparse.map(lambda vector: {"words": vector}),
    )


ids = st.integers(0, 15).map(str)
fields = st.sampled_from((*FIELDS, "none"))
filtered = fields | st.just("reasoning_text")
alike = st.lists(st.booleans(), min_size=1, max_size=3) | st.lists(numbers, min_size=1, max_size=3)
alike |= st.lists(texts, min_size=1, max_size=3)
negated = st.booleans()
texts_fields = st.sampled_from(["#document", "reasoning_text"])
conditions: st.SearchStrategy[Where] = st.recursive(
    st.builds(Compare, filtered, st.sampled_from(["$eq", "$ne"]), scalars)
    | st.builds(Compare, filtered, st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), numbers)
    | st.builds(Among, filtered, alike.map(tuple), negated)
    | st.builds(Among, st.just("#id"), st.lists(ids, min_size=1, max_size=5).map(tuple), negated)
    | st.builds(Compare, st.just("#id"), st.sampled_from(["$eq", "$ne"]), ids)
    | st.builds(Contains, filtered, scalars, negated)
    | st.builds(Contains, texts_fields, st.sampled_from(["at", "Cat", "t d", "%"]), negated)
    | st.builds(Matches, st.sampled_from(["^cat", "c.t$", "(?i)CAT", "[dx]"]), negated, texts_fields),
    lambda inner: st.builds(All, st.tuples(inner, inner)) | st.builds(AnyOf, st.tuples(inner, inner)),
    max_leaves=4,
)
queries = vectors.map(lambda query: {"query": query})
queries |= sparse.map(lambda query: {"query": query, "key": "words"})
queries |= documents.map(lambda query: {"query": query, "key": "bm25"})
defaults = st.none() | small
options = st.fixed_dictionaries({"limit": st.integers(1, 12), "default": defaults, "return_rank": st.booleans()})
knns = st.builds(lambda query, option: Knn(**query, **option), queries, options)
ranks: st.SearchStrategy[Rank] = st.recursive(
    knns | st.builds(Val, halves) | st.builds(FieldTerm, fields, defaults),
    lambda inner: (
        st.builds(Combined, st.sampled_from(["$sum", "$mul", "$max", "$min"]), st.tuples(inner, inner, inner))
        | st.builds(Combined, st.sampled_from(["$sum", "$max"]), st.tuples(inner, inner))
        | st.builds(Difference, inner, inner)
        | st.builds(Ratio, inner, inner)
        | st.builds(Applied, st.sampled_from(["$abs", "$exp", "$log"]), inner)
    ),
    max_leaves=5,
)
keys = st.lists(fields, min_size=1, max_size=2).map(tuple)
by = st.lists(fields | st.just("#score"), min_size=1, max_size=2).map(tuple)
aggregates = st.builds(MinK, by, st.integers(1, 3)) | st.builds(MaxK, by, st.integers(1, 3))
limits = st.builds(Limit, st.integers(0, 8), st.integers(0, 3))


@st.composite
def searches(draw: st.DrawFn) -> Search:
    rank = draw(ranks) if draw(st.integers(0, 3)) else None
    where = draw(conditions) if draw(st.booleans()) else None
    group_by = None if rank is None else draw(st.none() | st.builds(GroupBy, keys, aggregates))
    return Search(where, rank, group_by, draw(limits), Select(("#id", "#score", "#metadata")))


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    """Writes, one after another: records, or ids to delete."""
    writes: list[Any] = [[draw(record(str(i))) for i in range(draw(st.integers(0, 14) | st.just(14)))]]
    for _ in range(draw(st.integers(0, 2))):
        changed = st.lists(ids, max_size=4, unique=True).flatmap(lambda some: st.tuples(*map(record, some)))
        writes.append(draw(st.lists(ids, min_size=1, max_size=3) | changed))
    return writes


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(histories(), st.lists(searches(), min_size=8, max_size=8), st.sampled_from(["cosine", "l2", "ip"]))
def test_searches_find_what_they_mean(history: list[Any], asked: list[Search], space: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder) / "search.db", space=space)
        records.upsert([Record("sparse", sparse={"words": SparseVector((0,), (0.5,))})])  # so that there is such a key
        there: dict[str, Record] = {"sparse": Record("sparse", sparse={"words": SparseVector((0,), (0.5,))})}
        for write, search in zip(history, asked, strict=False):
            execute(search, records)  # which reads what there is before the next write
            if write and isinstance(write[0], str):
                records.delete(write)
                there = {id_: record for id_, record in there.items() if id_ not in write}
            else:
                records.upsert(write)
                there |= {record.id: record for record in write}
        for search in asked:
            expected = found(search, list(there.values()), space)
            hits = execute(search, records).hits
            assert [hit.id for hit in hits] == [id_ for id_, _ in expected]
            assert all(close(hit.score, score) for hit, (_, score) in zip(hits, expected, strict=True))
            assert all(hit.metadata == there[hit.id].metadata for hit in hits)
        records.close()


def close(score: float | None, expected: float | None) -> bool:
    if score is None or expected is None:
        return score is expected
    return (math.isnan(score) and math.isnan(expected)) or math.isclose(score, expected, rel_tol=1e-6, abs_tol=1e-6)
