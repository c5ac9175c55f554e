"""Dynamic client registration (RFC 7591)."""

import pytest


@pytest.mark.clause("A9", "A14")
def test_a_public_client_gets_an_id_and_no_secret(visitor):
    registration = visitor.registers()
    assert registration["client_id"]
    assert "client_secret" not in registration
    assert registration["redirect_uris"] == ["http://127.0.0.1:7777/callback"]


@pytest.mark.clause("I3")
def test_a_client_that_does_not_say_how_it_authenticates_gets_a_secret_for_basic(visitor):
    registration = visitor.registers(token_endpoint_auth_method=None)
    assert registration["token_endpoint_auth_method"] == "client_secret_basic"
    assert registration["client_secret_expires_at"] == 0


def test_nothing_is_kept_of_a_client_not_even_a_hash_of_its_secret(visitor):
    def kept() -> int:
        return sum(len(path.read_bytes()) for path in (visitor.home / "service").iterdir())

    before = kept()
    visitor.registers(token_endpoint_auth_method="client_secret_post")
    assert kept() == before


def test_clients_that_say_the_same_are_two_with_two_secrets(visitor):
    one, other = (visitor.registers(token_endpoint_auth_method="client_secret_basic") for _ in range(2))
    assert one["client_id"] != other["client_id"]
    assert one["client_secret"] != other["client_secret"]


def test_an_id_that_was_changed_is_nobodys(visitor):
    client_id = visitor.registers()["client_id"]
    text, mark = client_id.split(".")
    other = visitor.registers(redirect_uris=["https://evil.example/c"])["client_id"].split(".")[0]
    for forged in (f"{other}.{mark}", f"{text}A.{mark}", text, f"{text}.", f"{text}.{mark}A"):
        assert visitor.asks(forged).status_code == 400
    assert visitor.asks(client_id).status_code == 200


@pytest.mark.clause("N10")
@pytest.mark.parametrize(
    "uri",
    [
        "http://example.org/callback",
        "http://127.0.0.1.example.org/callback",
        "http://10.0.0.7/callback",
        "https://example.org/callback#part",
        "https://someone@example.org/callback",
        "https://example.org/a b",
        "https://example.org\r\nx: y/callback",
        "https://exa;mple.org/callback",
        "javascript:alert(1)",
        "myapp://callback",
        "/callback",
        "https:///callback",
        "https://example.org:port/callback",
        7,
    ],
)
def test_redirect_uris_must_be_https_or_on_the_browsers_machine(visitor, uri):
    answer = visitor.post("/oauth/register", json={"redirect_uris": [uri], "token_endpoint_auth_method": "none"})
    assert answer.status_code == 400
    assert answer.json()["error"] == "invalid_redirect_uri"


@pytest.mark.parametrize(
    "uri", ["https://hub.example/user/jo/rolloutlab/callback", "http://localhost:1/", "http://[::1]:8/c"]
)
def test_redirect_uris_may_be_https_or_on_the_browsers_machine(visitor, uri):
    assert visitor.registers(redirect_uris=[uri])["redirect_uris"] == [uri]


@pytest.mark.parametrize(
    "metadata",
    [
        {"grant_types": ["implicit"]},
        {"grant_types": ["refresh_token"]},
        {"grant_types": "authorization_code"},
        {"response_types": ["token"]},
        {"token_endpoint_auth_method": "private_key_jwt"},
        {"client_name": 7},
    ],
)
def test_what_is_not_supported_is_refused_as_invalid_client_metadata(visitor, metadata):
    answer = visitor.post("/oauth/register", json={"redirect_uris": ["https://a.example/c"], **metadata})
    assert answer.status_code == 400
    assert answer.json()["error"] == "invalid_client_metadata"


@pytest.mark.parametrize("redirects", [None, [], "https://a.example/c", ["https://a.example/c"] * 51])
def test_a_client_has_redirect_uris_and_not_too_many(visitor, redirects):
    answer = visitor.post("/oauth/register", json={"redirect_uris": redirects})
    assert answer.json()["error"] == "invalid_redirect_uri"


@pytest.mark.parametrize("body", [b"{", b"[]", b"7", b'{"a": NaN}', b"\xff"])
def test_a_registration_that_is_no_json_object_is_refused(visitor, body):
    answer = visitor.post("/oauth/register", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400


def test_a_page_of_another_origin_cannot_register_with_a_form(visitor):
    body = b'{"redirect_uris": ["https://a.example/c"]}'
    answer = visitor.post("/oauth/register", content=body, headers={"Content-Type": "text/plain"})
    assert answer.status_code == 400


def test_a_registration_is_small(visitor):
    body = {"redirect_uris": ["https://a.example/c"], "client_name": "x" * 70_000}
    assert visitor.post("/oauth/register", json=body).status_code == 413


def test_no_client_is_forgotten_however_many_others_register(visitor):
    first = visitor.registers()["client_id"]
    for _ in range(300):
        visitor.registers()
    assert visitor.asks(first).status_code == 200


def test_a_client_whose_addresses_do_not_fit_into_an_id_is_refused(visitor):
    uris = [f"https://a.example/{'x' * 1000}/{i}" for i in range(4)]
    answer = visitor.post("/oauth/register", json={"redirect_uris": uris})
    assert answer.status_code == 400
    assert answer.json()["error"] == "invalid_redirect_uri"


@pytest.mark.clause("N20")
def test_a_registered_scope_does_not_stand_in_the_way_of_a_later_one(visitor):
    client_id = visitor.registers(scope="lab:read")["client_id"]
    assert visitor.asks(client_id, scope="lab:read lab:write").status_code == 200
