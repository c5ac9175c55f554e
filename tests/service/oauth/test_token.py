"""The token endpoint: codes, refresh tokens, clients, and revocation."""

import base64

import pytest


@pytest.fixture
def client_id(visitor):
    return visitor.registers()["client_id"]


@pytest.fixture
def code(visitor, client_id):
    return visitor.code(client_id)


@pytest.mark.clause("A7", "K3", "N12")
def test_a_code_becomes_a_short_lived_access_token_and_a_refresh_token(visitor, client_id, code):
    answer = visitor.redeems(client_id, code)
    tokens = answer.json()
    assert answer.headers["cache-control"] == "no-store"
    assert tokens["token_type"] == "Bearer"
    assert tokens["expires_in"] == 600
    assert tokens["scope"] == "lab:read"
    assert visitor.calls("ping", tokens["access_token"]).status_code == 200


@pytest.mark.clause("N12")
def test_the_lifetime_of_access_tokens_is_a_parameter(visit):
    visitor = visit(lifetime=5)
    token = visitor.signs_in()
    assert token["expires_in"] == 5
    visitor.clock.now += 6
    assert visitor.calls("ping", token["access_token"]).status_code == 401


@pytest.mark.clause("K1")
@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"code_verifier": "w" * 43}, "invalid_grant"),
        ({"code_verifier": "short"}, "invalid_grant"),
        ({"code_verifier": None}, "invalid_request"),
        ({"redirect_uri": "http://127.0.0.1:7778/callback"}, "invalid_grant"),
        ({"code": "made-up"}, "invalid_grant"),
        ({"code": None}, "invalid_request"),
        ({"resource": None}, "invalid_target"),
        ({"resource": "https://mcp.example/mcp"}, "invalid_target"),
        ({"grant_type": "password"}, "unsupported_grant_type"),
        ({"grant_type": None}, "invalid_request"),
    ],
)
def test_a_code_is_bound_to_verifier_address_and_resource(visitor, client_id, code, params, error):
    answer = visitor.redeems(client_id, code, **params)
    assert answer.status_code == 400
    assert answer.json()["error"] == error


@pytest.mark.clause("K2")
def test_a_code_for_one_resource_is_none_for_the_other(visitor, client_id, code):
    assert visitor.redeems(client_id, code, resource=f"{visitor.url}/v1").json()["error"] == "invalid_target"


@pytest.mark.clause("K1")
def test_a_code_of_another_client_is_refused(visitor, code):
    answer = visitor.redeems(visitor.registers()["client_id"], code)
    assert answer.json()["error"] == "invalid_grant"


def test_a_code_holds_for_a_minute(visitor, client_id, code):
    visitor.clock.now += 61
    assert visitor.redeems(client_id, code).json()["error"] == "invalid_grant"


def test_replay_of_a_code_is_refused_and_revokes_what_came_of_it(visitor, client_id, code):
    tokens = visitor.redeems(client_id, code).json()
    assert visitor.redeems(client_id, code).json()["error"] == "invalid_grant"
    assert visitor.calls("ping", tokens["access_token"]).status_code == 401
    assert visitor.renews(client_id, tokens["refresh_token"]).json()["error"] == "invalid_grant"


def test_a_code_that_two_redeem_at_once_is_given_to_one_and_ends_all_that_came_of_it(visitor, client_id, code):
    first = []  # while the second has seen that the code is good, and not used it yet
    visitor.clock.looks.append(lambda: first.append(visitor.redeems(client_id, code)))
    second = visitor.redeems(client_id, code)
    assert [answer.status_code for answer in (*first, second)] == [200, 400]
    assert second.json()["error_description"] == "the code is already used"
    assert visitor.calls("ping", first[0].json()["access_token"]).status_code == 401


@pytest.mark.clause("N13")
def test_refresh_tokens_must_be_rotated_for_public_clients(visitor):
    first = visitor.signs_in()
    second = visitor.renews(first["client_id"], first["refresh_token"]).json()
    assert second["refresh_token"] != first["refresh_token"]
    assert visitor.calls("ping", second["access_token"]).status_code == 200


