"""Authorization requests: what is shown on a page, what goes back to the client, and what the owner is asked."""

import pytest

CALLBACK = "http://127.0.0.1:7777/callback"


@pytest.fixture
def client_id(visitor):
    return visitor.registers()["client_id"]


def test_a_good_request_shows_the_page_that_asks_the_owner(visitor, client_id):
    page = visitor.asks(client_id)
    assert page.status_code == 200
    assert "127.0.0.1:7777" in page.text
    assert f"{visitor.url}/context" in page.text
    assert "read and search every conversation" in page.text


@pytest.mark.clause("J2", "N11")
@pytest.mark.parametrize(
    "uri",
    [
        "http://127.0.0.1:7778/callback",
        "http://127.0.0.1/callback",
        "http://localhost:7777/callback",
        "http://127.0.0.1:7777/callback/",
        "http://127.0.0.1:7777/callback?a=1",
        "http://127.0.0.1:7777/Callback",
        "https://127.0.0.1:7777/callback",
        "http://127.0.0.1:7777/x/../callback",
        "HTTP://127.0.0.1:7777/callback",
        None,
    ],
)
def test_redirect_uris_must_be_compared_exactly_port_included(visitor, client_id, uri):
    answer = visitor.asks(client_id, redirect_uri=uri)
    assert answer.status_code == 400
    assert "location" not in answer.headers


@pytest.mark.clause("J1", "O1")
@pytest.mark.parametrize("who", ["nobody", None, "http://a.example/client.json"])
def test_an_unknown_client_is_told_on_a_page_and_nowhere_else(visitor, who):
    answer = visitor.asks(who)
    assert answer.status_code == 400
    assert "location" not in answer.headers
    assert "cannot continue" in answer.text


@pytest.mark.clause("O1")
def test_two_redirect_uris_in_one_request_are_none(visitor, client_id):
    answer = visitor.get(
        f"/oauth/authorize?client_id={client_id}&redirect_uri={CALLBACK}&redirect_uri=https://a.example/c"
    )
    assert answer.status_code == 400
    assert "location" not in answer.headers


@pytest.mark.clause("J3")
@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"code_challenge": None, "code_challenge_method": None}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
    ],
    ids=["missing", "method missing", "plain", "malformed"],
)
def test_pkce_with_s256_must_be_used(visitor, client_id, redirected, params, error):
    answer = redirected(visitor.asks(client_id, **params))
    assert answer["error"] == error
    assert "code_challenge" in answer["error_description"]


@pytest.mark.clause("E1", "E4", "J4", "O1")
@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"response_type": None}, "invalid_request"),
        ({"response_mode": "fragment"}, "invalid_request"),
        ({"request": "x"}, "request_not_supported"),
        ({"scope": "lab:read lab:everything"}, "invalid_scope"),
        ({"scope": "service"}, "invalid_scope"),
        ({"resource": None}, "invalid_target"),
        ({"resource": "https://mcp.example/mcp"}, "invalid_target"),
        ({"resource": "context"}, "invalid_target"),
        ({"resource": "http://[::1/context"}, "invalid_target"),
    ],
)
def test_a_malformed_request_is_refused_at_the_clients_address(visitor, client_id, redirected, params, error):
    assert redirected(visitor.asks(client_id, **params))["error"] == error


@pytest.mark.clause("E5")
def test_a_resource_with_a_fragment_is_refused(visitor, client_id, redirected):
    assert redirected(visitor.asks(client_id, resource=f"{visitor.context}#part"))["error"] == "invalid_target"


@pytest.mark.clause("E2")
def test_a_resource_in_upper_case_or_with_a_slash_should_be_accepted(visitor, client_id):
    upper = visitor.context.replace("http", "HTTP")
    assert visitor.asks(client_id, resource=upper).status_code == 200
    assert visitor.asks(client_id, resource=f"{visitor.context}/").status_code == 200


def test_a_parameter_that_is_there_twice_is_refused(visitor, client_id, redirected):
    once = visitor.asks(client_id).request.url
    assert redirected(visitor.browser.get(f"{once}&scope=lab:write"))["error"] == "invalid_request"


def test_errors_carry_iss_and_state(visitor, client_id, redirected):
    answer = redirected(visitor.asks(client_id, scope="nothing", state="a b&c=d"))
    assert answer["iss"] == visitor.url
    assert answer["state"] == "a b&c=d"


def test_an_error_description_holds_no_character_that_it_may_not(visitor, client_id, redirected):
    description = redirected(visitor.asks(client_id, scope='"\\é\n<b>'))["error_description"]
    assert description.isascii()
    assert description.isprintable()
    assert not {'"', "\\"} & set(description)


@pytest.mark.clause("J5")
def test_a_request_without_a_scope_asks_for_what_basic_use_needs(visitor, client_id):
    code = visitor.code(client_id, scope=None)
    assert visitor.redeems(client_id, code).json()["scope"] == "lab:read"


def test_a_redirect_uri_keeps_its_query(visitor):
    uri = "https://hub.example/callback?user=jo"
    client_id = visitor.registers(redirect_uris=[uri])["client_id"]
    answer = visitor.decides(visitor.asks(client_id, redirect_uri=uri))
    assert answer.headers["location"].startswith(f"{uri}&code=")


def test_more_parameters_than_anybody_needs_are_told_on_a_page(visitor, client_id):
    many = {f"extra{i}": "1" for i in range(60)}
    assert visitor.asks(client_id, **many).status_code == 400


def test_the_longest_request_that_is_taken_can_be_answered(visitor, client_id, redirected):
    state = "\x01" * 4900  # JSON writes it at its longest
    assert redirected(visitor.decides(visitor.asks(client_id, state=state)))["state"] == state
    assert visitor.asks(client_id, state="\x01" * 5500).status_code == 400
