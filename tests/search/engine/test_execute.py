"""One rule of the semantics each."""

import math
from collections.abc import Callable

import pytest

from rolloutlab.errors import InputError
from rolloutlab.search import FieldTerm, GroupBy, Knn, Limit, MaxK, MinK, Rank, Rrf, Search, SparseVector, Val
from rolloutlab.search.engine.execute import SearchOutcome, execute
from rolloutlab.search.engine.explain import breakdown
from rolloutlab.search.engine.records import Record, Records
from rolloutlab.search.where import Compare

Ids = Callable[..., str]
Fill = Callable[..., None]
Find = Callable[..., SearchOutcome]
Scores = Callable[[Rank], dict[str, float | None]]


@pytest.fixture
def line(fill: Fill) -> None:
    """a, b, c, d at 0, 1, 2, 3 along one axis and at 1 along the other, which ip sees; e has no vector."""
    rows = [Record(id_, metadata={"x": i}, embedding=(float(i), 1.0)) for i, id_ in enumerate("abcd")]
    fill(*rows, Record("e", metadata={"x": 4}))


FIRST = (1.0, 0.0)
"""To this, d is nearest, then c, b and a."""


def test_without_a_rank_records_come_as_they_were_stored(records: Records, fill: Fill, ids: Ids) -> None:
    fill({}, {}, {})
    records.upsert([Record("a", "again")])
    assert ids() == "abc"


def test_knn_looks_inside_the_filtered_records(line: None, ids: Ids) -> None:
    assert ids(Compare("x", "$lt", 2), Knn(FIRST, limit=1)) == "b"


def test_lower_is_better(line: None, ids: Ids) -> None:
    assert ids(rank=Knn(FIRST)) == "dcba"
    assert ids(rank=-Knn(FIRST)) == "abcd"


def test_knn_finds_its_limit_and_sixteen_by_itself(fill: Fill, find: Find) -> None:
    fill(*(Record(str(i), embedding=(1.0, i / 40)) for i in range(20)))
    assert len(find(rank=Knn(FIRST)).hits) == 16
    assert len(find(rank=Knn(FIRST, limit=3)).hits) == 3


def test_records_without_a_vector_are_never_hit(line: None, ids: Ids) -> None:
    assert "e" not in ids(rank=Knn(FIRST, limit=99))


@pytest.mark.parametrize(("space", "distance"), [("cosine", 1 - 3 / 5), ("l2", 20.0), ("ip", -2.0)])
def test_distances_are_those_of_the_space(records: Records, space: str, distance: float) -> None:
    records.upsert([Record("a", embedding=(3.0, 4.0))])
    of_space = Records(records.path, space=space)  # type: ignore[arg-type]
    assert execute(Search(rank=Knn((1.0, 0.0))), of_space).hits[0].score == pytest.approx(distance)
    of_space.close()


def test_a_zero_vector_is_one_away_from_all(fill: Fill, scores: Scores) -> None:
    fill(Record("a", embedding=(0.0, 0.0)), Record("b", embedding=(1.0, 1.0)))
    assert scores(Knn(FIRST))["a"] == 1
    assert scores(Knn((0.0, 0.0))) == {"a": 1, "b": 1}


def test_a_sparse_distance_is_one_minus_the_dot_product(fill: Fill, scores: Scores) -> None:
    sparse = {"a": SparseVector((5, 2), (1.0, 0.5)), "b": SparseVector((7,), (1.0,))}
    fill(*(Record(id_, sparse={"splade": vector}) for id_, vector in sparse.items()), Record("c"))
    assert scores(Knn(SparseVector((2, 5, 9), (2.0, 0.25, 1.0)), key="splade")) == {"a": -0.25, "b": 1}


def test_words_are_found_by_bm25(fill: Fill, find: Find) -> None:
    fill(Record("a", "one cat"), Record("b", "two dogs and a cat cat"), Record("c", "no animal"), Record("d"))
    assert [hit.id for hit in find(rank=Knn('Cat "AND', key="bm25")).hits] == ["b", "a"]
    assert all(hit.score < 1 for hit in find(rank=Knn("cat no", key="bm25")).hits if hit.score is not None)
    assert not find(rank=Knn("...", key="bm25")).hits


def test_the_same_distance_keeps_storage_order(fill: Fill, ids: Ids) -> None:
    fill(
        *(Record(id_, embedding=(scale, scale * 3)) for id_, scale in zip("abcdef", (5, 0.1, 3, 7, 1, 1), strict=True))
    )
    assert ids(rank=Knn(FIRST)) == "abcdef"
    assert ids(rank=Knn(FIRST, limit=4)) == "abcd"


