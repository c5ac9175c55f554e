"""Conditions as a Chroma server takes them."""

import pytest

from rolloutlab.errors import InputError
from rolloutlab.integrations.chroma.server import Narrowed, clause, narrow, qualifies
from rolloutlab.search.where import DOCUMENT, ID, All, Among, AnyOf, Compare, Contains, Matches

REWARD, MODEL = Compare("reward", "$gt", 0.5), Compare("model", "$eq", "lab/practice")
PARIS, FIRST = Contains(DOCUMENT, "Paris"), Compare(ID, "$eq", "a")


@pytest.mark.parametrize(
    ("where", "written"),
    [
        (REWARD, {"reward": {"$gt": 0.5}}),
        (MODEL, {"model": {"$eq": "lab/practice"}}),
        (Compare("truncated", "$ne", True), {"truncated": {"$ne": True}}),
        (Among("step", (1, 2)), {"step": {"$in": [1, 2]}}),
        (Among("model", ("a",), negated=True), {"model": {"$nin": ["a"]}}),
        (PARIS, {"#document": {"$contains": "Paris"}}),
        (Contains(DOCUMENT, "Paris", negated=True), {"#document": {"$not_contains": "Paris"}}),
        (Matches("^a+$"), {"#document": {"$regex": "^a+$"}}),
        (Matches("^a+$", negated=True), {"#document": {"$not_regex": "^a+$"}}),
        (Contains("tools", "search"), {"tools": {"$contains": "search"}}),
        (Contains("flags", True), {"flags": {"$contains": True}}),
        (All((REWARD, MODEL)), {"$and": [{"reward": {"$gt": 0.5}}, {"model": {"$eq": "lab/practice"}}]}),
        (AnyOf((REWARD, PARIS)), {"$or": [{"reward": {"$gt": 0.5}}, {"#document": {"$contains": "Paris"}}]}),
    ],
)
def test_every_operator_is_written(where, written):
    assert clause(where) == written
    assert narrow(where) == Narrowed(written)


def test_values_of_two_number_types_are_written_as_one():
    assert [type(value) for value in clause(Among("step", (1, 2.5)))["step"]["$in"]] == [float, float]


@pytest.mark.parametrize(("negated", "operator"), [(False, "$or"), (True, "$and")])
def test_a_whole_number_is_looked_for_in_lists_of_either_number_type(negated, operator):
    written = clause(Contains("steps", 2, negated))
    contains = "$not_contains" if negated else "$contains"
    assert written == {operator: [{"steps": {contains: 2}}, {"steps": {contains: 2.0}}]}
    assert [type(part["steps"][contains]) for part in written[operator]] == [int, float]


@pytest.mark.parametrize("value", [0.5, 1e300, 2**53 + 1])
def test_a_number_of_which_the_other_type_has_none_is_looked_for_as_it_is(value):
    assert clause(Contains("steps", value)) == {"steps": {"$contains": value}}


def test_ids_are_a_list_beside_the_other_conditions():
    among = Among(ID, ("a", "b"))
    assert narrow(FIRST) == Narrowed(None, frozenset("a"))
    assert narrow(among) == Narrowed(None, frozenset("ab"))
    assert narrow(All((among, REWARD, FIRST))) == Narrowed(clause(REWARD), frozenset("a"))


@pytest.mark.parametrize(
    "where",
    [
        Compare(ID, "$ne", "a"),
        Among(ID, ("a",), negated=True),
        AnyOf((FIRST, REWARD)),
        All((AnyOf((FIRST, PARIS)), MODEL)),
    ],
)
def test_other_conditions_on_ids_take_more_than_one_request(where):
    assert narrow(where) is None


def test_ids_are_compared_with_ids():
    assert [qualifies("a", Compare(ID, operator, "a")) for operator in ("$eq", "$ne")] == [True, False]
    assert [qualifies("a", Among(ID, ("b",), negated)) for negated in (False, True)] == [False, True]


@pytest.mark.parametrize("where", [Compare(ID, "$gt", 1), Contains(ID, "a"), Matches("a", field=ID)])
def test_what_cannot_be_asked_of_an_id_is_told(where):
    with pytest.raises(InputError, match="is not supported for ids"):
        qualifies("a", where)
