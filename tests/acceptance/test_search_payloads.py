"""A Chroma server reads every search that we send, though it executes none: 501 is yes, 4xx is no."""

import pytest
from chromadb import K, Knn, Search
from chromadb.execution.expression.operator import GroupBy, MinK, Val
from hypothesis import given, settings
from hypothesis import strategies as st

NO_SPARSE_INDEX = "with type 'SparseVector' because indexing is disabled"
VECTOR = {"$knn": {"query": [0.5, 1.0]}}
PLACE = {"$knn": {"query": [0.5, 1.0], "return_rank": True}}
SPARSE = {"$knn": {"query": {"indices": [3, 17], "values": [0.5, 1]}, "key": "words", "limit": 5, "default": 1}}
BEST = {"$min_k": {"keys": ["#score"], "k": 2}}

VALID = [
    {},
    *({"where": {"reward": {operator: 0.5}}} for operator in ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")),
    {"where": {"reward": 1}},
    {"where": {"truncated": True}},
    {"where": {"model": {"$ne": "lab/practice"}}},
    {"where": {"model": {"$in": ["a", "b"]}}},
    {"where": {"step": {"$nin": [1, 2]}}},
    {"where": {"step": {"$in": [1, 2.5]}}},
    {"where": {"tools": {"$contains": "search"}}},
    {"where": {"steps": {"$not_contains": 2}}},
    {"where": {"#document": {"$contains": "Paris"}}},
    {"where": {"#document": {"$not_contains": "Paris"}}},
    {"where": {"#document": {"$regex": "^Par.s$"}}},
    {"where": {"#document": {"$not_regex": "(?i)paris"}}},
    {"where": {"#id": "a"}},
    {"where": {"#id": {"$in": ["a", "b"]}}},
    {"where": {"$and": [{"reward": {"$gt": 0}}, {"$or": [{"model": "a"}, {"#document": {"$contains": "x"}}]}]}},
    {"where": {"reward.exact match": {"$gt": 2**70}}},
    *({"rank": rank} for rank in (VECTOR, PLACE, SPARSE, 1, {"$val": -1.5})),
    *({"rank": {operator: [VECTOR, 2, SPARSE]}} for operator in ("$sum", "$mul", "$max", "$min")),
    *({"rank": {operator: {"left": VECTOR, "right": 2}}} for operator in ("$sub", "$div")),
    *({"rank": {operator: VECTOR}} for operator in ("$abs", "$exp", "$log")),
    {"rank": VECTOR, "group_by": {"keys": ["model"], "aggregate": BEST}, "limit": 5},
    {"rank": VECTOR, "group_by": {"keys": ["model", "step"], "aggregate": {"$max_k": {"keys": ["step"], "k": 1}}}},
    {"limit": {"limit": 5, "offset": 10}},
    {"limit": {"offset": 10}},
    {"limit": 0},
    {"select": ["#id", "#document", "#embedding", "#metadata", "#score", "reward"]},
    {"rank": VECTOR, "select": {"keys": ["#score"]}},
]

REWARD = K("reward") > 0.5
BY_MODEL = GroupBy(keys=[K("model")], aggregate=MinK(keys=[K.SCORE], k=2))
NEAR, FAR = Knn(query=[0.5, 1.0]), Knn(query=[1.0, 0.0], limit=99, default=2.0)

SAME = [
    ({}, Search()),
    ({"where": {"reward": {"$gt": 0.5}}, "limit": 5}, Search().where(REWARD).limit(5)),
    (
        {"where": {"$and": [{"reward": {"$gt": 0.5}}, {"#document": {"$contains": "Paris"}}]}},
        Search().where(REWARD & K.DOCUMENT.contains("Paris")),
    ),
    ({"where": {"#id": {"$in": ["a"]}}}, Search().where(K.ID.is_in(["a"]))),
    ({"where": {"#document": {"$not_regex": "x"}}}, Search().where(K.DOCUMENT.not_regex("x"))),
    ({"rank": VECTOR, "limit": {"limit": 5, "offset": 10}}, Search().rank(NEAR).limit(5, 10).select(K.SCORE)),
    ({"rank": {"$sum": [{"$mul": [VECTOR, 0.5]}, 1.5]}}, Search().rank(NEAR * 0.5 + 1.5).select(K.SCORE)),
    (
        {"rank": {"$sub": {"left": 1.5, "right": {"$exp": {"$knn": {"query": [1, 0], "limit": 99, "default": 2}}}}}},
        Search().rank(Val(1.5) - FAR.exp()).select(K.SCORE),
    ),
    (
        {"rank": VECTOR, "group_by": {"keys": ["model"], "aggregate": BEST}},
        Search().rank(NEAR).group_by(BY_MODEL).select(K.SCORE),
    ),
    ({"rank": VECTOR, "select": ["#document", "reward"]}, Search().rank(NEAR).select(K.DOCUMENT, "reward")),
]

INVALID = {
    "an unknown key": {"wher": {"reward": 1}},
    "an unknown operator": {"where": {"reward": {"$above": 1}}},
    "two operators": {"where": {"reward": {"$gt": 0, "$lt": 1}}},
    "null": {"where": {"reward": None}},
    "an order of texts": {"where": {"model": {"$gt": "a"}}},
    "an order of truths": {"where": {"truncated": {"$gt": True}}},
    "an empty $in": {"where": {"model": {"$in": []}}},
    "an $in of two types": {"where": {"model": {"$in": ["a", 1]}}},
    "an empty $and": {"where": {"$and": []}},
    "an $or that is no list": {"where": {"$or": {"reward": 1}}},
    "a regular expression on a field": {"where": {"model": {"$regex": "a"}}},
    "a document equal to a text": {"where": {"#document": "a"}},
    "an empty text in documents": {"where": {"#document": {"$contains": ""}}},
    "an unknown # field": {"where": {"#text": {"$contains": "a"}}},
    "a number that is a document": {"where": {"#document": {"$contains": 1}}},
    "an unknown rank": {"rank": {"$foo": 1}},
    "an empty rank": {"rank": {}},
    "two ranks": {"rank": {"$val": 1, "$abs": 1}},
    "one operand": {"rank": {"$sum": [VECTOR]}},
    "no operand": {"rank": {"$mul": []}},
    "one side": {"rank": {"$sub": {"left": VECTOR}}},
    "a text that is a rank": {"rank": "fast"},
    "a $val that is no number": {"rank": {"$val": "1"}},
    "a knn without a query": {"rank": {"$knn": {"limit": 3}}},
    "an unknown key of a knn": {"rank": {"$knn": {"query": [1], "top": 3}}},
    "a knn of none": {"rank": {"$knn": {"query": [1], "limit": 0}}},
    "a knn of less than none": {"rank": {"$knn": {"query": [1], "limit": -1}}},
    "an empty vector": {"rank": {"$knn": {"query": []}}},
    "a sparse vector of two lengths": {"rank": {"$knn": {"query": {"indices": [1, 2], "values": [1]}, "key": "w"}}},
    "an index twice": {"rank": {"$knn": {"query": {"indices": [1, 1], "values": [1, 2]}, "key": "w"}}},
    "a negative index": {"rank": {"$knn": {"query": {"indices": [-1], "values": [1]}, "key": "w"}}},
    "a return_rank that is no truth": {"rank": {"$knn": {"query": [1], "return_rank": 1}}},
    "a default that is no number": {"rank": {"$knn": {"query": [1], "default": "1"}}},
    "groups without a rank": {"group_by": {"keys": ["model"], "aggregate": BEST}},
    "groups by nothing": {"rank": VECTOR, "group_by": {"keys": [], "aggregate": BEST}},
    "groups by score": {"rank": VECTOR, "group_by": {"keys": ["#score"], "aggregate": BEST}},
    "groups without an aggregate": {"rank": VECTOR, "group_by": {"keys": ["model"]}},
    "the best none": {"rank": VECTOR, "group_by": {"keys": ["a"], "aggregate": {"$min_k": {"keys": ["b"], "k": 0}}}},
    "the best by nothing": {"rank": VECTOR, "group_by": {"keys": ["a"], "aggregate": {"$min_k": {"keys": [], "k": 1}}}},
    "a negative limit": {"limit": {"limit": -1}},
    "a negative offset": {"limit": {"offset": -1}},
    "a limit that is a truth": {"limit": {"limit": True}},
    "an unknown key of limit": {"limit": {"top": 5}},
    "a selection of numbers": {"select": {"keys": [1]}},
    "an unknown # selection": {"select": {"keys": ["#text"]}},
    "an empty selection key": {"select": {"keys": [""]}},
}

TAKEN = {
    "an unknown key",
    "an empty $and",
    "an empty text in documents",
    "an unknown # field",
    "one operand",
    "no operand",
    "an unknown key of a knn",
    "a knn of none",
    "an empty vector",
    "an unknown key of limit",
    "an unknown # selection",
    "an empty selection key",
}
"""What the server takes for a search all the same."""

numbers = st.floats(-1e6, 1e6, width=32)
names = st.sampled_from(["reward", "model", "step", "a b"])
values = st.one_of(st.text("ab%\"'\\é☃", max_size=4), st.booleans(), st.integers(-(2**40), 2**40), numbers)
leaves = st.one_of(
    st.builds(lambda name, op, value: {name: {op: value}}, names, st.sampled_from(["$eq", "$ne"]), values),
    st.builds(
        lambda name, op, value: {name: {op: value}}, names, st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), numbers
    ),
    st.builds(
        lambda name, op, value: {name: {op: value}},
        names,
        st.sampled_from(["$in", "$nin"]),
        st.one_of(
            st.lists(st.one_of(st.integers(0, 9), numbers), min_size=1, max_size=3), st.lists(st.text("ab"), min_size=1)
        ),
    ),
    st.builds(
        lambda op, text: {"#document": {op: text}},
        st.sampled_from(["$contains", "$not_contains"]),
        st.text("aß.", min_size=1),
    ),
    st.builds(lambda op, text: {"#id": {op: text}}, st.sampled_from(["$eq", "$ne"]), st.text("ab", min_size=1)),
)
wheres = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda op, parts: {op: parts}, st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=2, max_size=3)
    ),
    max_leaves=6,
)
vectors = st.lists(numbers, min_size=1, max_size=3)
sparse = st.dictionaries(st.integers(0, 2**31), numbers, min_size=1, max_size=3).map(
    lambda found: {"indices": sorted(found), "values": [found[index] for index in sorted(found)]}
)
options = st.fixed_dictionaries(
    {}, optional={"limit": st.integers(1, 99), "default": numbers, "return_rank": st.booleans()}
)
knns = st.one_of(
    st.builds(lambda query, told: {"$knn": {"query": query, **told}}, vectors, options),
    st.builds(lambda query, told: {"$knn": {"query": query, "key": "words", **told}}, sparse, options),
)
ranks = st.recursive(
    st.one_of(knns, numbers, numbers.map(lambda value: {"$val": value})),
    lambda inner: st.one_of(
        st.builds(
            lambda op, parts: {op: parts},
            st.sampled_from(["$sum", "$mul", "$max", "$min"]),
            st.lists(inner, min_size=2, max_size=3),
        ),
        st.builds(
            lambda op, left, right: {op: {"left": left, "right": right}},
            st.sampled_from(["$sub", "$div"]),
            inner,
            inner,
        ),
        st.builds(lambda op, part: {op: part}, st.sampled_from(["$abs", "$exp", "$log"]), inner),
    ),
    max_leaves=6,
)
keys = st.lists(names, min_size=1, max_size=2, unique=True)
aggregates = st.builds(
    lambda op, best, k: {op: {"keys": best, "k": k}},
    st.sampled_from(["$min_k", "$max_k"]),
    st.lists(st.sampled_from(["#score", "reward", "step"]), min_size=1, max_size=2, unique=True),
    st.integers(1, 9),
)
dictionaries = st.builds(
    lambda parts, group: {**parts, "group_by": group} if group and "rank" in parts else parts,
    st.fixed_dictionaries(
        {},
        optional={
            "where": wheres,
            "rank": ranks,
            "limit": st.one_of(
                st.integers(0, 99),
                st.fixed_dictionaries({}, optional={"limit": st.integers(0, 9), "offset": st.integers(0, 9)}),
            ),
            "select": st.lists(
                st.sampled_from(["#id", "#document", "#score", "#metadata", "#embedding", "reward"]), unique=True
            ),
        },
    ),
    st.none() | st.fixed_dictionaries({"keys": keys, "aggregate": aggregates}),
)