@pytest.mark.clause("N13")
def test_replay_of_a_refresh_token_kills_the_family(visitor):
    first = visitor.signs_in()
    second = visitor.renews(first["client_id"], first["refresh_token"]).json()
    assert visitor.renews(first["client_id"], first["refresh_token"]).json()["error"] == "invalid_grant"
    assert visitor.renews(first["client_id"], second["refresh_token"]).json()["error"] == "invalid_grant"
    for token in (first, second):
        assert visitor.calls("ping", token["access_token"]).status_code == 401


def test_a_refresh_token_of_another_client_is_refused_and_left_alone(visitor):
    first = visitor.signs_in()
    other = visitor.registers()["client_id"]
    assert visitor.renews(other, first["refresh_token"]).json()["error"] == "invalid_grant"
    assert visitor.renews(first["client_id"], first["refresh_token"]).status_code == 200


def test_a_refresh_token_holds_for_thirty_days_since_it_was_given(visitor):
    first = visitor.signs_in()
    visitor.clock.now += 29 * 86400
    second = visitor.renews(first["client_id"], first["refresh_token"]).json()
    visitor.clock.now += 31 * 86400
    assert visitor.renews(first["client_id"], second["refresh_token"]).json()["error"] == "invalid_grant"


def test_a_refresh_may_narrow_the_scope_for_its_access_token_and_never_widen_it(visitor):
    first = visitor.signs_in(scope="lab:read lab:write")
    second = visitor.renews(first["client_id"], first["refresh_token"], scope="lab:write").json()
    assert second["scope"] == "lab:write"
    third = visitor.renews(first["client_id"], second["refresh_token"]).json()
    assert third["scope"] == "lab:read lab:write"


@pytest.mark.parametrize("scope", ["lab:read lab:write", "service", "made-up"])
def test_a_refresh_for_more_than_was_granted_is_refused(visitor, scope):
    first = visitor.signs_in(scope="lab:read")
    answer = visitor.renews(first["client_id"], first["refresh_token"], scope=scope)
    assert answer.json()["error"] == "invalid_scope"


def test_a_refresh_for_another_resource_is_refused(visitor):
    first = visitor.signs_in()
    answer = visitor.renews(first["client_id"], first["refresh_token"], resource=f"{visitor.url}/v1")
    assert answer.json()["error"] == "invalid_target"


@pytest.mark.clause("K3")
def test_a_client_that_does_not_renew_gets_no_refresh_token(visitor):
    client_id = visitor.registers(grant_types=["authorization_code"])["client_id"]
    assert "refresh_token" not in visitor.redeems(client_id, visitor.code(client_id)).json()


@pytest.mark.clause("A9")
def test_a_confidential_client_authenticates_with_basic(visitor):
    client = visitor.registers(token_endpoint_auth_method="client_secret_basic")
    who = (client["client_id"], client["client_secret"])
    code = visitor.code(client["client_id"])
    assert visitor.redeems(None, code, auth=who).status_code == 200


@pytest.mark.clause("A9")
def test_a_confidential_client_authenticates_in_the_body(visitor):
    client = visitor.registers(token_endpoint_auth_method="client_secret_post")
    code = visitor.code(client["client_id"])
    assert visitor.redeems(client["client_id"], code, client_secret=client["client_secret"]).status_code == 200


def test_a_client_that_fails_basic_gets_401_with_a_challenge(visitor):
    client = visitor.registers(token_endpoint_auth_method="client_secret_basic")
    answer = visitor.redeems(None, "any", auth=(client["client_id"], "wrong"))
    assert answer.status_code == 401
    assert answer.json()["error"] == "invalid_client"
    assert answer.headers["www-authenticate"].startswith("Basic ")


