"""Dynamic client registration (RFC 7591)."""

import pytest


def test_a_public_client_gets_an_id_and_no_secret(visitor):
    told = visitor.registers()
    assert told["client_id"]
    assert "client_secret" not in told
    assert told["redirect_uris"] == ["http://127.0.0.1:7777/callback"]


def test_a_client_that_does_not_say_how_it_authenticates_gets_a_secret_for_basic(visitor):
    told = visitor.registers(token_endpoint_auth_method=None)
    assert told["token_endpoint_auth_method"] == "client_secret_basic"
    assert told["client_secret_expires_at"] == 0


def test_a_secret_is_kept_as_a_hash_only(visitor):
    secret = visitor.registers(token_endpoint_auth_method="client_secret_post")["client_secret"]
    files = [path for path in (visitor.home / "service").iterdir() if path.name.startswith("service.db")]
    assert files
    assert not any(secret.encode() in path.read_bytes() for path in files)


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
    "said",
    [
        {"grant_types": ["implicit"]},
        {"grant_types": ["refresh_token"]},
        {"grant_types": "authorization_code"},
        {"response_types": ["token"]},
        {"token_endpoint_auth_method": "private_key_jwt"},
        {"client_name": 7},
    ],
)
def test_what_is_not_supported_is_refused_as_invalid_client_metadata(visitor, said):
    answer = visitor.post("/oauth/register", json={"redirect_uris": ["https://a.example/c"], **said})
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


def test_clients_that_nobody_let_in_are_forgotten_for_newer_ones(visitor, told):
    first, in_use = visitor.registers()["client_id"], visitor.signs_in()["client_id"]
    for _ in range(102):
        visitor.registers()
    assert visitor.asks(first).status_code == 400
    assert visitor.asks(in_use).status_code == 200


def test_a_registered_scope_does_not_stand_in_the_way_of_a_later_one(visitor):
    client_id = visitor.registers(scope="lab:read")["client_id"]
    assert visitor.asks(client_id, scope="lab:read lab:write").status_code == 200
