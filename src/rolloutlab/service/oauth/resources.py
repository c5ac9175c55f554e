"""What is protected, by which scopes, and the documents that say so (RFC 9728)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

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
    for resource in resources:
        if resource.uri == canonical(asked):
            return resource
    raise OAuthRefusal("invalid_target", f"{asked} is no resource of this server")


def canonical(uri: str) -> str:
    """A resource identifier as it is compared: scheme and host in lower case, no slash at the end.

    Raises:
        OAuthRefusal: invalid_target: it has no scheme, no host, or a fragment.
    """
    try:
        parts = urlsplit(uri)
    except ValueError:
        parts = urlsplit("")
    if not parts.scheme or not parts.netloc or "#" in uri:
        raise OAuthRefusal("invalid_target", f"{uri} is no absolute address without a fragment")
    return parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.lower()).geturl().removesuffix("/")


def in_order(scopes: Iterable[str]) -> tuple[str, ...]:
    """Scopes in the order of `SCOPES`."""
    wanted = set(scopes)
    return tuple(scope for scope in SCOPES if scope in wanted)