@pytest.mark.parametrize("header", ["Basic !!!", "Basic bm9jb2xvbg==", "Basic /w==", "Bearer abc", "Basic"])
def test_a_malformed_authorization_header_is_invalid_client(visitor, header):
    answer = visitor.post("/oauth/token", data={"grant_type": "x"}, headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer.json()["error"] == "invalid_client"


@pytest.mark.clause("A9")
@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
def test_a_confidential_client_cannot_pass_for_a_public_one(visitor, method):
    client = visitor.registers(token_endpoint_auth_method=method)
    answer = visitor.redeems(client["client_id"], visitor.code(client["client_id"]))
    assert answer.status_code == 401
    assert answer.json()["error"] == "invalid_client"


def test_a_client_authenticates_in_one_way_only(visitor):
    client = visitor.registers(token_endpoint_auth_method="client_secret_basic")
    who = (client["client_id"], client["client_secret"])
    answer = visitor.redeems(None, "any", auth=who, client_secret=client["client_secret"])
    assert answer.json()["error"] == "invalid_request"


def test_credentials_in_a_header_are_encoded_as_in_a_form(visitor):
    client = visitor.registers(token_endpoint_auth_method="client_secret_basic")
    coded = "".join(f"%{ord(char):02X}" for char in client["client_id"])
    given = base64.b64encode(f"{coded}:{client['client_secret']}".encode()).decode()
    code = visitor.code(client["client_id"])
    form = {"grant_type": "authorization_code", "code": code, "code_verifier": "v" * 43, "resource": visitor.context}
    answer = visitor.post("/oauth/token", data=form, headers={"Authorization": f"Basic {given}"})
    assert answer.status_code == 200


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data"])
def test_a_token_request_is_a_form(visitor, kind):
    answer = visitor.post("/oauth/token", content=b"grant_type=x", headers={"Content-Type": kind})
    assert answer.json()["error"] == "invalid_request"


def test_a_token_request_is_small_and_says_each_thing_once(visitor):
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert visitor.post("/oauth/token", content=b"a=" + b"x" * 70_000, headers=kind).status_code == 413
    assert visitor.post("/oauth/token", content=b"a=1&a=2", headers=kind).json()["error"] == "invalid_request"
    assert visitor.post("/oauth/token", content=b"&".join([b"a=1"] * 60), headers=kind).status_code == 400


def test_tokens_and_codes_are_kept_as_hashes_only(visitor, client_id, code):
    tokens = visitor.redeems(client_id, code).json()
    files = [path for path in (visitor.home / "service").iterdir() if path.name.startswith("service.db")]
    for secret in (code, tokens["access_token"], tokens["refresh_token"]):
        assert not any(secret.encode() in path.read_bytes() for path in files)


def test_revoking_a_refresh_token_ends_everything_of_its_grant(visitor):
    token = visitor.signs_in()
    answer = visitor.post("/oauth/revoke", data={"client_id": token["client_id"], "token": token["refresh_token"]})
    assert answer.status_code == 200
    assert visitor.calls("ping", token["access_token"]).status_code == 401


def test_revoking_an_access_token_leaves_the_refresh_token(visitor):
    token = visitor.signs_in()
    visitor.post("/oauth/revoke", data={"client_id": token["client_id"], "token": token["access_token"]})
    assert visitor.calls("ping", token["access_token"]).status_code == 401
    assert visitor.renews(token["client_id"], token["refresh_token"]).status_code == 200


def test_revoking_what_is_no_token_is_no_error(visitor, client_id):
    assert visitor.post("/oauth/revoke", data={"client_id": client_id, "token": "made-up"}).status_code == 200


def test_a_token_of_another_client_is_not_revoked(visitor, client_id):
    token = visitor.signs_in()
    for each in ("access_token", "refresh_token"):
        visitor.post("/oauth/revoke", data={"client_id": client_id, "token": token[each]})
    assert visitor.calls("ping", token["access_token"]).status_code == 200


def test_revocation_wants_to_know_the_client(visitor):
    token = visitor.signs_in()
    assert visitor.post("/oauth/revoke", data={"token": token["access_token"]}).status_code == 401
