"""A Chroma server as a backend: what it is asked, and what is made of its answers."""

from math import isnan

import numpy as np
import pytest

from rolloutlab.errors import BrokenOffError, InputError, RefusedError, ServiceError, UnreachableError
from rolloutlab.integrations.chroma.connect import connect_search
from rolloutlab.integrations.chroma.server import ChromaServer
from rolloutlab.search.engine.backend import MISSING
from rolloutlab.search.engine.execute import Hit
from rolloutlab.search.engine.explain import breakdown
from rolloutlab.search.query import Limit, Search, Select
from rolloutlab.search.rank import FieldTerm, Knn, SparseVector
from rolloutlab.search.where import DOCUMENT, ID, All, Among, AnyOf, Compare, Contains

REWARD = Compare("reward", "$gt", 0.5)


@pytest.fixture
def server(http, served) -> ChromaServer:
    return connect_search(http, f"{served.url}/rollouts")


def got(*ids, **columns):
    return 200, {"ids": list(ids), **columns}


def queried(**distances):
    return 200, {"ids": [list(distances)], "distances": [list(distances.values())]}


def stored(*ids):
    """Answers `get` as a server does that has these ids, and in which every condition holds."""
    return lambda body: got(*[i for i in ids if body.get("ids") is None or i in body["ids"]])


def nearest(*records):
    """Answers `query` as a server does that has these records: ids and distances."""

    def answer(body):
        return queried(**dict(sorted(records, key=lambda record: record[1])[: body["n_results"]]))

    return answer


def test_a_search_is_put_together_here(server, served):
    metadatas = [{"reward": 1.0}, {"reward": 0.0}]
    served.on("get", lambda body: got("a", "b", metadatas=metadatas) if body["include"] else got("a", "b"))
    served.on("query", queried(a=0.25, b=0.5))
    rank = Knn([1, 2]) + FieldTerm("reward")
    found = server.search(Search(rank=rank, limit=Limit(1), select=Select(("#score", "reward"))))
    assert found.hits == (Hit("b", 0.5, None, None, {"reward": 0.0}),)
    assert str(found.plan).startswith("3 records → knn 2 → 1 row, ")


def test_a_score_is_taken_apart_in_the_order_of_the_server(server, served):
    served.on("get", stored("a", "b", "c"))
    served.on("query", queried(c=0.5, b=0.5, a=0.5))
    taken = breakdown(Search(rank=Knn([1, 2], limit=2) * 2), server, "b")
    assert (taken.qualifies, taken.score.value) == (True, 1.0)
    assert breakdown(Search(rank=Knn([1, 2], limit=2)), server, "c").score.value is None


@pytest.mark.parametrize(("count", "warned"), [(1_000, False), (1_001, True)])
def test_where_the_server_may_miss_some_of_the_nearest_it_is_said(server, served, count, warned):
    ids = [str(i) for i in range(count)]
    served.on("get", got(*ids))
    served.on("query", nearest(*((identity, float(identity)) for identity in ids)))
    found = server.search(Search(rank=Knn([1, 2]), limit=Limit(5)))
    said = f"the server's index is approximate: of {count:,} records it may miss some of the nearest"
    assert [hit.id for hit in found.hits] == ids[:5]
    assert found.warnings == ((said,) if warned else ())


def test_without_a_rank_nothing_is_missed(server, served):
    served.on("get", got(*map(str, range(1_001))))
    assert server.search(Search(limit=Limit(5))).warnings == ()


def test_how_many_there_are_is_asked_once(server, served):
    with server.snapshot() as snapshot:
        assert (snapshot.total, snapshot.total) == (3, 3)
    assert len([path for path, _ in served.asked if path.endswith("/count")]) == 1


def test_a_condition_is_the_servers_to_decide(server, served):
    served.on("get", got("b", "c"))
    with server.snapshot() as snapshot:
        places = snapshot.filter(REWARD)
        assert snapshot.get(places, ["#id"]) == {"#id": ["b", "c"]}
    assert served.bodies("get") == [{"where": {"reward": {"$gt": 0.5}}, "include": [], "limit": 100_000, "offset": 0}]


def test_a_long_answer_comes_in_pages(server, served):
    ids = [str(i) for i in range(100_002)]
    served.on("get", lambda body: got(*ids[body["offset"] : body["offset"] + body["limit"]]))
    with server.snapshot() as snapshot:
        assert len(snapshot.filter(None)) == len(ids)
    assert [body["offset"] for body in served.bodies("get")] == [0, 100_000]


