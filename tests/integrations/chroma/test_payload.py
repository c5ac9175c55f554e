"""What is sent to Chroma's cloud. The literals are what its own client, 1.5.9, makes of the same searches."""

import json
from typing import Any

import pytest
from hypothesis import given

from rolloutlab.errors import InputError
from rolloutlab.integrations.chroma.cloud import cloud_payload
from rolloutlab.search import F, FieldTerm, GroupBy, Knn, Limit, MaxK, Rrf, Search, Select, SparseVector
from tests.search.strategies import SEARCHES

EMPTY: dict[str, Any] = {
    "filter": None, "rank": None, "group_by": {}, "limit": {"offset": 0}, "select": {"keys": []},
}  # fmt: skip


def knn(query: Any, key: str = "#embedding", limit: int = 16, **more: Any) -> dict[str, Any]:
    return {"$knn": {"query": query, "key": key, "limit": limit, **more}}


OFFICIAL: dict[str, tuple[Search, dict[str, Any]]] = {
    "nothing": (Search(), {}),
    "conditions and a page": (
        Search(
            (F.reward > 0.5) & ((F.model == "a") | F.step.is_in([1, 2])) & F.document.contains("paris")
            & F.document.not_regex("a+") & (F.done == True) & F.id.not_in(["x"]),  # noqa: E712
            limit=Limit(10, 20),
        ),
        {
            "filter": {"$and": [
                {"reward": {"$gt": 0.5}},
                {"$or": [{"model": {"$eq": "a"}}, {"step": {"$in": [1.0, 2.0]}}]},
                {"#document": {"$contains": "paris"}},
                {"#document": {"$not_regex": "a+"}},
                {"done": {"$eq": True}},
                {"#id": {"$nin": ["x"]}},
            ]},
            "limit": {"offset": 20, "limit": 10},
        },
    ),
    "every kind of rank": (
        Search(
            rank=Knn([0.5, 1], limit=50, default=2, return_rank=True) * 0.5
            - abs(Knn(SparseVector([7, 3], [1, 2]), key="topics")).exp() / Knn([0.5, 1]).log().max(1).min(2),
            select=Select("#document"),
        ),
        {
            "rank": {"$sub": {
                "left": {"$mul": [knn([0.5, 1.0], limit=50, default=2.0, return_rank=True), {"$val": 0.5}]},
                "right": {"$div": {
                    "left": {"$exp": {"$abs": knn(
                        {"#type": "sparse_vector", "indices": [3, 7], "values": [2.0, 1.0]}, key="topics"
                    )}},
                    "right": {"$min": [{"$max": [{"$log": knn([0.5, 1.0])}, {"$val": 1.0}]}, {"$val": 2.0}]},
                }},
            }},
            "select": {"keys": ["#document"]},
        },
    ),
    "fused ranks": (
        Search(rank=Rrf([Knn([0.5], return_rank=True), Knn([1], key="topics", return_rank=True)], weights=[2, 1])),
        {
            "rank": {"$mul": [{"$val": -1.0}, {"$sum": [
                {"$div": {
                    "left": {"$val": 2.0},
                    "right": {"$sum": [{"$val": 60.0}, knn([0.5], return_rank=True)]},
                }},
                {"$div": {
                    "left": {"$val": 1.0},
                    "right": {"$sum": [{"$val": 60.0}, knn([1.0], key="topics", return_rank=True)]},
                }},
            ]}]},
            "select": {"keys": ["#score"]},
        },
    ),
    "groups": (
        Search(
            rank=Knn([0.5]),
            group_by=GroupBy(["model", "step"], MaxK(["reward", "#score"], 2)),
            limit=Limit(3),
            select=Select("#score"),
        ),
        {
            "rank": knn([0.5]),
            "group_by": {"keys": ["model", "step"], "aggregate": {"$max_k": {"keys": ["reward", "#score"], "k": 2}}},
            "limit": {"offset": 0, "limit": 3},
            "select": {"keys": ["#score"]},
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_payload_is_that_of_the_official_client(name):
    search, said = OFFICIAL[name]
    assert json.dumps(cloud_payload(search), sort_keys=True) == json.dumps({**EMPTY, **said}, sort_keys=True)


def test_a_limit_of_0_is_left_out_for_the_cloud_would_find_nothing():
    assert cloud_payload(Search(limit=Limit(0, 5)))["limit"] == {"offset": 5}


def test_a_score_that_comes_by_itself_here_is_asked_for_there():
    assert cloud_payload(Search(rank=Knn([1])))["select"] == {"keys": ["#score"]}
    assert cloud_payload(Search(rank=Knn([1]), select=Select("reward")))["select"] == {"keys": ["reward"]}


def test_numbers_are_floats_and_true_is_none():
    where = cloud_payload(Search((F.step == 3) & (F.done == True) & F.step.is_in([1])))["filter"]  # noqa: E712
    assert json.dumps(where) == '{"$and": [{"step": {"$eq": 3.0}}, {"done": {"$eq": true}}, {"step": {"$in": [1.0]}}]}'


def test_a_text_that_no_model_made_a_vector_of_is_refused():
    with pytest.raises(InputError, match="the text 'paris' has no vector") as refused:
        cloud_payload(Search(rank=1 - Knn("paris")))
    assert refused.value.hint


def test_a_field_term_is_for_the_labs_own_engine():
    with pytest.raises(InputError, match="only the lab's own engine") as refused:
        cloud_payload(Search(rank=Knn([1]) - FieldTerm("reward")))
    assert json.loads(refused.value.hint or "")["group_by"]


@given(search=SEARCHES)
def test_every_search_is_compiled_or_refused(search):
    try:
        payload = cloud_payload(search)
    except InputError:
        assert "FieldTerm" in repr(search) or "Knn(" in repr(search)
    else:
        assert set(json.loads(json.dumps(payload, allow_nan=False))) == set(EMPTY)
