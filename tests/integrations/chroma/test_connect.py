"""From an address to what searches there, and what is said when nothing does."""

import socket

import pytest

from rolloutlab.errors import (
    InputError,
    NotFoundError,
    RefusedError,
    RolloutlabError,
    ServiceError,
    SignInError,
    UnreachableError,
)
from rolloutlab.integrations.chroma.cloud import ChromaCloud
from rolloutlab.integrations.chroma.connect import connect_search
from rolloutlab.integrations.chroma.server import ChromaServer

BASE = "/api/v2/tenants/default_tenant/databases/default_database/collections"
KEY = "ck-sekret"


def said(error: RolloutlabError) -> str:
    return f"{error.message} | {error.hint}"


def test_a_server_is_what_answers_501_to_a_search(http, served):
    found = connect_search(http, f"{served.url}/rollouts")
    assert isinstance(found, ChromaServer)
    assert (found.collection.id, found.collection.space, found.collection.dimension) == ("0-1", "cosine", 2)
    assert [path for path, _ in served.asked] == [f"{BASE}/rollouts", f"{BASE}/0-1/search"]


def test_a_cloud_is_what_answers_a_search(http, served):
    served.on("search", (200, {"ids": [[]]}))
    assert isinstance(connect_search(http, f"{served.url}/rollouts"), ChromaCloud)


def test_an_old_server_that_knows_no_search_is_a_server(http, served):
    del served.answers[f"{BASE}/0-1/search"]
    assert isinstance(connect_search(http, f"{served.url}/rollouts"), ChromaServer)


def test_a_cloud_that_fails_is_not_taken_for_a_server(http, served):
    served.on("search", (500, {"error": "InternalError", "message": "out of memory"}))
    with pytest.raises(ServiceError, match="answered 500 out of memory"):
        connect_search(http, f"{served.url}/rollouts")


def test_a_tenant_and_a_database_may_be_named(http, served):
    path = "/api/v2/tenants/my%20team/databases/prod/collections"
    served.answers[f"{path}/rollouts"] = served.answers[f"{BASE}/rollouts"]
    served.answers[f"{path}/0-1/search"] = served.answers[f"{BASE}/0-1/search"]
    found = connect_search(http, f"{served.url}/my%20team/prod/rollouts/")
    assert (found.chroma.tenant, found.chroma.database) == ("my team", "prod")


def test_a_collection_of_the_cloud_tells_its_space_elsewhere(http, served):
    body = {"id": "0-1", "name": "rollouts", "dimension": None, "configuration_json": {"spann": {"space": "ip"}}}
    served.answers[f"{BASE}/rollouts"] = 200, body
    found = connect_search(http, f"{served.url}/rollouts").collection
    assert (found.space, found.dimension) == ("ip", None)


def test_the_key_is_sent_with_every_request_and_shown_nowhere(http, served):
    found = connect_search(http, f"{served.url}/rollouts", KEY)
    assert [headers.get("x-chroma-token") for headers in served.headers] == [KEY, KEY]
    assert KEY not in repr(found.chroma)


def test_without_a_key_none_is_sent(http, served):
    connect_search(http, f"{served.url}/rollouts")
    assert not any("x-chroma-token" in headers or "authorization" in headers for headers in served.headers)


def test_a_key_that_is_wanted_is_asked_for(http, served):
    served.answers[f"{BASE}/rollouts"] = 401, {"error": "AuthError", "message": "Unauthorized"}
    with pytest.raises(SignInError) as caught:
        connect_search(http, f"{served.url}/rollouts")
    assert said(caught.value) == f"{served.url} wants a key: 401 Unauthorized | %connect --search URL --key-env NAME"


