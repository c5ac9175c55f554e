"""Metadata documents of the authorization server (RFC 8414) and of its two protected resources (RFC 9728)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rolloutlab.api.http.urls import canonical_resource
from rolloutlab.errors import InputError
from rolloutlab.service.oauth.clients import AUTH_METHODS
from rolloutlab.service.oauth.errors import OAuthError

WELL_KNOWN = "/.well-known/oauth-protected-resource"
PATHS = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")
AUTHORIZE, CONSENT = "/oauth/authorize", "/oauth/consent"
TOKEN, REGISTER, REVOKE = "/oauth/token", "/oauth/register", "/oauth/revoke"
READ, WRITE, SERVICE = "lab:read", "lab:write", "service"

SCOPES: Mapping[str, str] = {
    READ: "read and search every conversation of this lab, with its rewards",
    WRITE: "add conversations to this lab, and set rewards",
    SERVICE: "use and train the models of this lab, and delete them",
}
"""Every scope with its description on the consent page."""


@dataclass(frozen=True)
class Resource:
    """A protected resource. uri: its canonical identifier. basic: the scopes of a request that names none."""

    name: str
    issuer: str
    path: str
    scopes: tuple[str, ...]
    basic: tuple[str, ...]

    @property
    def uri(self) -> str:
        return f"{self.issuer}{self.path}"

    @property
    def metadata_path(self) -> str:
        return f"{WELL_KNOWN}{self.path}"

    @property
    def metadata_url(self) -> str:
        return f"{self.issuer}{self.metadata_path}"

    def metadata(self) -> dict[str, Any]:
        """Make the metadata document (RFC 9728, 2). Its scopes are those that basic use needs."""
        return {
            "resource": self.uri,
            "authorization_servers": [self.issuer],
            "scopes_supported": list(self.basic),
            "bearer_methods_supported": ["header"],
            "resource_name": self.name,
        }

    def requested_scopes(self, scope: str | None) -> tuple[str, ...]:
        """Read the scopes of a request's `scope` parameter, in the order of `SCOPES`.

        Raises:
            OAuthError: invalid_scope: one is not of this resource.
        """
        scopes = set(scope.split()) if scope else set(self.basic)
        if unknown := sorted(scopes - set(self.scopes)):
            raise OAuthError("invalid_scope", f"{self.uri} has no scope {' '.join(unknown)}")
        return sort_scopes(scopes)


def context_server(issuer: str) -> Resource:
    """Make the resource of the MCP server over the lab."""
    return Resource("the memory of this lab", issuer, "/context", (READ, WRITE), (READ,))


def api(issuer: str) -> Resource:
    """Make the resource of the training and chat API."""
    return Resource("the models of this lab", issuer, "/v1", (SERVICE,), (SERVICE,))


def select_resource(resources: Iterable[Resource], uri: str | None) -> Resource:
    """Find the resource that a request names (RFC 8707, 2).

    Raises:
        OAuthError: invalid_target: it names none, or one of another server.
    """
    if not uri:
        raise OAuthError("invalid_target", "the parameter resource is missing")
    try:
        canonical = canonical_resource(uri)
    except InputError as error:
        raise OAuthError("invalid_target", error.message) from error
    for resource in resources:
        if resource.uri == canonical:
            return resource
    raise OAuthError("invalid_target", f"{uri} is not a resource of this server")


def sort_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Sort scopes in the order of `SCOPES`, and drop unknown ones."""
    requested = set(scopes)
    return tuple(scope for scope in SCOPES if scope in requested)


def metadata(issuer: str, resources: tuple[Resource, ...]) -> dict[str, Any]:
    """Make the metadata of the authorization server, with `iss` (RFC 9207) and client ID metadata documents."""
    return {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}{AUTHORIZE}",
        "token_endpoint": f"{issuer}{TOKEN}",
        "registration_endpoint": f"{issuer}{REGISTER}",
        "revocation_endpoint": f"{issuer}{REVOKE}",
        "scopes_supported": list(sort_scopes(scope for resource in resources for scope in resource.scopes)),
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
