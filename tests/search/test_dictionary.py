"""Searches from dictionaries and back, and what a dictionary that is none is told."""

import enum
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.errors import InputError
from rolloutlab.search import F, FieldTerm, GroupBy, Knn, Limit, MaxK, MinK, Search, Select, SparseVector, Val
from rolloutlab.search.dictionary import check_where, dump, parse, parse_rank, parse_where
from rolloutlab.search.dictionary.parse import KEYS, LOGICAL
from rolloutlab.search.dictionary.parse import RANK_OPERATORS as RANKED
from rolloutlab.search.dictionary.parse import WHERE_OPERATORS as ASKED
from rolloutlab.search.where import All, Compare
from tests.search.mistakes import BEST, KNN, WRONG
from tests.search.strategies import SEARCHES, WHERES, dictionaries


@pytest.mark.parametrize("rule", WRONG)
def test_an_error_says_where_what_and_what_instead(rule):
    tree, path, why, hint = WRONG[rule]
    with pytest.raises(InputError) as refused:
        parse(tree)
    assert refused.value.message.startswith(f"{path} is ")
    assert why in refused.value.message
    assert refused.value.hint == hint


@pytest.mark.parametrize("rule", WRONG)
def test_what_is_wrong_is_wrong_in_json_too(rule):
    with pytest.raises(InputError):
        parse(json.dumps(WRONG[rule][0]))


@given(search=SEARCHES)
def test_a_search_comes_back_from_its_dictionary(search):
    written = dump(search)
    assert parse(written) == search
    assert parse(json.dumps(written)) == search
    assert repr(parse(written)) == repr(search)


@given(tree=dictionaries())
def test_however_it_is_written_a_search_has_one_dictionary(tree):
    written = dump(parse(tree))
    assert dump(parse(written)) == written
    assert parse(written) == parse(tree)


@given(where=WHERES)
def test_a_condition_that_could_be_said_is_left_as_it_is(where):
    assert check_where(where) == where == parse_where({"$and": [where]})


def test_a_value_by_itself_is_one_that_is_equal():
    assert parse_where({"reward": 0.5}) == (F.reward == 0.5)


def test_several_fields_in_one_object_are_all_asked_for():
    assert parse_where({"reward": 0.5, "model": "a", "$or": [{"step": 1}, {"step": 2}]}) == (
        (F.reward == 0.5) & (F.model == "a") & ((F.step == 1) | (F.step == 2))
    )


def test_and_inside_and_is_the_same_as_one():
    assert parse_where({"$and": [{"$and": [{"a": 1}, {"b": 2}]}, {"c": 3}]}) == All((F.a == 1, F.b == 2, F.c == 3))


def test_one_condition_in_a_list_is_that_condition():
    assert parse_where({"$or": [{"$and": [{"a": 1}]}]}) == (F.a == 1)


def test_filter_is_another_name_of_where():
    assert parse({"filter": {"a": 1}}) == parse({"where": {"a": 1}}) == Search(F.a == 1)


def test_what_is_null_or_empty_as_other_clients_write_it_is_left_out():
    tree = {"filter": None, "rank": None, "group_by": {}, "limit": {"offset": 0, "limit": None}, "select": {"keys": []}}
    assert parse(tree) == parse({}) == parse("{}") == Search()


def test_a_limit_may_be_a_number_and_a_selection_a_list():
    assert parse({"limit": 10, "select": ["reward", "#score", "reward"]}) == Search(
        limit=Limit(10), select=Select(("reward", "#score"))
    )


def test_a_number_is_a_rank():
    assert parse_rank({"$sub": {"left": 1, "right": KNN}}) == 1 - Knn("paris")


def test_a_knn_finds_16_by_the_embedding_where_it_does_not_say():
    assert parse_rank(KNN) == Knn("paris", key="#embedding", limit=16, default=None, return_rank=False)
    assert dump(Search(rank=Knn("paris"))) == {"rank": {"$knn": {"query": "paris", "key": "#embedding", "limit": 16}}}


