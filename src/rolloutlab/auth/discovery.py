"""Who guards a resource, and where to sign in: RFC 9728, RFC 8414 and OpenID Connect Discovery, in the given order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rolloutlab.api.http.urls import canonical_resource
from rolloutlab.auth.challenges import Challenge
from rolloutlab.auth.pkce import METHOD
from rolloutlab.auth.sans_io import Flow, Request
from rolloutlab.auth.urls import checked_endpoint, covers, host, origin
from rolloutlab.errors import InputError, ServiceError, SignInError


class Document(BaseModel):
    """Unknown members are nobody's business."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _said(cls, document: Any) -> Any:
        """A member that is null is as one that is not there."""
        if not isinstance(document, dict):
            return document
        return {name: value for name, value in document.items() if value is not None}


class ResourceMetadata(Document):
    """A protected resource (RFC 9728, 2)."""

    resource: str
    authorization_servers: tuple[str, ...] = Field(min_length=1)
    scopes_supported: tuple[str, ...] | None = None


class ServerMetadata(Document):
    """An authorization server (RFC 8414, 2, and OpenID Connect Discovery)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: tuple[str, ...] = ()
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    client_id_metadata_document_supported: bool = False
    authorization_response_iss_parameter_supported: bool = False


class Registration(Document):
    """What a server registered (RFC 7591, 3.2.1)."""

    client_id: str = Field(min_length=1)
    client_secret: str | None = Field(None, repr=False)
    client_secret_expires_at: float = 0
    token_endpoint_auth_method: str | None = None


class TokenAnswer(Document):
    """Tokens (RFC 6749, 5.1). expires_in: seconds."""

    access_token: str = Field(min_length=1, repr=False)
    token_type: str
    expires_in: float | None = None
    refresh_token: str | None = Field(None, repr=False)
    scope: str | None = None


D = TypeVar("D", bound=Document)

_RESOURCE = "/.well-known/oauth-protected-resource"
_SERVER = "/.well-known/oauth-authorization-server"
_MOST_AUTHORITIES = 5
"""So many of the authorization servers that a resource names are asked."""
_OPENID = "/.well-known/openid-configuration"


@dataclass(frozen=True)
class DiscoveredResource:
    """A resource and who issues tokens for it. scopes: all that the resource says it knows; None where it does not."""

    resource: str
    scopes: tuple[str, ...] | None
    issuer: str
    authority: ServerMetadata

    @property
    def page(self) -> str:
        """Where a person is asked: the issuer's host, and that of the page that opens where it is another."""
        named, opened = host(self.issuer), host(self.authority.authorization_endpoint)
        return named if opened.lower() == named.lower() else f"{named} (the page is at {opened})"


def discover(
    server: str, challenge: Challenge | None, issuer: str | None = None, *, without_pkce: bool = False
) -> Flow[DiscoveredResource]:
    """What is known of a canonical server address.

    challenge: of its first 401, if any. issuer: what was configured for a server that does not describe itself. Of
    several authorization servers (RFC 9728, 7.6) it is the first whose metadata can be used.
    without_pkce: go on where the authorization server does not say that it checks a proof of the code; for servers that
    do and forget to say so.

    Raises:
        SignInError: something is missing, contradicts what was asked for, or cannot be trusted.
    """
    described = yield from _resource(server, challenge)
    if described is None and issuer is None:
        raise _unsaid(server)
    named = (issuer,) if issuer else tuple(described.authorization_servers) if described else ()
    chosen, authority = yield from _first_authority(named, server)
    if not without_pkce and METHOD not in (authority.code_challenge_methods_supported or ()):
        raise SignInError(
            f"{host(chosen)} does not say that it supports {METHOD} proofs, without which a code can be stolen; "
            "ask its makers, or go on at your own risk",
            hint=f"%login {server} --dangerously-without-pkce",
        )
    return DiscoveredResource(
        described.resource if described else server,
        described.scopes_supported if described else None,
        chosen,
        authority,
    )


