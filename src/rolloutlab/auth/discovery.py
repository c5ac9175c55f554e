"""Discovery of a resource's authorization server: RFC 9728, RFC 8414 and OpenID Connect Discovery, in this order."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rolloutlab.api.http.urls import canonical_resource
from rolloutlab.auth.challenges import Challenge
from rolloutlab.auth.pkce import METHOD
from rolloutlab.auth.sans_io import Flow, Request
from rolloutlab.auth.urls import check_endpoint, covers, host, origin
from rolloutlab.errors import InputError, ServiceError, SignInError


class Document(BaseModel):
    """A JSON document of a server. Unknown members are ignored, and null means absent."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, document: Any) -> Any:
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
    """A registered client (RFC 7591, 3.2.1)."""

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
_MAX_AUTHORITIES = 5
_OPENID = "/.well-known/openid-configuration"


@dataclass(frozen=True)
class DiscoveredResource:
    """A resource and its authorization server. scopes: those in the resource's metadata; None if it has none."""

    resource: str
    scopes: tuple[str, ...] | None
    issuer: str
    authority: ServerMetadata

    @property
    def page(self) -> str:
        """The host of the issuer, and that of the sign-in page where it is another."""
        issuer, page = host(self.issuer), host(self.authority.authorization_endpoint)
        return issuer if page.lower() == issuer.lower() else f"{issuer} (the page is at {page})"


def discover(
    server: str, challenge: Challenge | None, issuer: str | None = None, *, without_pkce: bool = False
) -> Flow[DiscoveredResource]:
    """Discover the resource at a canonical server URL, and its authorization server.

    Of several authorization servers (RFC 9728, 7.6) the first with usable metadata is taken.

    Args:
        server: The URL of the server.
        challenge: The challenge of its first 401, if any.
        issuer: The authorization server that the person names, for a server without metadata.
        without_pkce: Accept an authorization server that does not declare PKCE: some support it without declaring it.

    Raises:
        SignInError: metadata is missing, contradictory or not trustworthy.
    """
    metadata = yield from _read_resource(server, challenge)
    if metadata is None and issuer is None:
        raise _no_metadata(server)
    issuers = (issuer,) if issuer else tuple(metadata.authorization_servers) if metadata else ()
    chosen, authority = yield from _find_authority(issuers, server)
    if not without_pkce and METHOD not in (authority.code_challenge_methods_supported or ()):
        raise SignInError(
            f"{host(chosen)} does not declare PKCE with {METHOD}, without which a code can be stolen; "
            "ask its operators, or continue at your own risk",
            hint=f"%login {server} --dangerously-without-pkce",
        )
    return DiscoveredResource(
        metadata.resource if metadata else server, metadata.scopes_supported if metadata else None, chosen, authority
    )


def resource_metadata_addresses(server: str, challenge: Challenge | None) -> list[str]:
    """List the URLs of a resource's metadata: that of the challenge, else at its path, then at the root."""
    if challenge and challenge.resource_metadata:
        return [challenge.resource_metadata]
    path = urlsplit(server).path
    return [f"{origin(server)}{_RESOURCE}{each}" for each in dict.fromkeys([path, ""])]


def authority_addresses(issuer: str) -> list[str]:
    """List the URLs of an authorization server's metadata."""
    path = urlsplit(issuer).path.rstrip("/")
    if not path:
        return [f"{origin(issuer)}{known}" for known in (_SERVER, _OPENID)]
    return [f"{origin(issuer)}{_SERVER}{path}", f"{origin(issuer)}{_OPENID}{path}", f"{origin(issuer)}{path}{_OPENID}"]


def _no_metadata(server: str) -> SignInError:
    message = f"{host(server)} does not name an authorization server"
    if urlsplit(server).path in {"", "/v1"}:  # a service, not a context server
        key = f"%connect {origin(server)} --key-env ROLLOUTLAB_API_KEY"
        return SignInError(f"{message}; if it is a service, it takes API keys only, or none", hint=key)
    return SignInError(message, hint=f"%login {server} --issuer https://login.example")


def _read_resource(server: str, challenge: Challenge | None) -> Flow[ResourceMetadata | None]:
    urls = [check_endpoint("metadata URL", url, server) for url in resource_metadata_addresses(server, challenge)]
    asked: list[str] = []
    metadata = yield from _find_first(ResourceMetadata, _record(urls, asked), f"the metadata of {host(server)}")
    if metadata:
        _check_resource(metadata.resource, server, at_root=asked[-1] == f"{origin(server)}{_RESOURCE}")
    return metadata


def _record(urls: Iterable[str], asked: list[str]) -> Iterator[str]:
    for url in urls:
        asked.append(url)
        yield url


def _check_resource(resource: str, server: str, *, at_root: bool) -> None:
    """Raise unless metadata is the server's own (RFC 9728, 3.3). At an origin's root it may be of a parent path."""
    try:
        canonical = canonical_resource(resource) if resource.isascii() and resource == resource.strip() else None
    except InputError:
        canonical = None
    if canonical is None:
        raise SignInError(f"{host(server)} has metadata of a resource that is not a URL")
    if canonical != server and not (at_root and covers(canonical, server)):
        raise SignInError(f"{host(server)} has metadata of another resource than {server}: {ascii(resource)[:200]}")


def _find_authority(issuers: Sequence[str], server: str) -> Flow[tuple[str, ServerMetadata]]:
    """Find the first authorization server with usable metadata. A failure after that tries no other server."""
    failures: list[ServiceError] = []
    for issuer in issuers[:_MAX_AUTHORITIES]:
        try:
            return issuer, (yield from _read_authority(check_endpoint("authorization server", issuer, server), server))
        except ServiceError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    reasons = "; ".join(failure.message for failure in failures)
    raise SignInError(f"{host(server)} names {len(failures)} authorization servers, none of them usable: {reasons}")


def _read_authority(issuer: str, server: str) -> Flow[ServerMetadata]:
    metadata = yield from _find_first(ServerMetadata, authority_addresses(issuer), f"the metadata of {host(issuer)}")
    if metadata is None:
        raise SignInError(f"{issuer} has no metadata of an authorization server")
    if metadata.issuer != issuer:  # RFC 8414, 3.3: identical
        raise SignInError(f"{issuer} has metadata of another authorization server: {ascii(metadata.issuer)[:200]}")
    for name, url in (
        ("authorization endpoint", metadata.authorization_endpoint),
        ("token endpoint", metadata.token_endpoint),
        ("registration endpoint", metadata.registration_endpoint),
        ("revocation endpoint", metadata.revocation_endpoint),
    ):
        if url is not None:
            check_endpoint(name, url, server)
    return metadata


def _find_first(kind: type[D], urls: Iterable[str], what: str) -> Flow[D | None]:
    """Find the first document of a kind at some URLs; None if no URL has JSON.

    Some servers answer any path with JSON of theirs. So a document is passed over if it lacks the first member of its
    kind, which all of that kind have.

    Raises:
        SignInError: a document of the kind is invalid, or there are only others.
    """
    other: str | None = None
    mark = next(iter(kind.model_fields))
    for url in urls:
        response = yield Request("GET", url, {"Accept": "application/json"})
        document = response.document()
        if document is None:
            continue
        try:
            return kind.model_validate(document)
        except ValidationError as error:
            wrong = f"invalid {'.'.join(map(str, error.errors()[0]['loc']))} in {what}"
            if document.get(mark) is not None:
                raise SignInError(wrong) from None
            other = other or wrong
    if other:
        raise SignInError(other)
    return None
