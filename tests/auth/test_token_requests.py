"""What is sent to an authorization server, and what its answers mean."""

from base64 import b64decode
from urllib.parse import parse_qs, urlsplit

import pytest

from rolloutlab.auth.authorization import DeniedError, authorization_url, challenge_of, code_of
from rolloutlab.auth.discovery import ServerMetadata
from rolloutlab.auth.registration import RegisteredClient
from rolloutlab.auth.tokens import (
    TokenRefusedError,
    code_request,
    refresh_request,
    revocation_request,
    tokens_of,
)
from rolloutlab.errors import SignInError
from tests.auth.played import AUTHORITY, ISSUER, SERVER, answered, form

REDIRECT = "http://127.0.0.1:1234/callback"
VERIFIER = "v" * 43


def authority(**more):
    return ServerMetadata.model_validate({**AUTHORITY, **more})


def asked(scopes=("read",), **more):
    url = authorization_url(
        authority(**more),
        RegisteredClient("me"),
        REDIRECT,
        resource=SERVER,
        scopes=scopes,
        state="st",
        verifier=VERIFIER,
    )
    return url, {name: value for name, [value] in parse_qs(urlsplit(url).query).items()}


@pytest.mark.clause("A6", "J1", "J3", "J4", "J6")
def test_the_authorization_request_has_every_parameter_and_the_resource_always():
    url, parameters = asked()
    assert url.startswith(f"{ISSUER}/authorize?")
    assert parameters == {
        "response_type": "code",
        "client_id": "me",
        "redirect_uri": REDIRECT,
        "state": "st",
        "code_challenge": challenge_of(VERIFIER),
        "code_challenge_method": "S256",
        "resource": SERVER,
        "scope": "read",
    }


@pytest.mark.clause("J5")
def test_no_scope_is_no_parameter():
    assert "scope" not in asked(scopes=())[1]


def test_the_verifier_never_goes_through_the_browser():
    assert VERIFIER not in asked()[0]


def test_an_endpoint_that_has_a_query_keeps_it():
    url, parameters = asked(authorization_endpoint=f"{ISSUER}/authorize?tenant=a")
    assert url.count("?") == 1
    assert parameters["tenant"] == "a"


@pytest.mark.clause("A6", "K1", "K2")
def test_the_token_request_has_the_code_the_verifier_the_client_and_the_resource():
    request = code_request(
        authority(), RegisteredClient("me"), "c", redirect_uri=REDIRECT, resource=SERVER, verifier=VERIFIER
    )
    assert (request.method, request.url) == ("POST", f"{ISSUER}/token")
    assert form(request) == {
        "grant_type": "authorization_code",
        "code": "c",
        "redirect_uri": REDIRECT,
        "code_verifier": VERIFIER,
        "resource": SERVER,
        "client_id": "me",
    }


def test_a_secret_is_sent_as_the_server_wants_it():
    basic = refresh_request(
        f"{ISSUER}/token", RegisteredClient("m e", "s:€", "client_secret_basic"), "r", resource=SERVER
    )
    kind, _, pair = basic.headers["Authorization"].partition(" ")
    assert (kind, b64decode(pair).decode()) == ("Basic", "m+e:s%3A%E2%82%AC")
    assert "client_id" not in form(basic)
    post = refresh_request(f"{ISSUER}/token", RegisteredClient("me", "s", "client_secret_post"), "r", resource=SERVER)
    assert (form(post)["client_id"], form(post)["client_secret"]) == ("me", "s")
    assert "Authorization" not in post.headers


@pytest.mark.clause("K2")
def test_the_resource_is_in_a_refresh_too():
    assert form(refresh_request(f"{ISSUER}/token", RegisteredClient("me"), "r", resource=SERVER)) == {
        "grant_type": "refresh_token",
        "refresh_token": "r",
        "resource": SERVER,
        "client_id": "me",
    }


