"""The document by which clients find everything else (RFC 8414), also where OpenID Connect looks for it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rolloutlab.api.http.urls import canonical_resource
from rolloutlab.errors import InputError
from rolloutlab.service.oauth.clients import AUTH_METHODS
from rolloutlab.service.oauth.errors import OAuthRefusal

WELL_KNOWN = "/.well-known/oauth-protected-resource"

READ, WRITE, SERVICE = "lab:read", "lab:write", "service"

SCOPES: Mapping[str, str] = {
    READ: "read and search every conversation of this lab, with its rewards",
    WRITE: "add conversations to this lab, and set rewards",
    SERVICE: "use and train the models of this lab, and delete them",
}
"""Every scope, as the person who consents reads it."""


@dataclass(frozen=True)
class Resource:
    """One protected resource. uri: its identifier, canonical. basic: the scopes that the first token is asked for."""

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
        """The metadata document (RFC 9728, 2); its scopes are those that basic use needs."""
        return {
            "resource": self.uri,
            "authorization_servers": [self.issuer],
            "scopes_supported": list(self.basic),
            "bearer_methods_supported": ["header"],
            "resource_name": self.name,
        }

    def checked(self, asked: str | None) -> tuple[str, ...]:
        """The scopes of a request, in our order; the basic ones where it names none.

        Raises:
            OAuthRefusal: invalid_scope: one is not of this resource.
        """
        wanted = set(asked.split()) if asked else set(self.basic)
        if strange := sorted(wanted - set(self.scopes)):
            raise OAuthRefusal("invalid_scope", f"{self.uri} has no scope {' '.join(strange)}")
        return in_order(wanted)


def context_server(issuer: str) -> Resource:
    """The lab's memory, as a context server."""
    return Resource("the memory of this lab", issuer, "/context", (READ, WRITE), (READ,))


def api(issuer: str) -> Resource:
    """The training and chat API."""
    return Resource("the models of this lab", issuer, "/v1", (SERVICE,), (SERVICE,))


def named(resources: Iterable[Resource], asked: str | None) -> Resource:
    """The resource that a request means (RFC 8707, 2).

    Raises:
        OAuthRefusal: invalid_target: it names none, or one that is not ours.
    """
    if not asked:
        raise OAuthRefusal("invalid_target", "the parameter resource is missing")
    try:
        uri = canonical_resource(asked)
    except InputError as error:
        raise OAuthRefusal("invalid_target", error.message) from error
    for resource in resources:
        if resource.uri == uri:
            return resource
    raise OAuthRefusal("invalid_target", f"{asked} is no resource of this server")


def in_order(scopes: Iterable[str]) -> tuple[str, ...]:
    """Scopes in the order of `SCOPES`."""
    wanted = set(scopes)
    return tuple(scope for scope in SCOPES if scope in wanted)


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