def test_a_key_that_is_refused_is_not_repeated_though_the_server_does(http, served):
    served.answers[f"{BASE}/rollouts"] = 403, {"error": "AuthError", "message": f"no such key {KEY}"}
    with pytest.raises(SignInError) as caught:
        connect_search(http, f"{served.url}/rollouts", KEY)
    assert caught.value.message == f"{served.url} refused the key: 403 no such key ..."
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("key", ["a\nb", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused_unsent(http, served, key):
    with pytest.raises(SignInError, match="not allowed in an HTTP header"):
        connect_search(http, f"{served.url}/rollouts", key)
    assert not served.asked


def test_a_collection_that_is_not_there_has_the_nearest_names_beside_it(http, served):
    with pytest.raises(NotFoundError, match="Collection does not exist") as caught:
        connect_search(http, f"{served.url}/rolouts")
    assert caught.value.hint == f"%connect --search {served.url}/rollouts; there is rollouts"


def test_the_nearest_name_is_in_the_same_database(http, served):
    path = "/api/v2/tenants/my%20team/databases/prod/collections"
    served.answers[f"{path}?limit=1000"] = 200, [{"name": "rollouts"}]
    with pytest.raises(NotFoundError) as caught:
        connect_search(http, f"{served.url}/my%20team/prod/rolouts")
    assert caught.value.hint == f"%connect --search {served.url}/my%20team/prod/rollouts; there is rollouts"


def test_where_no_collections_are_told_the_forms_of_an_address_are(http, served):
    served.answers[f"{BASE}?limit=1000"] = 403, {"error": "AuthError", "message": "Forbidden"}
    with pytest.raises(InputError) as caught:
        connect_search(http, served.url)
    assert "http://127.0.0.1:8000/COLLECTION" in caught.value.hint


def test_an_address_without_a_collection_has_those_there_are_beside_it(http, served):
    with pytest.raises(InputError, match="is not the URL of a collection") as caught:
        connect_search(http, served.url)
    assert caught.value.hint == f"%connect --search {served.url}/rollouts; there are rollouts, answers"


def test_a_name_that_the_server_finds_wrong_is_refused_in_its_words(http, served):
    served.answers[f"{BASE}/x"] = 400, {"error": "InvalidArgumentError", "message": "at least 3 characters"}
    with pytest.raises(RefusedError, match="answered 400 at least 3 characters"):
        connect_search(http, f"{served.url}/x")


def test_nothing_answers(http):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UnreachableError, match=f"nothing answers at {url}") as caught:
            connect_search(http, f"{url}/rollouts")
    assert caught.value.hint == "chroma run --port 8000 starts one; %connect --search URL"


@pytest.mark.parametrize(
    "answer", [(404, "<html>no</html>"), (200, "<html>hello</html>"), (200, ["models"]), (405, ""), (200, {"id": 1})]
)
def test_something_else_answers(http, served, answer):
    served.answers = {f"{BASE}/rollouts": answer, "/api/v2/heartbeat": (200, {"ok": True})}
    with pytest.raises(ServiceError, match=f"{served.url} is not a Chroma server") as caught:
        connect_search(http, f"{served.url}/rollouts")
    assert "http://127.0.0.1:8000/COLLECTION" in caught.value.hint


def test_a_chroma_that_describes_a_collection_in_another_way_is_told_from_something_else(http, served):
    served.answers[f"{BASE}/rollouts"] = 200, {"uuid": "0-1"}
    with pytest.raises(ServiceError, match=r"did not respond as Chroma does: id: Field required"):
        connect_search(http, f"{served.url}/rollouts")


@pytest.mark.parametrize(
    "url", ["", "rollouts", "127.0.0.1:8000/rollouts", "ftp://h/rollouts", "http:///rollouts", "http://h/a/b"]
)
def test_what_is_no_address_of_a_collection_is_told(http, url):
    with pytest.raises(InputError, match="is not the URL of a collection") as caught:
        connect_search(http, url)
    assert "http://127.0.0.1:8000/COLLECTION" in caught.value.hint


@pytest.mark.parametrize("url", ["http://[::1/x", "http://h:port/x", "http://h:99999/x"])
def test_what_is_no_address_at_all_is_told(http, url):
    with pytest.raises(InputError, match="is not a URL"):
        connect_search(http, url)


@pytest.mark.parametrize("url", [f"http://me:{KEY}@h/x", f"http://h/x?key={KEY}", f"http://h/x#{KEY}"])
def test_a_key_in_the_address_is_refused_and_not_repeated(http, url):
    with pytest.raises(InputError) as caught:
        connect_search(http, url)
    assert KEY not in said(caught.value)
    assert "--key-env" in caught.value.hint