def resource_metadata_addresses(server: str, challenge: Challenge | None) -> list[str]:
    """Where a resource may describe itself: where its challenge says, else at its path, then at the root."""
    if challenge and challenge.resource_metadata:
        return [challenge.resource_metadata]
    path = urlsplit(server).path
    return [f"{origin(server)}{_RESOURCE}{each}" for each in dict.fromkeys([path, ""])]


def authority_addresses(issuer: str) -> list[str]:
    """Where an authorization server may describe itself."""
    path = urlsplit(issuer).path.rstrip("/")
    if not path:
        return [f"{origin(issuer)}{known}" for known in (_SERVER, _OPENID)]
    return [
        f"{origin(issuer)}{_SERVER}{path}",
        f"{origin(issuer)}{_OPENID}{path}",
        f"{origin(issuer)}{path}{_OPENID}",
    ]


def _unsaid(server: str) -> SignInError:
    """A context server has to say who signs in for it; a service may want a key and nothing else."""
    said = f"{host(server)} does not say who signs in for it"
    if urlsplit(server).path in {"", "/v1"}:
        key = f"%connect {origin(server)} --key-env ROLLOUTLAB_API_KEY"
        return SignInError(f"{said}; if it is a service, it takes API keys only, or nothing", hint=key)
    return SignInError(said, hint=f"%login {server} --issuer https://login.example")


def _resource(server: str, challenge: Challenge | None) -> Flow[ResourceMetadata | None]:
    for address in resource_metadata_addresses(server, challenge):
        there = [checked_endpoint("description", address, server)]
        found = yield from _first(ResourceMetadata, there, f"the description of {host(server)}")
        if found:
            _check_resource(found.resource, server, at_root=address == f"{origin(server)}{_RESOURCE}")
            return found
    return None


def _check_resource(resource: str, server: str, *, at_root: bool) -> None:
    """A server describes itself and nothing else (RFC 9728, 3.3); who writes at an origin's root may mean all of it."""
    try:
        described = canonical_resource(resource) if resource.isascii() and resource == resource.strip() else None
    except InputError:
        described = None
    if described is None:
        raise SignInError(f"{host(server)} describes a resource that is no address")
    if described != server and not (at_root and covers(described, server)):
        raise SignInError(f"{host(server)} describes another resource than {server}: {ascii(resource)[:200]}")


def _first_authority(issuers: Sequence[str], server: str) -> Flow[tuple[str, ServerMetadata]]:
    """The first authorization server whose metadata can be read and trusted; what fails later tries no other."""
    failures: list[ServiceError] = []
    for issuer in issuers[:_MOST_AUTHORITIES]:
        try:
            return issuer, (yield from _authority(checked_endpoint("authorization server", issuer, server), server))
        except ServiceError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    why = "; ".join(failure.message for failure in failures)
    raise SignInError(f"{host(server)} names {len(failures)} authorization servers, and none can be used: {why}")


def _authority(issuer: str, server: str) -> Flow[ServerMetadata]:
    found = yield from _first(ServerMetadata, authority_addresses(issuer), f"the description of {host(issuer)}")
    if found is None:
        raise SignInError(f"{issuer} does not describe itself as an authorization server")
    if found.issuer != issuer:  # RFC 8414, 3.3: identical
        raise SignInError(f"{issuer} describes another authorization server: {ascii(found.issuer)[:200]}")
    for name, url in (
        ("page to sign in", found.authorization_endpoint),
        ("token endpoint", found.token_endpoint),
        ("registration endpoint", found.registration_endpoint),
        ("revocation endpoint", found.revocation_endpoint),
    ):
        if url is not None:
            checked_endpoint(name, url, server)
    return found


def _first(kind: type[D], addresses: Iterable[str], what: str) -> Flow[D | None]:
    """The first document of a kind that is at one of some addresses; None where there is none at all."""
    for address in addresses:
        response = yield Request("GET", address, {"Accept": "application/json"})
        document = response.document()
        if document is not None:
            try:
                return kind.model_validate(document)
            except ValidationError as error:
                wrong = ".".join(map(str, error.errors()[0]["loc"]))
                raise SignInError(f"{what} cannot be used: {wrong}") from None
    return None
