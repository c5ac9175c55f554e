"""The JSON schema and the parser accept the same dictionaries."""

import copy
import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rolloutlab.errors import InputError
from rolloutlab.search.dictionary import parse
from rolloutlab.search.dictionary.schema import json_schema
from tests.search.mistakes import WRONG
from tests.search.strategies import dictionaries

BEYOND_A_SCHEMA = {"unequal lengths of a sparse vector", "an expression that is none"}
JUNK = st.sampled_from([
    None, True, False, 0, -1, 1, 1.5, 16.0, 10**30, 1e300, "", " ", "a", "#score", "#id", "#nothing", "$eq",
    [], {}, [1, 1], ["a", 1], [[1.0]], {"a": 1}, {"$gt": 1}, {"$val": 1}, {"$knn": {"query": "a"}}, {"keys": []},
    {"limit": 1},
])  # fmt: skip


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")  # its import takes two seconds, of each worker if it stood above
    jsonschema.Draft202012Validator.check_schema(json_schema())
    return jsonschema.Draft202012Validator(json_schema())


def parses(tree: Any) -> bool:
    try:
        parse(tree)
    except InputError:
        return False
    return True


@given(tree=dictionaries())
def test_what_the_parser_accepts_fits_the_schema(validator, tree):
    assert parses(tree)
    assert validator.is_valid(json.loads(json.dumps(tree)))


@pytest.mark.parametrize("rule", WRONG)
def test_what_the_parser_refuses_does_not_fit_the_schema(validator, rule):
    tree = WRONG[rule][0]
    assert validator.is_valid(tree) is (rule in BEYOND_A_SCHEMA)


@given(tree=dictionaries(), junk=JUNK, data=st.data())
def test_a_dictionary_with_something_odd_in_it_is_accepted_by_both_or_by_none(validator, tree, junk, data):
    odd = copy.deepcopy(tree)
    at: Any = odd
    while True:
        assume(at)
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if isinstance(at[key], dict | list) and at[key] and data.draw(st.booleans()):
            at = at[key]
            continue
        at[key] = junk
        break
    assert validator.is_valid(odd) is parses(odd) or "indices" in repr(odd)
