"""Discovery in the order of the specification, and every reason not to go on."""

import pytest

from rolloutlab.auth.challenges import Challenge
from rolloutlab.auth.discovery import authority_addresses, discover, resource_metadata_addresses
from rolloutlab.errors import SignInError
from tests.auth.played import (
    AT_ISSUER,
    AT_RESOURCE,
    AT_ROOT,
    AUTHORITY,
    ISSUER,
    RESOURCE,
    SERVER,
    USUAL,
    answered,
    played,
)


def found(world, challenge=None, **more):
    return played(discover(SERVER, challenge, **more), world)


def refused(world, challenge=None, **more):
    with pytest.raises(SignInError) as error:
        found(world, challenge, **more)
    return str(error.value)


@pytest.mark.clause("A8", "A11", "M5")
def test_clients_must_use_protected_resource_metadata_to_discover_the_authorization_server():
    result, asked = found(USUAL)
    assert (result.resource, result.issuer, result.authority.token_endpoint) == (SERVER, ISSUER, f"{ISSUER}/token")
    assert [request.url for request in asked] == [AT_RESOURCE, AT_ISSUER]
    assert {request.method for request in asked} == {"GET"}


@pytest.mark.clause("G1", "G6")
def test_the_address_that_a_challenge_names_must_be_used():
    there = "https://tools.example/described"
    _, asked = found({there: RESOURCE, AT_ISSUER: AUTHORITY}, Challenge("bearer", {"resource_metadata": there}))
    assert [request.url for request in asked] == [there, AT_ISSUER]


@pytest.mark.clause("G2", "G6")
def test_without_it_the_address_at_the_path_is_tried_then_that_at_the_root():
    result, asked = found({AT_ROOT: {**RESOURCE, "resource": "https://tools.example"}, AT_ISSUER: AUTHORITY})
    assert [request.url for request in asked] == [AT_RESOURCE, AT_ROOT, AT_ISSUER]
    assert result.resource == "https://tools.example"


@pytest.mark.clause("G3")
def test_a_server_at_the_root_has_one_address_only():
    assert resource_metadata_addresses("https://tools.example", None) == [AT_ROOT]


@pytest.mark.clause("G4", "J4")
def test_if_both_fail_the_client_aborts_or_uses_what_was_configured():
    assert "does not name an authorization server" in refused({AT_ISSUER: AUTHORITY})
    result, _ = found({AT_ISSUER: AUTHORITY}, issuer=ISSUER)
    assert (result.resource, result.scopes) == (SERVER, None)


@pytest.mark.parametrize(
    ("server", "hint"),
    [
        (SERVER, f"%login {SERVER} --issuer https://login.example"),
        ("https://train.example/v1", "%connect https://train.example --key-env ROLLOUTLAB_API_KEY"),
    ],
)
def test_a_server_that_nobody_signs_in_for_is_told_what_to_type_and_a_service_is_given_a_key(server, hint):
    with pytest.raises(SignInError) as error:
        played(discover(server, None), {})
    assert error.value.hint == hint


@pytest.mark.clause("B1")
def test_authorization_servers_must_be_present():
    assert "authorization_servers" in refused({**USUAL, AT_RESOURCE: {"resource": SERVER, "authorization_servers": []}})


NOT_FOUND = {"error": "not_found"}


def test_a_document_of_another_kind_at_a_well_known_address_is_passed_over():
    at_root = {**USUAL, AT_RESOURCE: NOT_FOUND, AT_ROOT: RESOURCE}
    assert found(at_root)[0].resource == SERVER
    openid = AT_ISSUER.replace("oauth-authorization-server", "openid-configuration")
    assert found({**USUAL, AT_ISSUER: NOT_FOUND, openid: AUTHORITY})[0].issuer == ISSUER


def test_documents_of_another_kind_alone_are_named_by_what_they_lack():
    assert "invalid resource in the metadata" in refused({**USUAL, AT_RESOURCE: NOT_FOUND, AT_ROOT: NOT_FOUND})
    assert "invalid issuer in the metadata" in refused({**USUAL, AT_ISSUER: NOT_FOUND})


