"""A search put together over a server's /query and /get finds what the lab's own engine finds in the same records.

The vectors of most tests are small whole numbers, whose distances are exact however they are computed: the same scores,
and the same order where they are equal.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

WORDS = ["Paris", "paris", "is", "big", "Rome", "a.b", "100%", "it's", "ß", "日本"]
QUERY = {"query": [1, 0, -1]}
NEAR = {"$knn": {**QUERY, "limit": 20}}
FAR = {"$knn": {"query": [-2, 1, 1], "limit": 50, "default": 30}}
PLACE = {"$knn": {**QUERY, "limit": 40, "return_rank": True}}
ALL = ["#id", "#document", "#embedding", "#metadata", "#score"]
COUNT = 300


def record(place, rng, vector):
    metadata = {"reward": rng.choice([0.0, 0.25, 0.5, 1.0]), "step": float(rng.randrange(4))}
    metadata |= {"model": rng.choice(["a", "b", "lab/practice"])} if rng.random() < 0.8 else {}
    metadata |= {"flag": rng.random() < 0.5} if rng.random() < 0.5 else {}
    metadata |= {"tools": rng.sample(["search", "run", "look"], 2)} if rng.random() < 0.5 else {}
    metadata |= {"lengths": [float(rng.randrange(3)) for _ in range(2)]} if rng.random() < 0.5 else {}
    document = " ".join(rng.choices(WORDS, k=3)) if rng.random() < 0.9 else None
    return {"id": f"{rng.randrange(10**6)}-{place}", "document": document, "metadata": metadata, "embedding": vector}


def whole(rng):
    return [float(rng.randint(-2, 2)) for _ in range(3)]


def gauss(rng):
    return [rng.gauss(0, 1) for _ in range(3)]


@pytest.fixture(scope="module")
def both(chroma, lab):
    """Makes the same records twice, and finds in both."""

    def make(name, space, vector):
        rng = random.Random(name)
        records = [record(place, rng, vector(rng)) for place in range(COUNT)]
        url = f"{chroma.url}/{name}"
        chroma.create(name, space, records)
        lab.ask(records=records, space=space, url=url)
        ids = [record["id"] for record in records]
        return lambda search: (lab.ask(search=search, url=url), ids)

    return make


WHERES = [
    {"reward": {"$gt": 0.25}},
    {"reward": 0.5},
    {"reward": 1},
    {"reward": {"$ne": 0.5}},
    {"step": {"$lte": 2}},
    {"step": {"$in": [1, 2.5, 3]}},
    {"model": {"$nin": ["a", "b"]}},
    {"model": {"$ne": "a"}},
    {"flag": True},
    {"flag": {"$ne": True}},
    {"flag": 1},
    {"tools": {"$contains": "run"}},
    {"tools": {"$not_contains": "run"}},
    {"lengths": {"$contains": 1}},
    {"lengths": {"$not_contains": 1.0}},
    {"nowhere": {"$ne": 1}},
    {"nowhere": 1},
    *({"#document": {"$contains": word}} for word in (*WORDS, "ari", "i", " ", "%", "_", "*")),
    *({"#document": {"$not_contains": word}} for word in ("Paris", "ß", "本")),
    {"$and": [{"reward": {"$gt": 0}}, {"#document": {"$contains": "Paris"}}]},
    {"$or": [{"reward": 1.0}, {"#document": {"$contains": "Rome"}}, {"model": "b"}]},
    {"$and": [{"$or": [{"flag": False}, {"#document": {"$not_contains": "is"}}]}, {"step": {"$gte": 1}}]},
]
RANKS = [
    NEAR,
    FAR,
    PLACE,
    {"$sum": [NEAR, FAR]},
    {"$mul": [FAR, 0.5, PLACE]},
    {"$max": [NEAR, FAR]},
    {"$min": [PLACE, 3]},
    {"$sub": {"left": 1, "right": FAR}},
    {"$div": {"left": PLACE, "right": NEAR}},
    {"$abs": {"$sub": {"left": NEAR, "right": 5}}},
    {"$exp": {"$mul": [NEAR, -0.5]}},
    {"$log": FAR},
    {"$val": 1},
    {"$knn": {**QUERY, "limit": 1}},
    {"$knn": {**QUERY, "limit": 1000}},
    {"$sum": [NEAR, {"$field": {"key": "reward", "default": 0}}]},
]
GROUPS = [
    {"keys": ["model"], "aggregate": {"$min_k": {"keys": ["#score"], "k": 2}}},
    {"keys": ["flag", "step"], "aggregate": {"$max_k": {"keys": ["reward", "#score"], "k": 1}}},
]


@pytest.fixture(scope="module", params=["l2", "ip"])
def whole_numbers(both, request):
    return both(f"table-{request.param}", request.param, whole)


def same(found):
    (here, there), _ = found
    assert there == here
    return here


@pytest.mark.parametrize("where", WHERES, ids=str)
def test_the_same_records_qualify_in_the_same_order(whole_numbers, where):
    same(whole_numbers({"where": where, "select": ALL}))


def test_ids_are_found(whole_numbers):
    _, ids = whole_numbers({"limit": 1})
    named, reward = {"#id": {"$in": [ids[7], ids[2], "none"]}}, {"reward": {"$gt": 0.25}}
    assert [hit["id"] for hit in same(whole_numbers({"where": named}))] == [ids[2], ids[7]]
    assert len(same(whole_numbers({"where": {"#id": {"$ne": ids[0]}}}))) == COUNT - 1
    for operator in ("$and", "$or"):
        for about in (named, {"#id": {"$nin": ids[:100]}}):
            for rank in ({}, {"rank": FAR}):
                assert same(whole_numbers({"where": {operator: [about, reward]}, **rank}))


@pytest.mark.parametrize("where", [None, {"reward": {"$gt": 0.25}}, {"#document": {"$contains": "Paris"}}], ids=str)
@pytest.mark.parametrize("rank", RANKS, ids=str)
def test_the_same_scores_in_the_same_order(whole_numbers, rank, where):
    search = {"rank": rank, "select": ALL} | ({"where": where} if where else {})
    assert same(whole_numbers(search)) or rank == {"$val": 1}


@pytest.mark.parametrize("group_by", GROUPS, ids=str)
def test_the_same_groups_on_the_same_page(whole_numbers, group_by):
    assert same(whole_numbers({"rank": FAR, "group_by": group_by, "limit": {"limit": 4, "offset": 1}, "select": ALL}))


def test_cosine_distances_are_the_same_to_a_millionth(both):
    find = both("cosine", "cosine", gauss)
    for rank in (rank for rank in RANKS if not {"$div", "$log"} & set(rank)):  # which make much of the last digit
        for where in ({}, {"where": {"reward": {"$gt": 0.25}}}):
            (here, there), _ = find({"rank": rank, **where})
            assert [hit["id"] for hit in there] == [hit["id"] for hit in here]
            assert [hit["score"] for hit in there] == pytest.approx([hit["score"] for hit in here], abs=1e-6, rel=1e-6)


numbers = st.sampled_from([0, 0.25, 0.5, 1, 2.0])
wheres = st.recursive(
    st.sampled_from(WHERES)
    | st.builds(
        lambda name, op, value: {name: {op: value}},
        st.sampled_from(["reward", "step"]),
        st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]),
        numbers,
    ),
    lambda inner: st.builds(
        lambda op, parts: {op: parts}, st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=2, max_size=3)
    ),
    max_leaves=5,
)
knns = st.builds(
    lambda query, told: {"$knn": {"query": query, **told}},
    st.lists(st.integers(-2, 2), min_size=3, max_size=3),
    st.fixed_dictionaries(
        {"limit": st.integers(1, 60)}, optional={"default": st.integers(0, 9), "return_rank": st.booleans()}
    ),
)
ranks = st.recursive(
    knns | numbers,
    lambda inner: st.one_of(
        st.builds(
            lambda op, parts: {op: parts},
            st.sampled_from(["$sum", "$mul", "$max", "$min"]),
            st.lists(inner, min_size=2, max_size=3),
        ),
        st.builds(lambda left, right: {"$sub": {"left": left, "right": right}}, inner, inner),
        st.builds(lambda part: {"$abs": part}, inner),
    ),
    max_leaves=4,
)


def test_random_searches_find_the_same(both):
    find = both("random", "l2", whole)

    @settings(max_examples=200, derandomize=True, deadline=None, database=None)
    @given(wheres | st.none(), ranks, st.none() | st.sampled_from(GROUPS), st.integers(0, 9), st.integers(0, 3))
    def check(where, rank, group_by, limit, offset):
        search = {"rank": rank, "limit": {"limit": limit, "offset": offset}, "select": ALL}
        search |= {"where": where} if where else {}
        same(find(search | ({"group_by": group_by} if group_by else {})))

    check()