def test_return_rank_is_the_place_from_zero(line: None, scores: Scores) -> None:
    assert scores(Knn(FIRST, return_rank=True)) == {"d": 0, "c": 1, "b": 2, "a": 3}


def test_a_number_alone_scores_nothing(line: None, ids: Ids) -> None:
    assert ids(rank=Val(1)) == ""
    assert ids(rank=Val(1) + Val(2)) == ""


def test_without_defaults_only_what_both_found_is_scored(line: None, scores: Scores) -> None:
    near, far = Knn(FIRST, limit=3, return_rank=True), Knn((-1.0, 0.0), limit=3, return_rank=True)
    assert scores(near + far) == {"b": 3, "c": 3}


def test_with_one_default_what_the_other_found_is_scored(line: None, scores: Scores) -> None:
    near, far = Knn(FIRST, limit=1, return_rank=True), Knn((-1.0, 0.0), limit=3, return_rank=True, default=10)
    assert scores(near + far) == {"d": 10}


def test_with_both_defaults_what_either_found_is_scored(line: None, scores: Scores) -> None:
    near = Knn(FIRST, limit=1, return_rank=True, default=5)
    assert scores(near + Knn((-1.0, 0.0), limit=1, return_rank=True, default=10)) == {"a": 5, "d": 10}


def test_a_default_brings_in_no_record_that_nothing_found(line: None, scores: Scores) -> None:
    assert scores(Knn(FIRST, limit=1, return_rank=True, default=7) + 1) == {"d": 1}


def test_scores_are_float32_after_each_operation(line: None, scores: Scores) -> None:
    assert scores((Knn(FIRST, limit=1, return_rank=True) + 2**24) + 1) == {"d": float(2**24)}
    assert scores(Knn(FIRST, limit=1, return_rank=True) + 0.1)["d"] == pytest.approx(0.1, rel=1e-7, abs=0)


def test_a_field_is_a_term_where_it_is_a_number(fill: Fill, scores: Scores) -> None:
    fill({"r": 1}, {"r": 0.5}, {"r": True}, {"r": "2"}, {}, {"r": -1.0})
    assert scores(FieldTerm("r")) == {"f": -1, "b": 0.5, "a": 1}
    assert scores(FieldTerm("r", default=9) + 1) == {"f": 0, "b": 1.5, "a": 2}


def test_a_field_lets_a_knn_score_records_by_its_default(line: None, scores: Scores) -> None:
    assert scores(Knn(FIRST, limit=1, return_rank=True, default=0) + FieldTerm("x")) == {
        c: i for i, c in enumerate("abcde")
    }


def test_max_and_min_pass_over_nan(fill: Fill, scores: Scores) -> None:
    fill({"x": -1})
    nan = FieldTerm("x").log()
    assert scores(nan.max(3)) == scores(nan.min(3)) == {"a": 3}


def test_log_is_natural_and_of_zero_comes_first(fill: Fill, find: Find) -> None:
    fill({"x": math.e}, {"x": 0}, {"x": 1})
    hits = find(rank=FieldTerm("x").log()).hits
    assert [(hit.id, hit.score) for hit in hits] == [("b", -math.inf), ("c", 0), ("a", pytest.approx(1))]


def test_division_by_zero_is_infinite(fill: Fill, scores: Scores) -> None:
    fill({"x": 1}, {"x": -1})
    assert scores(FieldTerm("x") / 0) == {"b": -math.inf, "a": math.inf}


def test_nan_comes_last_with_a_warning(fill: Fill, find: Find) -> None:
    fill({"x": -1}, {"x": 0}, {"x": 5})
    found = find(rank=FieldTerm("x").log())
    assert [hit.id for hit in found.hits] == ["b", "c", "a"]
    assert "1 score not a number" in found.warnings[0]


def test_exp_and_abs_are_those_of_numbers(fill: Fill, scores: Scores) -> None:
    fill({"x": -1}, {"x": 1000})
    assert scores(FieldTerm("x").exp()) == {"a": pytest.approx(math.exp(-1)), "b": math.inf}
    assert scores(abs(FieldTerm("x"))) == {"a": 1, "b": 1000}


def test_rrf_prefers_what_both_found(line: None, ids: Ids) -> None:
    knns = [Knn(FIRST, limit=2, return_rank=True, default=99), Knn((1.0, 1.0), limit=2, return_rank=True, default=99)]
    assert ids(rank=Rrf(knns)) == "cbd"