@pytest.mark.clause("H1", "H2", "H3")
def test_an_issuer_with_a_path_is_looked_for_at_three_addresses_in_order():
    assert authority_addresses("https://login.example/tenant") == [
        "https://login.example/.well-known/oauth-authorization-server/tenant",
        "https://login.example/.well-known/openid-configuration/tenant",
        "https://login.example/tenant/.well-known/openid-configuration",
    ]


@pytest.mark.clause("H4", "H5")
def test_an_issuer_without_a_path_is_looked_for_at_two_addresses_in_order():
    assert authority_addresses(ISSUER) == [AT_ISSUER, f"{ISSUER}/.well-known/openid-configuration"]


@pytest.mark.clause("H7")
def test_clients_must_support_both_metadata_mechanisms():
    result, asked = found({AT_RESOURCE: RESOURCE, f"{ISSUER}/.well-known/openid-configuration": AUTHORITY})
    assert len(asked) == 3
    assert result.authority.issuer == ISSUER


@pytest.mark.clause("H7", "M5")
def test_without_metadata_nothing_is_guessed():
    assert "has no metadata of an authorization server" in refused({AT_RESOURCE: RESOURCE})


@pytest.mark.clause("C4")
@pytest.mark.parametrize("methods", [None, [], ["plain"]])
def test_a_server_that_does_not_say_that_it_supports_pkce_must_be_refused(methods):
    world = {**USUAL, AT_ISSUER: {**AUTHORITY, "code_challenge_methods_supported": methods}}
    assert "S256" in refused(world)
    result, _ = found(world, without_pkce=True)
    assert result.issuer == ISSUER


@pytest.mark.parametrize("other", ["https://evil.example", f"{ISSUER}/", "HTTPS://login.example"])
def test_the_issuer_of_the_metadata_must_be_the_very_issuer_that_was_asked(other):
    assert "another authorization server" in refused({**USUAL, AT_ISSUER: {**AUTHORITY, "issuer": other}})


@pytest.mark.clause("B4")
@pytest.mark.parametrize(
    "other",
    [
        "https://evil.example/mcp",
        "https://tools.example/other",
        "https://tools.example/mcp/deeper",
        "https://tools.example",
    ],
)
@pytest.mark.parametrize("challenge", [None, Challenge("bearer", {"resource_metadata": AT_RESOURCE})])
def test_metadata_of_another_resource_is_refused(other, challenge):
    assert "another resource" in refused({**USUAL, AT_RESOURCE: {**RESOURCE, "resource": other}}, challenge)


@pytest.mark.parametrize("other", ["https://evil.example", "https://tools.example/other"])
def test_what_is_said_at_the_root_holds_for_what_lies_below_it_and_for_nothing_else(other):
    challenge = Challenge("bearer", {"resource_metadata": AT_ROOT})
    result, _ = found({AT_ROOT: {**RESOURCE, "resource": "https://tools.example"}, AT_ISSUER: AUTHORITY}, challenge)
    assert result.resource == "https://tools.example"
    assert "another resource" in refused({AT_ROOT: {**RESOURCE, "resource": other}}, challenge)


@pytest.mark.parametrize("at", [AT_RESOURCE, AT_ROOT])
@pytest.mark.parametrize(
    "resource", ["", f"{SERVER}?x=1", "https://u:p@tools.example/mcp", f"\x1b{SERVER}", f" {SERVER}", f"{SERVER}\n"]
)
def test_a_resource_that_is_no_address_is_the_documents_mistake(at, resource):
    assert "has metadata of a resource that is not a URL" in refused({at: {**RESOURCE, "resource": resource}})


def test_the_host_of_the_page_that_opens_is_shown_where_it_is_not_the_issuers():
    assert found(USUAL)[0].page == "login.example"
    elsewhere = {**AUTHORITY, "authorization_endpoint": "https://bank.example/authorize"}
    assert found({**USUAL, AT_ISSUER: elsewhere})[0].page == "login.example (the page is at bank.example)"


