"""The documents by which clients find their way."""

import pytest


@pytest.mark.clause("C2", "H6")
@pytest.mark.parametrize("path", ["oauth-authorization-server", "openid-configuration"])
def test_the_authorization_server_provides_both_metadata_mechanisms(visitor, path):
    metadata = visitor.get(f"/.well-known/{path}").json()
    assert metadata["issuer"] == visitor.url
    for name in ("authorization", "token", "registration", "revocation"):
        assert metadata[f"{name}_endpoint"].startswith(f"{visitor.url}/oauth/")


@pytest.mark.clause("C3")
def test_pkce_support_is_said_in_the_metadata_and_is_s256_alone(visitor):
    metadata = visitor.get("/.well-known/oauth-authorization-server").json()
    assert metadata["code_challenge_methods_supported"] == ["S256"]


@pytest.mark.clause("C1")
def test_client_id_metadata_documents_and_iss_are_advertised(visitor):
    metadata = visitor.get("/.well-known/oauth-authorization-server").json()
    assert metadata["client_id_metadata_document_supported"] is True
    assert metadata["authorization_response_iss_parameter_supported"] is True


@pytest.mark.clause("A9")
def test_public_and_confidential_clients_are_advertised(visitor):
    metadata = visitor.get("/.well-known/oauth-authorization-server").json()
    methods = ["none", "client_secret_basic", "client_secret_post"]
    assert metadata["token_endpoint_auth_methods_supported"] == methods
    assert metadata["scopes_supported"] == ["lab:read", "lab:write", "service"]


@pytest.mark.clause("A8", "A10", "B1", "B3", "G5")
@pytest.mark.parametrize(("path", "scopes"), [("/context", ["lab:read"]), ("/v1", ["service"])])
def test_a_protected_resource_names_its_authorization_server_and_its_minimal_scopes(visitor, path, scopes):
    metadata = visitor.get(f"/.well-known/oauth-protected-resource{path}").json()
    assert metadata["resource"] == f"{visitor.url}{path}"
    assert metadata["authorization_servers"] == [visitor.url]
    assert metadata["scopes_supported"] == scopes
    assert metadata["bearer_methods_supported"] == ["header"]