def test_group_by_keeps_the_best_of_each_group(fill: Fill, ids: Ids) -> None:
    fill(*({"g": g, "x": x} for g, x in [("p", 3), ("q", 2), ("p", 1), ("q", 4), ("p", 2)]))
    assert ids(None, FieldTerm("x"), GroupBy(("g",), MinK(("#score",), 1))) == "cb"
    assert ids(None, FieldTerm("x"), GroupBy(("g",), MaxK(("x",), 2))) == "bead"


def test_groups_are_typed_and_a_missing_key_is_one(fill: Fill, find: Find) -> None:
    fill(*({"g": g, "x": 0} for g in (1, 1.0, "1", True)), {"x": 0}, {"g": 1, "x": 0}, {"x": 0})
    found = find(None, FieldTerm("x"), GroupBy(("g",), MinK(("#score",), 1)))
    assert [hit.id for hit in found.hits] == list("abcde")
    assert found.plan.groups == 5


def test_aggregate_keys_go_by_type_and_then_by_value(fill: Fill, ids: Ids) -> None:
    fill(*({"x": 0} | ({} if k is None else {"k": k}) for k in ("a", 1.5, 7, True, None, 0.5)))
    for k, smallest in enumerate(["e", "de", "cde", "cdef", "bcdef", "abcdef"], 1):
        assert ids(None, FieldTerm("x"), GroupBy(("x",), MinK(("k",), k))) == smallest
    assert ids(None, FieldTerm("x"), GroupBy(("x",), MaxK(("k",), 2))) == "ab"


def test_the_second_aggregate_key_decides_between_equal_first_ones(fill: Fill, ids: Ids) -> None:
    fill({"x": 0, "y": 2}, {"x": 0, "y": 1}, {"x": 1, "y": 0})
    assert ids(None, FieldTerm("x"), GroupBy(("none",), MinK(("x", "y"), 1))) == "b"
    assert ids(None, FieldTerm("x"), GroupBy(("none",), MaxK(("x", "y"), 2))) == "ac"


def test_groups_are_put_together_by_score_before_the_page(fill: Fill, ids: Ids) -> None:
    fill(*({"g": i % 2, "x": x} for i, x in enumerate((5, 4, 3, 2))))
    assert ids(None, FieldTerm("x"), GroupBy(("g",), MinK(("#score",), 2)), Limit(2, 1)) == "cb"


def test_the_best_by_score_need_a_rank(fill: Fill, ids: Ids) -> None:
    with pytest.raises(InputError, match="there is no rank"):
        ids(None, None, GroupBy(("g",), MinK(("#score",), 1)))
    with pytest.raises(InputError, match="there is no rank"):
        ids(None, None, GroupBy(("g",), MaxK(("x", "#score"), 1)))


def test_without_a_rank_groups_keep_their_best_by_a_field_in_the_order_of_storage(fill: Fill, ids: Ids) -> None:
    fill(*({"g": i % 2, "x": x} for i, x in enumerate((5, 4, 3, 2, 9))))
    assert ids(None, None, GroupBy(("g",), MinK(("x",), 1))) == "cd"
    assert ids(None, None, GroupBy(("g",), MaxK(("x",), 2))) == "abde"
    assert ids(None, None, GroupBy(("g",), MaxK(("x",), 2)), Limit(2, 1)) == "bd"


def test_a_limit_of_zero_is_all(fill: Fill, ids: Ids) -> None:
    fill(*({} for _ in range(4)))
    assert ids(limit=Limit(0)) == "abcd"
    assert ids(limit=Limit(0, 1)) == "bcd"
    assert ids(limit=Limit(2, 1)) == "bc"
    assert ids(limit=Limit(2, 9)) == ""


def test_only_what_is_selected_comes(fill: Fill, find: Find) -> None:
    fill(Record("a", "text", {"x": 1, "y": "z"}, (1.0, 2.0)))
    ranked = find(None, Knn(FIRST), None, None).hits[0]
    assert (ranked.id, ranked.document, ranked.embedding, ranked.metadata) == ("a", None, None, None)
    assert ranked.score is not None
    some = find(None, Knn(FIRST), None, None, "#document", "x", "none").hits[0]
    assert (some.score, some.document, some.metadata) == (None, "text", {"x": 1})
    both = find(None, None, None, None, "#metadata", "#embedding", "#score").hits[0]
    assert (both.score, both.embedding, both.metadata) == (None, (1.0, 2.0), {"x": 1, "y": "z"})


