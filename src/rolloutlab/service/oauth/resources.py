"""What is protected, by which scopes, and the documents that say so (RFC 9728)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.resource import canonical
from rolloutlab.service.oauth.refusal import OAuthRefusal

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
        uri = canonical(asked)
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