def test_queries_are_texts_vectors_and_sparse_vectors():
    sparse = {"#type": "sparse_vector", "indices": [7, 3], "values": [1, 2]}
    assert parse_rank({"$knn": {"query": [1, 2]}}) == Knn([1.0, 2.0])
    assert parse_rank({"$knn": {"query": sparse, "key": "topics"}}) == Knn(
        SparseVector((7, 3), (1.0, 2.0)), key="topics"
    )


def test_a_field_is_a_rank_with_a_default():
    tree = {"$sum": [KNN, {"$field": {"key": "reward", "default": 0}}]}
    assert parse_rank(tree) == Knn("paris") + FieldTerm("reward", default=0)


def test_groups_keep_the_lowest_or_the_highest():
    tree = {"rank": KNN, "group_by": {"keys": ["model", "step"], "aggregate": BEST}}
    assert parse(tree).group_by == GroupBy(["model", "step"], MinK("#score", 1))
    tree["group_by"] = {"keys": ["model"], "aggregate": {"$max_k": {"keys": ["reward", "#score"], "k": 2}}}
    assert parse(tree).group_by == GroupBy("model", MaxK(["reward", "#score"], 2))


def test_true_and_1_are_two_values():
    assert parse_where({"a": True}) != parse_where({"a": 1})
    assert parse_where({"a": {"$in": [True]}}) != parse_where({"a": {"$in": [1]}})
    assert parse_where({"a": 1}) == parse_where({"a": 1.0})


def test_a_whole_number_may_be_written_with_a_point():
    assert parse('{"limit": 10.0, "rank": {"$knn": {"query": [1], "limit": 4.0}}}').limit == Limit(10)


def test_an_integer_beyond_64_bits_is_a_float():
    assert repr(parse_where({"a": {"$lt": 2**64}})) == "F.a < 1.8446744073709552e+19"


def test_numbers_of_numpy_and_members_of_enumerations_are_what_they_look_like():
    Kind = enum.StrEnum("Kind", ["good"])
    where = parse_where({"a": np.int64(1), "b": np.float32(0.5), "c": {"$in": np.array([1, 2])}, "d": Kind.good})
    assert repr(where) == "(F.a == 1) & (F.b == 0.5) & (F.c.is_in([1, 2])) & (F.d == 'good')"
    assert repr(parse_rank({"$knn": {"query": np.ones(2, dtype=np.float32)}})) == "Knn([1.0, 1.0])"
    assert repr(F.a > np.float64(0.5)) == "F.a > 0.5"


def test_a_dictionary_may_have_pythons_notation_in_it():
    search = parse({"where": {"$and": [F.reward > 0.5, {"step": 3}]}, "rank": 1 - Knn("paris")})
    assert search == Search((F.reward > 0.5) & (F.step == 3), 1 - Knn("paris"))
    with pytest.raises(InputError, match=r"^rank.\$sum\[0\].\$knn.limit is 0"):
        parse({"rank": Knn("paris", limit=0) + 1})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"where": }', "line 1, column 11"),
        ("reward > 0.5", "not JSON"),
        ("[1]", "object"),
        ('{"limit": 1' + "0" * 5000 + "}", "not JSON"),
        ('{"rank": NaN}', r"rank is NaN"),
        ('{"rank": {"$knn": {"query": [Infinity]}}}', r"rank.\$knn.query\[0\] is Infinity"),
    ],
)
def test_text_that_is_no_search_is_an_error(text, why):
    with pytest.raises(InputError, match=why) as refused:
        parse(text)
    assert refused.value.hint


