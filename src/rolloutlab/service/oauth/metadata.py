"""The document by which clients find everything else (RFC 8414), also where OpenID Connect looks for it."""

from typing import Any

from rolloutlab.service.oauth.clients import AUTH_METHODS
from rolloutlab.service.oauth.resources import Resource, in_order

PATHS = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")

AUTHORIZE, CONSENT, TOKEN, REGISTER, REVOKE = (
    f"/oauth/{name}" for name in ("authorize", "consent", "token", "register", "revoke")
)


def metadata(issuer: str, resources: tuple[Resource, ...]) -> dict[str, Any]:
    """What the server is and can do; `iss` of RFC 9207 and the client documents of the OAuth draft among it."""
    return {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}{AUTHORIZE}",
        "token_endpoint": f"{issuer}{TOKEN}",
        "registration_endpoint": f"{issuer}{REGISTER}",
        "revocation_endpoint": f"{issuer}{REVOKE}",
        "scopes_supported": list(in_order(scope for resource in resources for scope in resource.scopes)),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "token_endpoint_auth_methods_supported": list(AUTH_METHODS),
        "revocation_endpoint_auth_methods_supported": list(AUTH_METHODS),
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": True,
        "protected_resources": [resource.uri for resource in resources],
    }