@pytest.fixture(scope="module")
def takes(chroma):
    """What the server says to a payload: None where it reads it. A local one can have no index of sparse vectors."""
    collection = chroma.create("payloads", "l2", [{"id": "a", "embedding": [0.0, 0.0]}])

    def ask(payload):
        status, said = chroma.post(f"{collection}/search", {"searches": [payload]})
        assert status in {400, 422, 501}, said
        return None if status == 501 or NO_SPARSE_INDEX in said["message"] else said["message"]

    return ask


@pytest.mark.parametrize("dictionary", VALID, ids=str)
def test_what_is_sent_for_a_search_is_taken(lab, takes, dictionary):
    assert takes(lab.ask(payload=dictionary)) is None


def test_what_is_sent_for_any_search_is_taken(lab, takes):
    @settings(max_examples=200, derandomize=True, deadline=None, database=None)
    @given(dictionaries)
    def check(dictionary):
        assert takes(lab.ask(payload=dictionary)) is None

    check()


@pytest.mark.parametrize(("dictionary", "search"), SAME, ids=[str(dictionary) for dictionary, _ in SAME])
def test_what_is_sent_is_what_the_official_client_sends(lab, dictionary, search):
    assert told(lab.ask(payload=dictionary)) == told(search.to_dict())


def told(payload):
    """A payload without the parts that say nothing, and with what is selected in one order."""
    said = {key: value for key, value in payload.items() if value}
    limit = {key: value for key, value in said.pop("limit", {}).items() if value}
    return {**said, "limit": limit, "select": sorted(said.pop("select", {}).get("keys", ()))}


@pytest.mark.parametrize("name", INVALID)
def test_what_the_lab_refuses_the_server_refuses_unless_it_is_known_not_to(lab, takes, name):
    with pytest.raises(ValueError, match=r"\w"):
        lab.ask(payload=INVALID[name])
    raw = dict(INVALID[name])
    if "where" in raw:
        raw["filter"] = raw.pop("where")
    assert (takes(raw) is None) == (name in TAKEN)
