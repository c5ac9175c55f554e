from collections.abc import Callable

import pytest

from rolloutlab.errors import InputError
from rolloutlab.search.engine.records import Record
from rolloutlab.search.where import All, Among, AnyOf, Compare, Contains, Matches

Ids = Callable[..., str]
Fill = Callable[..., None]


def test_an_integer_and_a_float_are_compared_as_numbers(fill: Fill, ids: Ids) -> None:
    fill({"x": 1}, {"x": 1.0}, {"x": 2}, {"x": 1.5})
    assert ids(Compare("x", "$eq", 1)) == ids(Compare("x", "$eq", 1.0)) == "ab"
    assert ids(Compare("x", "$gt", 1)) == "cd"
    assert ids(Compare("x", "$lte", 1.5)) == "abd"


def test_numbers_that_float_rounds_are_compared_exactly(fill: Fill, ids: Ids) -> None:
    fill({"x": 2**53}, {"x": 2**53 + 1}, {"x": float(2**53)})
    assert ids(Compare("x", "$gt", float(2**53))) == "b"
    assert ids(Compare("x", "$lt", 2**53 + 1)) == "ac"
    assert ids(Compare("x", "$eq", 2**53 + 1)) == "b"
    assert ids(Compare("x", "$lt", 10**400)) == "abc"


def test_a_truth_is_no_number(fill: Fill, ids: Ids) -> None:
    fill({"x": True}, {"x": 1}, {"x": False})
    assert ids(Compare("x", "$eq", True)) == "a"
    assert ids(Compare("x", "$eq", 1)) == "b"
    assert ids(Compare("x", "$ne", 1)) == "ac"
    assert ids(Compare("x", "$gte", 0)) == "b"
    assert ids(Among("x", (False,))) == "c"


def test_a_text_equals_only_that_text(fill: Fill, ids: Ids) -> None:
    fill({"x": "1"}, {"x": 1}, {"x": "one"})
    assert ids(Compare("x", "$eq", "1")) == "a"
    assert ids(Compare("x", "$gt", 0)) == "b"
    assert ids(Among("x", ("1", "one"))) == "ac"


def test_negations_meet_records_that_lack_the_field(fill: Fill, ids: Ids) -> None:
    fill({"x": 1}, {}, {"x": None}, {"x": [1]}, Record("e", "text"))
    assert ids(Compare("x", "$ne", 1)) == "bcde"
    assert ids(Among("x", (1,), negated=True)) == "bcde"
    assert ids(Contains("x", 1, negated=True)) == "abce"
    assert ids(Contains("#document", "ex", negated=True)) == "abcd"
    assert ids(Matches("t.x", negated=True)) == "abcd"
    assert ids(Compare("nowhere", "$ne", 1)) == "abcde"


def test_contains_is_a_part_of_a_document_in_its_case(fill: Fill, ids: Ids) -> None:
    fill(Record("a", "The cat"), Record("b", "the Cat"), Record("c"), Record("d", "100%_"))
    assert ids(Contains("#document", "cat")) == "a"
    assert ids(Contains("#document", "%_")) == "d"
    assert ids(Contains("#document", "e")) == "ab"


def test_contains_is_a_member_of_a_list(fill: Fill, ids: Ids) -> None:
    fill({"x": ["a", 1]}, {"x": [True]}, {"x": "a"}, {"x": []}, {"x": [1.0]})
    assert ids(Contains("x", "a")) == "a"
    assert ids(Contains("x", 1)) == "ae"
    assert ids(Contains("x", True)) == "b"


def test_a_regular_expression_is_looked_for_in_the_document(fill: Fill, ids: Ids) -> None:
    fill(Record("a", "answer: 42"), Record("b", "answer: none"), Record("c"))
    assert ids(Matches(r"\d+$")) == "a"
    for wrong in ("(", f"a{{{'9' * 5000}}}"):
        with pytest.raises(InputError, match="not a regular expression"):
            ids(Matches(wrong))


def test_ids_are_compared_and_are_among_some(fill: Fill, ids: Ids) -> None:
    fill({}, {}, {})
    assert ids(Compare("#id", "$eq", "b")) == "b"
    assert ids(Compare("#id", "$ne", "b")) == "ac"
    assert ids(Among("#id", ("c", "a", "z"))) == "ac"
    assert ids(Among("#id", ("c", "z"), negated=True)) == "ab"


def test_conditions_are_combined(fill: Fill, ids: Ids) -> None:
    fill(Record("a", "cat", {"x": 1}), Record("b", "cat", {"x": 2}), Record("c", "dog", {"x": 2}))
    cat, two = Contains("#document", "cat"), Compare("x", "$eq", 2)
    assert ids(All((cat, two))) == "b"
    assert ids(AnyOf((cat, two))) == "abc"
    assert ids(AnyOf((All((cat, Compare("x", "$lt", 2))), Contains("#document", "og")))) == "ac"


def test_a_field_may_have_values_of_every_type(fill: Fill, ids: Ids) -> None:
    fill({"x": 1}, {"x": "1"}, {"x": 1.0}, {"x": True}, {"x": [1]}, {})
    assert ids(Compare("x", "$eq", 1)) == "ac"
    assert ids(Compare("x", "$ne", 1)) == "bdef"
