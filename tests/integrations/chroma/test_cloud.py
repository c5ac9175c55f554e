"""A whole search executed elsewhere: what is sent, and what is made of the answer."""

import pytest

from rolloutlab.errors import InputError, RefusedError, ServiceError
from rolloutlab.integrations.chroma.cloud import ChromaCloud, cloud_payload
from rolloutlab.integrations.chroma.connect import connect_search
from rolloutlab.search.engine.execute import Hit
from rolloutlab.search.query import Limit, Search, Select
from rolloutlab.search.rank import FieldTerm, Knn
from rolloutlab.search.where import Compare

KEY = "ck-sekret"
SEARCH = Search(Compare("reward", "$gt", 0.5), Knn([1, 2]), limit=Limit(2), select=Select(("#document", "#score")))


@pytest.fixture
def cloud(http, served) -> ChromaCloud:
    served.on("search", (200, {"ids": [[]]}))
    cloud = connect_search(http, f"{served.url}/rollouts", KEY)
    served.asked.clear()
    return cloud


def test_a_search_is_one_request_with_all_of_it(cloud, served):
    assert cloud.search(SEARCH).hits == ()
    assert served.bodies("search") == [{"searches": [cloud_payload(SEARCH)]}]
    assert len(served.asked) == 1
    assert served.headers[-1]["x-chroma-token"] == KEY


def test_what_is_found_is_in_the_order_of_the_answer(cloud, served):
    answer = {
        "ids": [["b", "a"]],
        "scores": [[0.25, 0.5]],
        "documents": [["x", None]],
        "embeddings": [[[1.0, 2.0], None]],
        "metadatas": [None],
        "select": [["#document", "#score"]],
    }
    served.on("search", (200, answer))
    found = cloud.search(SEARCH)
    assert found.hits == (Hit("b", 0.25, "x", (1.0, 2.0), None), Hit("a", 0.5, None, None, None))
    assert str(found.plan).startswith(f"{served.url} → 2 rows, ")


def test_the_extension_is_refused_before_anything_is_sent(cloud, served):
    with pytest.raises(InputError, match="only the lab's own engine"):
        cloud.search(Search(rank=FieldTerm("reward")))
    assert not served.asked


def test_a_refusal_is_told_in_the_words_of_the_cloud_without_the_key(cloud, served):
    served.on("search", (422, {"error": "ChromaError", "message": f"quota of {KEY} exceeded"}))
    with pytest.raises(RefusedError, match=r"answered 422 quota of \.\.\. exceeded"):
        cloud.search(SEARCH)


@pytest.mark.parametrize(
    "answer",
    [{}, {"ids": []}, {"ids": [["a"], ["b"]]}, {"ids": [["a"]], "scores": [[1.0, 2.0]]}, {"ids": "a"}],
)
def test_an_answer_of_another_shape_is_told(cloud, served, answer):
    served.on("search", (200, answer))
    with pytest.raises(ServiceError, match="did not respond as Chroma"):
        cloud.search(SEARCH)