def test_ids_narrow_what_is_asked(server, served):
    served.on("get", stored("a", "b", "c"))
    with server.snapshot() as snapshot:
        places = snapshot.filter(All((Among(ID, ("c", "a")), REWARD)))
        assert snapshot.get(places, ["#id"])["#id"] == ["a", "c"]
    assert served.bodies("get")[0]["ids"] == ["a", "c"]
    assert served.bodies("get")[0]["where"] == {"reward": {"$gt": 0.5}}


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (Compare(ID, "$ne", "b"), "acd"),
        (Among(ID, ("b", "c"), negated=True), "ad"),
        (AnyOf((Compare(ID, "$eq", "d"), REWARD)), "ad"),
        (All((Compare(ID, "$ne", "a"), REWARD)), ""),
        (AnyOf((All((Compare(ID, "$ne", "a"), Compare(ID, "$ne", "c"))), REWARD, Contains(DOCUMENT, "x"))), "abd"),
        (Among(ID, tuple(map(str, range(10_001)))), ""),
    ],
)
def test_conditions_that_mix_ids_with_others_are_put_together_here(server, served, where, found):
    served.on("get", lambda body: got("a") if "where" in body else got("a", "b", "c", "d"))
    with server.snapshot() as snapshot:
        assert "".join(snapshot.get(snapshot.filter(where), ["#id"])["#id"]) == found
    assert not any("ids" in body for body in served.bodies("get"))


def test_the_nearest_are_asked_for_under_the_filter_that_let_them_through(server, served):
    served.on("get", got("a", "b", "c"))
    served.on("query", nearest(("c", 0.25), ("a", 0.5), ("b", 1.0)))
    with server.snapshot() as snapshot:
        hits = snapshot.knn(Knn([1, 2], limit=2), snapshot.filter(REWARD))
    assert hits.places_K.tolist() == [2, 0]
    assert hits.distances_K.tolist() == [0.25, 0.5]
    assert hits.distances_K.dtype == np.float32
    assert served.bodies("query") == [
        {"query_embeddings": [[1.0, 2.0]], "n_results": 3, "include": ["distances"], "where": {"reward": {"$gt": 0.5}}}
    ]


def test_the_nearest_of_some_records_are_asked_for_by_their_ids(server, served):
    served.on("get", got("a", "b", "c"))
    served.on("query", nearest(("a", 0.5), ("c", 0.25)))
    with server.snapshot() as snapshot:
        snapshot.filter(None)
        assert snapshot.knn(Knn([1, 2]), np.array([0, 2])).places_K.tolist() == [2, 0]
    assert served.bodies("query")[0]["ids"] == ["a", "c"]


def test_the_nearest_of_very_many_records_take_more_than_one_request(server, served):
    ids = [str(i) for i in range(10_003)]
    distances = {identity: abs(int(identity) - 10_000) for identity in ids}
    served.on("get", got(*ids))
    served.on("query", lambda body: nearest(*((i, distances[i]) for i in body["ids"]))(body))
    with server.snapshot() as snapshot:
        snapshot.filter(None)
        hits = snapshot.knn(Knn([1, 2], limit=3), np.arange(1, 10_003))
    assert hits.places_K.tolist() == [10_000, 9_999, 10_001]
    assert len(served.bodies("query")) == 2


def test_of_records_at_one_distance_those_stored_first_are_nearest(server, served):
    ids = [str(i) for i in range(2_500)]
    served.on("get", got(*ids))
    served.on("query", nearest(*((identity, float(identity != "2000")) for identity in reversed(ids))))
    with server.snapshot() as snapshot:
        assert snapshot.knn(Knn([1, 2], limit=4), snapshot.filter(None)).places_K.tolist() == [2_000, 0, 1, 2]
    assert [body["n_results"] for body in served.bodies("query")] == [1_000, 2_000, 2_500]


def test_a_distance_that_is_no_number_is_last(server, served):
    served.on("get", got("a", "b"))
    served.on("query", queried(a=None, b=2.0))
    with server.snapshot() as snapshot:
        hits = snapshot.knn(Knn([1, 2]), snapshot.filter(None))
    assert hits.places_K.tolist() == [1, 0]
    assert isnan(hits.distances_K[1])


def test_a_record_that_came_after_the_filter_is_not_found(server, served):
    served.on("get", got("a", "b"))
    served.on("query", queried(new=0.0, b=1.0))
    with server.snapshot() as snapshot:
        assert snapshot.knn(Knn([1, 2], limit=1), snapshot.filter(None)).places_K.tolist() == [1]


def test_of_no_records_none_is_nearest_and_nothing_is_asked(server, served):
    served.on("get", got())
    with server.snapshot() as snapshot:
        assert len(snapshot.knn(Knn([1, 2]), snapshot.filter(REWARD)).places_K) == 0
    assert not served.bodies("query")


@pytest.mark.parametrize(
    "knn", [Knn("text"), Knn("text", key="bm25"), Knn([1, 2], key="other"), Knn(SparseVector((1,), (1.0,)))]
)
def test_what_the_server_cannot_find_by_is_told(server, served, knn):
    served.on("get", got("a"))
    with server.snapshot() as snapshot, pytest.raises(InputError, match="by vectors of #embedding only"):
        snapshot.knn(knn, snapshot.filter(None))