def test_a_key_that_is_twice_in_one_object_is_an_error_and_no_condition_is_lost():
    with pytest.raises(InputError, match="'reward' appears twice") as refused:
        parse('{"where": {"reward": {"$gt": 0}, "reward": {"$lt": 1}}}')
    assert refused.value.hint == '{"$and": [{"reward": {"$gt": 0}}, {"reward": {"$lt": 1}}]}'


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(["#id", "$eq"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=2)
            | st.sampled_from(
                [*KEYS, *LOGICAL, *ASKED, *RANKED, "query", "keys", "k", "left", "right", "indices", "values"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(where=ANYTHING, rank=ANYTHING, grouping=ANYTHING, rest=ANYTHING)
def test_anything_at_all_is_a_search_or_refused(where, rank, grouping, rest):
    trees = [
        rest,
        *({name: rest} for name in KEYS),
        {"where": where},
        {"rank": rank},
        {"rank": 1, "group_by": grouping},
    ]
    for tree in [*trees, {"rank": {"$knn": rank}}, {"rank": {"$knn": {"query": rest}}}, {"where": {"a": where}}]:
        try:
            assert parse(dump(parse(tree))) == parse(tree)
        except InputError as refused:
            assert refused.hint  # noqa: PT017 - either is right


def test_nesting_without_end_is_an_error():
    where, rank, listed = {"a": 1}, 1, []
    for _ in range(20_000):
        where, rank, listed = {"$and": [where, {"b": 1}]}, {"$abs": rank}, [listed]
    for tree in ({"where": where}, {"rank": rank}, {"where": {"a": listed}}, {"select": listed}, {"limit": listed}):
        with pytest.raises(InputError):
            parse(tree)
    with pytest.raises(InputError, match="nested"):
        parse("[" * 200_000)


def test_nesting_without_end_in_pythons_notation_is_an_error():
    rank = Knn("paris")
    for _ in range(5000):
        rank = rank - 1
    with pytest.raises(InputError, match="nested"):
        parse(Search(rank=rank))
    where = F.a == 1
    for _ in range(200):
        where = ((F.b == 1) | where) & (F.c == 1)
    with pytest.raises(InputError, match="nested"):
        check_where(where)


def test_a_search_of_the_deepest_nesting_comes_back():
    rank = Knn("paris")
    for _ in range(99):
        rank = rank.abs()
    assert parse(dump(Search(rank=rank))) == Search(rank=rank)


def test_a_repeat_with_more_digits_than_python_reads_is_an_error():
    with pytest.raises(InputError, match="not a regular expression"):
        parse({"where": {"#document": {"$regex": f"a{{{'9' * 5000}}}"}}})


def test_half_a_character_is_an_error():
    for tree in ({"where": {"a": "\ud800"}}, {"where": {"\ud800": 1}}, {"rank": {"$knn": {"query": "\ud800"}}}):
        with pytest.raises(InputError, match="half of a surrogate pair"):
            parse(tree)


def test_a_key_that_is_no_text_is_an_error():
    for tree in ({1: 2}, {"where": {1: 2}}, {"where": {"a": {1: 2}}}, {"rank": {1: 2}}):
        with pytest.raises(InputError, match="its key 1 is not a text"):
            parse(tree)


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"where": {"$and": [{"reward": 1}, {"rewrad": {"$gt": 1}}]}}, r"where.\$and\[1\].rewrad"),
        ({"rank": {"$sum": [1, {"$field": {"key": "rewrad"}}]}}, r"rank.\$sum\[1\].\$field.key"),
        ({"rank": KNN, "group_by": {"keys": ["rewrad"], "aggregate": BEST}}, r"group_by.keys\[0\]"),
        (
            {"rank": KNN, "group_by": {"keys": ["step"], "aggregate": {"$max_k": {"keys": ["rewrad"], "k": 1}}}},
            r"group_by.aggregate.\$max_k.keys\[0\]",
        ),
        ({"select": ["#document", "rewrad"]}, r"select\[1\]"),
    ],
)
def test_a_field_that_no_record_has_names_the_nearest(tree, path):
    known = ["reward", "model", "step"]
    with pytest.raises(InputError, match=rf"^{path} is .*no record has a field 'rewrad'") as refused:
        parse(tree, known)
    assert refused.value.hint == "reward"
    parse(json.loads(json.dumps(tree).replace("rewrad", "reward")), known)
    parse({"rank": {"$knn": {"query": "a", "key": "bm25"}}}, known)


def test_a_value_that_no_dictionary_has_is_refused():
    with pytest.raises(InputError, match=r"^where.a.\$gt is"):
        parse(Search(where=Compare("a", "$gt", "b")))
    with pytest.raises(InputError, match=r"^rank.\$val is true"):
        parse(Search(rank=Val(True)))
    with pytest.raises(InputError, match="not a condition"):
        check_where("reward > 1")  # type: ignore[arg-type]
