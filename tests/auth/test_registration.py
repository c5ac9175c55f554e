"""Who we are: known before, by our document, or registered now, in that order."""

import json

import pytest

from rolloutlab.auth.discovery import ServerMetadata
from rolloutlab.auth.registration import RegisteredClient, obtain_client
from rolloutlab.errors import SignInError
from tests.auth.played import AUTHORITY, ISSUER, SERVER, answered, played

REDIRECT = "http://127.0.0.1:1234/callback"
DOCUMENT = "https://lab.example/client.json"
REGISTER = f"{ISSUER}/register"


def authority(**more):
    return ServerMetadata.model_validate({**AUTHORITY, **more})


def client(world=None, more=None, **how):
    return played(obtain_client(authority(**(more or {})), REDIRECT, server=SERVER, **how), world or {})


@pytest.mark.clause("A13", "I1")
def test_pre_registered_client_information_is_used_first():
    preset = RegisteredClient("known")
    found, asked = client(more={"client_id_metadata_document_supported": True}, preset=preset, document=DOCUMENT)
    assert (found, asked) == (preset, [])


@pytest.mark.parametrize(
    ("supported", "method"),
    [
        (["client_secret_post"], "client_secret_post"),
        (["none", "client_secret_post"], "client_secret_post"),
        (["client_secret_post", "client_secret_basic"], "client_secret_basic"),
        (["client_secret_basic"], "client_secret_basic"),
        (["private_key_jwt"], "client_secret_basic"),
        (None, "client_secret_basic"),
    ],
)
def test_the_secret_of_a_pre_registered_client_is_sent_in_a_form_that_the_server_takes(supported, method):
    more = {"token_endpoint_auth_methods_supported": supported}
    preset = RegisteredClient("known", "s", "client_secret_basic")
    found, _ = client(more=more, preset=preset)
    assert (found.id, found.secret, found.method) == ("known", "s", method)
    assert client(more=more, preset=RegisteredClient("known"))[0].method == "none"


@pytest.mark.clause("A12", "C1", "I2", "I5")
def test_a_client_id_metadata_document_is_used_second_where_the_server_supports_it():
    found, asked = client(more={"client_id_metadata_document_supported": True}, document=DOCUMENT)
    assert (found.id, found.method, asked) == (DOCUMENT, "none", [])


@pytest.mark.clause("A14", "I3")
def test_dynamic_registration_is_used_third():
    found, [asked] = client({REGISTER: {"client_id": "new"}}, document=DOCUMENT)
    assert (found.id, found.method, found.redirect_uri) == ("new", "none", REDIRECT)
    told = json.loads(asked.body)
    assert (asked.method, told["redirect_uris"], told["token_endpoint_auth_method"]) == ("POST", [REDIRECT], "none")
    assert told["grant_types"] == ["authorization_code", "refresh_token"]


@pytest.mark.clause("L3")
def test_dynamic_registration_does_not_carry_a_scope():
    _, [asked] = client({REGISTER: {"client_id": "new"}})
    assert "scope" not in json.loads(asked.body)


@pytest.mark.clause("C2", "I4")
def test_otherwise_the_person_is_asked_for_a_client():
    with pytest.raises(SignInError) as error:
        client(more={"registration_endpoint": None})
    assert error.value.hint == f"%login {SERVER} --client-id ID"


@pytest.mark.parametrize(
    ("supported", "answer", "method"),
    [
        (["client_secret_basic"], {"client_secret": "s"}, "client_secret_basic"),
        (["client_secret_post"], {"client_secret": "s"}, "client_secret_post"),
        (["client_secret_post", "none"], {}, "none"),
        (
            ["client_secret_basic"],
            {"client_secret": "s", "token_endpoint_auth_method": "client_secret_post"},
            "client_secret_post",
        ),
        (["client_secret_basic"], {}, "none"),
    ],
)
def test_a_client_says_who_it_is_as_the_server_wants_it(supported, answer, method):
    more = {"token_endpoint_auth_methods_supported": supported}
    found, _ = client({REGISTER: {"client_id": "new", **answer}}, more)
    assert found.method == method


@pytest.mark.clause("D9")
def test_a_way_that_we_do_not_have_is_refused():
    with pytest.raises(SignInError, match="private_key_jwt"):
        client({REGISTER: {"client_id": "new", "token_endpoint_auth_method": "private_key_jwt"}})


@pytest.mark.parametrize(
    "answer",
    [answered(400, {"error": "invalid_redirect_uri", "error_description": "s3cret"}), answered(201, {}), answered(500)],
)
def test_a_refused_registration_says_why_without_what_else_the_server_said(answer):
    with pytest.raises(SignInError) as error:
        client({REGISTER: answer})
    assert "did not register the client" in str(error.value)
    assert "s3cret" not in str(error.value)


@pytest.mark.clause("J2")
def test_a_client_is_used_for_the_address_that_it_was_registered_with_until_it_expires():
    one = RegisteredClient("a", redirect_uri=REDIRECT, expires_at=10)
    assert one.serves(REDIRECT, now=9)
    assert not one.serves("http://127.0.0.1:99/callback", now=9)
    assert not one.serves(REDIRECT, now=11)


def test_nothing_secret_is_in_a_repr():
    assert "s3cret" not in repr(RegisteredClient("a", "s3cret"))