def test_a_vector_of_another_dimension_is_told_before_it_is_sent(server, served):
    served.on("get", got("a"))
    with server.snapshot() as snapshot, pytest.raises(InputError, match="vectors of 2 numbers, the query has 3"):
        snapshot.knn(Knn([1, 2, 3]), snapshot.filter(None))


def test_what_is_read_of_records_is_in_the_order_asked_for(server, served):
    answer = got(
        "a",
        "b",
        documents=["Paris", None],
        embeddings=[[1.0, 0.0], [0.0, 1.0]],
        metadatas=[{"reward": 1, "tools": ["x"]}, None],
    )
    served.on("get", lambda body: answer if body["include"] else got("a", "b"))
    with server.snapshot() as snapshot:
        snapshot.filter(None)
        read = snapshot.get(np.array([1, 0]), ["#id", "#document", "#embedding", "#metadata", "reward", "tools"])
    assert read["#id"] == ["b", "a"]
    assert read["#document"] == [MISSING, "Paris"]
    assert read["#embedding"] == [(0.0, 1.0), (1.0, 0.0)]
    assert read["#metadata"] == [{}, {"reward": 1, "tools": ["x"]}]
    assert read["reward"] == [MISSING, 1]
    assert read["tools"] == [MISSING, ["x"]]
    assert served.bodies("get")[1] == {"ids": ["b", "a"], "include": ["documents", "embeddings", "metadatas"]}


def test_only_what_is_wanted_is_read(server, served):
    served.on("get", lambda body: got("a", metadatas=[{"reward": 1}]) if body["include"] else got("a"))
    with server.snapshot() as snapshot:
        assert snapshot.get(snapshot.filter(None), ["reward"]) == {"reward": [1]}
    assert served.bodies("get")[1]["include"] == ["metadatas"]


def test_a_record_that_went_meanwhile_has_no_values(server, served):
    served.on("get", lambda body: got("b", documents=["x"]) if body["include"] else got("a", "b"))
    with server.snapshot() as snapshot:
        assert snapshot.get(snapshot.filter(None), ["#document"]) == {"#document": [MISSING, "x"]}


def test_records_are_read_a_thousand_at_a_time(server, served):
    ids = [str(i) for i in range(1_500)]
    served.on("get", lambda body: got(*body.get("ids", ids), documents=list(body.get("ids", ids))))
    with server.snapshot() as snapshot:
        assert snapshot.get(snapshot.filter(None), ["#document"])["#document"] == ids
    assert [len(body["ids"]) for body in served.bodies("get")[1:]] == [1_000, 500]


def test_a_refusal_is_told_in_the_words_of_the_server(server, served):
    served.on("get", (400, {"error": "InvalidArgumentError", "message": "Invalid where clause"}))
    with server.snapshot() as snapshot, pytest.raises(RefusedError, match="answered 400 Invalid where clause"):
        snapshot.filter(REWARD)


def test_a_server_that_fails_for_a_moment_is_asked_again(server, served):
    failures = iter([(500, {"error": "InternalError", "message": "busy"})])
    served.on("get", lambda _: next(failures, got("a")))
    with server.snapshot() as snapshot:
        assert len(snapshot.filter(REWARD)) == 1


def test_a_server_that_goes_away_is_told(server, served):
    served.close()
    with server.snapshot() as snapshot, pytest.raises(UnreachableError, match="nothing answers at") as caught:
        snapshot.filter(REWARD)
    assert not isinstance(caught.value, BrokenOffError)


@pytest.mark.parametrize(
    "answer",
    [
        {"ids": [], "distances": []},
        {"ids": [["a"]], "distances": [[]]},
        {"ids": [["a"]], "distances": [["near"]]},
        {"ids": [["a"]]},
    ],
)
def test_the_nearest_in_another_shape_are_told(server, served, answer):
    served.on("get", got("a"))
    served.on("query", (200, answer))
    with server.snapshot() as snapshot, pytest.raises(ServiceError, match="did not respond as Chroma does"):
        snapshot.knn(Knn([1, 2]), snapshot.filter(None))


def test_values_that_are_not_of_each_record_are_told(server, served):
    served.on("get", lambda body: got("a", documents=[]) if body["include"] else got("a"))
    with server.snapshot() as snapshot, pytest.raises(ServiceError, match="its columns have different lengths"):
        snapshot.get(snapshot.filter(None), ["#document"])


@pytest.mark.parametrize("answer", [{}, {"ids": [1]}, {"ids": None}, "<html>", []])
def test_an_answer_of_another_shape_is_told(server, served, answer):
    served.on("get", (200, answer))
    with server.snapshot() as snapshot, pytest.raises(ServiceError):
        snapshot.filter(REWARD)
