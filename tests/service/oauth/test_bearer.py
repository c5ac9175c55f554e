"""The protected resources: which tokens they take, and how they ask for another."""

import pytest

KEY = "of-the-folder"


@pytest.fixture
def ask(visitor):
    """Asks either resource with some headers."""

    def send(path: str, headers: dict[str, str] | None = None, query: str = ""):
        if path == "/v1":
            return visitor.get(f"/v1/models{query}", headers=headers)
        return visitor.post(f"/context{query}", json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=headers)

    return send


BOTH = pytest.mark.parametrize(("path", "scope"), [("/context", "lab:read"), ("/v1", "service")])


@pytest.mark.clause("A5", "B4", "F3", "F4", "G5", "O2")
@BOTH
def test_without_a_token_401_names_metadata_and_scope(visitor, ask, challenges, path, scope):
    answer = ask(path)
    assert answer.status_code == 401
    said = challenges(answer)
    assert said == {"scope": scope, "resource_metadata": f"{visitor.url}/.well-known/oauth-protected-resource{path}"}
    assert visitor.browser.get(said["resource_metadata"]).json()["resource"] == f"{visitor.url}{path}"


@pytest.mark.clause("A5", "N2", "N3")
@BOTH
@pytest.mark.parametrize("header", ["Bearer made-up", "bearer made-up"])
def test_an_invalid_token_gets_401_and_invalid_token(ask, challenges, path, scope, header):
    answer = ask(path, {"Authorization": header})
    assert answer.status_code == 401
    assert challenges(answer)["error"] == "invalid_token"
    assert challenges(answer)["scope"] == scope


@pytest.mark.clause("F3")
@BOTH
@pytest.mark.parametrize("header", ["Basic YTpi", "Bearer", "made-up"])
def test_other_credentials_are_none(ask, challenges, path, scope, header):
    answer = ask(path, {"Authorization": header})
    assert answer.status_code == 401
    assert "error" not in challenges(answer)


@pytest.mark.clause("N3", "O2")
def test_an_expired_token_gets_401(visitor, challenges):
    token = visitor.signs_in()["access_token"]
    visitor.clock.now += 601
    answer = visitor.calls("ping", token)
    assert answer.status_code == 401
    assert challenges(answer)["error"] == "invalid_token"


@pytest.mark.clause("N2", "N4")
def test_a_token_of_one_resource_must_be_refused_at_the_other(visitor, challenges):
    context = visitor.signs_in()["access_token"]
    api = visitor.signs_in(resource=f"{visitor.url}/v1", scope="service")["access_token"]
    assert visitor.calls("ping", context).status_code == 200
    assert visitor.models(api).status_code == 200
    for answer in (visitor.calls("ping", api), visitor.models(context)):
        assert answer.status_code == 401
        assert challenges(answer)["error"] == "invalid_token"


@pytest.mark.clause("N4")
def test_the_folders_token_is_good_for_the_api_and_not_for_the_context_server(visitor):
    assert visitor.models(KEY).status_code == 200
    assert visitor.calls("ping", KEY).status_code == 401


@pytest.mark.clause("N1")
def test_a_refresh_token_is_no_access_token(visitor):
    assert visitor.calls("ping", visitor.signs_in()["refresh_token"]).status_code == 401


@pytest.mark.clause("F2")
@BOTH
def test_a_token_in_a_query_string_is_refused(visitor, ask, path, scope):
    token = visitor.signs_in(resource=f"{visitor.url}{path}", scope=scope)["access_token"]
    assert ask(path, query=f"?access_token={token}").status_code == 401
    assert ask(path, {"Authorization": f"Bearer {token}"}, f"?access_token={token}").status_code == 400


@pytest.mark.clause("F1")
def test_every_request_needs_its_token_whatever_its_method(visitor):
    for method in ("GET", "DELETE", "PUT", "OPTIONS"):
        assert visitor.browser.request(method, visitor.context).status_code == 401


def test_health_needs_no_token(visitor):
    assert visitor.get("/v1/health").status_code == 200


def test_an_answer_that_asks_for_a_token_is_kept_by_no_cache(ask):
    assert ask("/context").headers["cache-control"] == "no-store"