def test_the_plan_says_what_was_done(line: None, find: Find) -> None:
    found = find(Compare("x", "$gt", 0), Knn(FIRST), GroupBy(("x",), MinK(("#score",), 1)), Limit(2))
    assert str(found.plan).startswith("filter 4 of 5 → knn 3 → 3 groups → 2 rows, ")
    assert str(find().plan).startswith("5 records → 5 rows, ")


def test_a_knn_that_finds_less_than_the_page_is_warned_of(line: None, find: Find) -> None:
    assert "set $knn.limit to 4" in find(None, Knn(FIRST, limit=2), None, Limit(3, 1)).warnings[0]
    assert not find(None, Knn(FIRST, limit=9), None, Limit(9)).warnings


def test_groups_of_few_candidates_are_warned_of(line: None, find: Find) -> None:
    group_by = GroupBy(("x",), MinK(("#score",), 2))
    assert "group_by saw the 2 nearest of 5" in find(None, Knn(FIRST, limit=2), group_by, Limit(2)).warnings[0]


def test_knns_that_are_intersected_are_warned_of(line: None, find: Find) -> None:
    found = find(rank=Knn(FIRST, limit=3) + Knn((-1.0, 0.0), limit=3))
    assert "2 knns have no default" in found.warnings[0]
    assert "2 of 4" in found.warnings[0]


@pytest.mark.parametrize(
    ("knn", "told"),
    [
        (Knn("text"), "is a text"),
        (Knn((1.0, 2.0, 3.0)), "3 numbers, where 2"),
        (Knn((math.nan, 1.0)), "finite"),
        (Knn(SparseVector((1,), (1.0,))), "is sparse"),
        (Knn((1.0, 2.0), key="bm25"), "must be a text"),
        (Knn(SparseVector((1,), (1.0,)), key="splode"), "no record has the vectors 'splode'"),
        (Knn((1.0, 2.0), key="splade"), "is dense"),
        (Knn(SparseVector((1, 1), (1.0, 2.0)), key="splade"), "an index twice"),
        (Knn((1.0, 2.0), limit=0), "below 1"),
    ],
)
def test_a_query_that_does_not_fit_is_refused_with_what_to_type(
    line: None, fill: Fill, find: Find, knn: Knn, told: str
) -> None:
    fill(Record("s", sparse={"splade": SparseVector((1,), (1.0,))}))
    with pytest.raises(InputError, match=told) as caught:
        find(rank=knn)
    assert caught.value.hint


def test_large_and_tiny_vectors_are_compared_exactly(fill: Fill, ids: Ids) -> None:
    sizes = [1e30, 1e-30, 1.0, 1e-38]
    fill(*(Record(chr(97 + i), embedding=(size, size * i)) for i, size in enumerate(sizes)))
    assert ids(rank=Knn(FIRST, limit=3)) == "abc"


def test_near_duplicates_beside_a_block_of_others_are_told_apart(records: Records, ids: Ids) -> None:
    """float32 products cannot; there are more records than one block of the matrix, and few pass the filter."""
    records.upsert([Record(f"{i:05}", metadata={"odd": i % 2}, embedding=(1.0, 1 + i * 2**-20)) for i in range(33_000)])
    expected = [f"{i:05}" for i in range(32_999, 32_999 - 10, -1)]
    found = execute(Search(rank=Knn((0.0, 1.0), limit=10)), records)
    assert [hit.id for hit in found.hits] == expected
    rare = Search(Compare("#id", "$eq", "32768"), Knn((0.0, 1.0), limit=10))
    assert [hit.id for hit in execute(rare, records).hits] == ["32768"]


def test_a_score_is_taken_apart(line: None, records: Records) -> None:
    search = Search(Compare("x", "$lt", 3), Knn(FIRST, limit=1, return_rank=True, default=8) * 0.5 + FieldTerm("x"))
    told = breakdown(search, records, "b").score
    assert str(told).splitlines() == [
        "+: 5",
        "  *: 4 by default",
        "    Knn([2 numbers], limit=1, default=8, return_rank=True): 8 by default",
        "    Val(0.5): 0.5 by default",
        "  FieldTerm('x'): 1",
    ]
    assert breakdown(search, records, "c").score.value == 2
    outside = breakdown(search, records, "d")
    assert (outside.qualifies, outside.score.value) == (False, None)
    with pytest.raises(InputError, match="no record 'z'"):
        breakdown(search, records, "z")