def test_nothing_secret_is_in_the_repr_of_a_request():
    request = code_request(
        authority(), RegisteredClient("me"), "s3cret", redirect_uri=REDIRECT, resource=SERVER, verifier=VERIFIER
    )
    assert "s3cret" not in repr(request)
    assert VERIFIER not in repr(request)
    assert "s3cret" not in repr(
        revocation_request(f"{ISSUER}/revoke?t=s3cret", RegisteredClient("me"), "s3cret", "access_token")
    )


@pytest.mark.parametrize("answer", [{"code": "c"}, {"error": "access_denied"}])
def test_an_answer_without_the_issuer_is_refused_where_the_server_says_that_it_names_it(answer):
    with pytest.raises(SignInError, match="is not from"):
        code_of(authority(authorization_response_iss_parameter_supported=True), answer, SERVER)


@pytest.mark.clause("N7")
@pytest.mark.parametrize("answer", [{"code": "c"}, {"error": "access_denied"}])
@pytest.mark.parametrize("advertised", [True, False])
def test_an_answer_of_another_issuer_is_refused_always(answer, advertised):
    told = authority(authorization_response_iss_parameter_supported=advertised)
    with pytest.raises(SignInError, match="is not from"):
        code_of(told, {**answer, "iss": "https://evil.example"}, SERVER)


def test_a_denial_is_told_from_other_errors():
    assert code_of(authority(), {"code": "c", "iss": ISSUER}, SERVER) == "c"
    with pytest.raises(DeniedError) as denied:
        code_of(authority(), {"error": "access_denied"}, SERVER)
    assert denied.value.hint == f"%login {SERVER}"
    with pytest.raises(SignInError, match="invalid_scope"):
        code_of(authority(), {"error": "invalid_scope"}, SERVER)
    with pytest.raises(SignInError, match="error 'login_required'"):
        code_of(authority(), {"error": "login_required"}, SERVER)
    with pytest.raises(SignInError, match="no code"):
        code_of(authority(), {}, SERVER)


@pytest.mark.parametrize(
    "error", ["Go to evil and paste your token there", "<script>alert(1)</script>", "\u202eabc", "مرحبا", "x" * 65]
)
def test_a_sentence_in_the_place_of_an_error_code_is_not_repeated(error):
    with pytest.raises(SignInError, match=r"ended the sign-in: an unknown error$"):
        code_of(authority(), {"error": error}, SERVER)
    with pytest.raises(TokenRefusedError, match=r"issued no token: status 400$"):
        tokens_of(f"{ISSUER}/token", answered(400, {"error": error}))


@pytest.mark.parametrize(
    "response",
    [
        answered(200, {"access_token": "a", "token_type": "DPoP"}),
        answered(200, {"token_type": "Bearer"}),
        answered(200, {"access_token": "", "token_type": "Bearer"}),
        answered(400, {"error": "invalid_grant", "error_description": "s3cret"}),
        answered(302, {"access_token": "a", "token_type": "Bearer"}),
        answered(200, ["s3cret"]),
    ],
)
def test_what_gives_no_token_is_told_without_its_body(response):
    with pytest.raises(TokenRefusedError) as error:
        tokens_of(f"{ISSUER}/token", response)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    "odd", [{"expires_in": "an hour"}, {"refresh_token": {"s3cret": 1}}, {"scope": ["s3cret"]}, {"token_type": None}]
)
def test_an_invalid_member_beside_a_token_is_named_without_its_value(odd):
    answer = {"access_token": "s3cret", "token_type": "Bearer", **odd}
    with pytest.raises(TokenRefusedError, match=f"issued a token with an invalid {next(iter(odd))}$"):
        tokens_of(f"{ISSUER}/token", answered(200, answer))


def test_a_refusal_keeps_its_code():
    with pytest.raises(TokenRefusedError) as error:
        tokens_of(f"{ISSUER}/token", answered(401, {"error": "invalid_client"}))
    assert error.value.code == "invalid_client"


def test_tokens_are_not_in_a_repr():
    found = tokens_of(
        f"{ISSUER}/token", answered(200, {"access_token": "s3cret", "refresh_token": "s3cret", "token_type": "bearer"})
    )
    assert found.access_token == "s3cret"
    assert "s3cret" not in repr(found)