@pytest.mark.clause("N9")
@pytest.mark.parametrize(
    "member", ["authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint"]
)
@pytest.mark.parametrize(
    "url", ["http://login.example/x", "http://127.0.0.1/x", "javascript:alert(1)", "file:///etc/passwd"]
)
def test_every_endpoint_must_be_encrypted(member, url):
    assert "names a" in refused({**USUAL, AT_ISSUER: {**AUTHORITY, member: url}})


def test_a_described_issuer_without_https_is_not_even_asked():
    world = {AT_RESOURCE: {**RESOURCE, "authorization_servers": ["http://login.example"]}}
    assert "without https" in refused(world)


def test_a_challenge_that_leads_elsewhere_without_https_is_not_followed():
    challenge = Challenge("bearer", {"resource_metadata": "http://169.254.169.254/latest"})
    assert "without https" in refused(USUAL, challenge)


def test_a_redirect_is_no_description():
    assert "does not name an authorization server" in refused(
        {AT_RESOURCE: answered(302, location="https://evil.example/")}
    )


def test_hostile_text_of_a_server_is_told_without_its_control_characters():
    said = refused({**USUAL, AT_ISSUER: {**AUTHORITY, "issuer": "https://x/\x1b[31m\u202e"}})
    assert said.isprintable()
    assert "\u202e" not in said


@pytest.mark.clause("B2")
def test_of_several_authorization_servers_one_is_selected():
    several = {**RESOURCE, "authorization_servers": [ISSUER, "https://other.example"]}
    result, asked = found({**USUAL, AT_RESOURCE: several})
    assert result.issuer == ISSUER
    assert len(asked) == 2


OTHER = "https://other.example"
AT_OTHER = f"{OTHER}/.well-known/oauth-authorization-server"
OF_OTHER = {
    name: value.replace(ISSUER, OTHER) if isinstance(value, str) else value for name, value in AUTHORITY.items()
}


@pytest.mark.clause("B2")
@pytest.mark.parametrize(
    "first",
    [
        None,
        {**AUTHORITY, "issuer": "https://evil.example"},
        {**AUTHORITY, "token_endpoint": "http://login.example/token"},
        {"issuer": ISSUER},
    ],
)
def test_the_next_authorization_server_is_tried_where_the_metadata_of_one_cannot_be_used(first):
    several = {**RESOURCE, "authorization_servers": ["http://plain.example", ISSUER, OTHER]}
    world = {AT_RESOURCE: several, AT_OTHER: OF_OTHER, **({AT_ISSUER: first} if first else {})}
    result, asked = found(world)
    assert (result.issuer, result.authority.token_endpoint) == (OTHER, f"{OTHER}/token")
    assert not [request for request in asked if "plain.example" in request.url]


@pytest.mark.clause("B2")
def test_where_none_can_be_used_each_says_why_and_not_more_than_five_are_asked():
    several = [f"https://{i}.example" for i in range(9)]
    said = refused({**USUAL, AT_RESOURCE: {**RESOURCE, "authorization_servers": several}})
    assert "names 5 authorization servers, none of them usable: https://0.example has no metadata" in said
    assert "5.example" not in said


@pytest.mark.clause("B2")
def test_an_authorization_server_without_proofs_of_the_code_is_not_passed_over_for_another():
    several = {**RESOURCE, "authorization_servers": [ISSUER, OTHER]}
    weak = {name: value for name, value in AUTHORITY.items() if name != "code_challenge_methods_supported"}
    assert "S256" in refused({AT_RESOURCE: several, AT_ISSUER: weak, AT_OTHER: OF_OTHER})


@pytest.mark.clause("E3")
def test_a_slash_that_the_resource_itself_names_is_kept():
    result, _ = found({**USUAL, AT_RESOURCE: {**RESOURCE, "resource": f"{SERVER}/"}})
    assert result.resource == f"{SERVER}/"


@pytest.mark.clause("N19", "N20")
def test_extensions_are_optional_and_what_is_not_known_of_a_document_is_passed_over():
    strange = {"of_an_extension": {"version": 7}, "authorization_details_types_supported": ["x"]}
    result, _ = found({AT_RESOURCE: {**RESOURCE, **strange}, AT_ISSUER: {**AUTHORITY, **strange}})
    assert (result.resource, result.issuer) == (SERVER, ISSUER)
