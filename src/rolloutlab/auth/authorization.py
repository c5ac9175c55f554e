"""Authorization code flow (OAuth 2.1, 4.1): discovery, client, consent of a person, code exchange."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode, urlsplit

from rolloutlab.auth.challenges import Challenge, first_scopes, step_up_scopes
from rolloutlab.auth.discovery import DiscoveredResource, ServerMetadata, discover
from rolloutlab.auth.pkce import METHOD, challenge_of, new_verifier
from rolloutlab.auth.prompt import AuthorizationRequest, Question, UserPrompt
from rolloutlab.auth.registration import NAME, RegisteredClient, obtain_client
from rolloutlab.auth.sans_io import Transport, error_code, probe_server
from rolloutlab.auth.tokens import Grant, TokenRefusedError, exchange_code
from rolloutlab.auth.urls import host
from rolloutlab.errors import SignInError

_MAX_CODE = 40
_ERRORS = {
    "invalid_request": "the request is invalid",
    "unauthorized_client": "this client is not allowed to request codes",
    "unsupported_response_type": "it issues no codes",
    "invalid_scope": "the requested scopes are not available",
    "invalid_target": "it issues no tokens for this server",
    "server_error": "internal error",
    "temporarily_unavailable": "it is overloaded",
}
"""Error codes of authorization responses (RFC 6749, 4.1.2.1; RFC 8707, 2)."""


class DeniedError(SignInError):
    """The person denied the authorization."""


def authorization_url(
    authority: ServerMetadata,
    client: RegisteredClient,
    redirect_uri: str,
    *,
    resource: str,
    scopes: Sequence[str],
    state: str,
    verifier: str,
) -> str:
    """Make the URL for the browser (RFC 6749, 4.1.1), with PKCE challenge and resource.

    Args:
        authority: The authorization server.
        client: The client there.
        redirect_uri: Where the response is sent.
        resource: The resource that tokens are for.
        scopes: The requested scopes.
        state: The secret that the response must repeat.
        verifier: The PKCE verifier, of which the URL has the challenge.
    """
    params = {
        "response_type": "code",
        "client_id": client.id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": challenge_of(verifier),
        "code_challenge_method": METHOD,
        "resource": resource,
        **({"scope": " ".join(scopes)} if scopes else {}),
    }
    if "offline_access" in scopes:
        params["prompt"] = "consent"  # OpenID Connect Core, 11: without it the scope may be ignored
    endpoint = authority.authorization_endpoint
    return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(params)}"


def code_of(authority: ServerMetadata, response: Mapping[str, str], server: str) -> str:
    """Return the code of an authorization response whose state was right. server: the one to sign in to.

    Raises:
        DeniedError: the person denied the request.
        SignInError: there was another error, or the response is of another issuer.
    """
    issuer = response.get("iss")  # RFC 9207, against mix-up
    if issuer != authority.issuer and (issuer is not None or authority.authorization_response_iss_parameter_supported):
        raise SignInError(f"the authorization response is not from {host(authority.issuer)}, where the request went")
    if response.get("error") == "access_denied":
        raise DeniedError(f"the sign-in was denied at {host(authority.issuer)}", hint=f"%login {server}")
    if response.get("error") or not response.get("code"):
        raise SignInError(f"{host(authority.issuer)} ended the sign-in: {_reason(response.get('error'))}")
    return response["code"]


def _reason(error: str | None) -> str:
    """Say the error of an authorization response in our own words, as anyone may have written its text."""
    if not error:
        return "the response has no code"
    if error in _ERRORS:
        return f"{error}, {_ERRORS[error]}"
    code = error_code(error)
    return f"error {code[:_MAX_CODE]!r}" if code else "an unknown error"


@dataclass(frozen=True)
class SignInOptions:
    """Options of a sign-in that discovery cannot supply.

    Attributes:
        issuer: The authorization server.
        client: The client as it is registered there.
        document: The URL of our client ID metadata document.
        without_pkce: Whether to continue if the authorization server does not declare PKCE.
        port: The port of the registered redirect URI.
    """

    issuer: str | None = None
    client: RegisteredClient | None = None
    document: str | None = None
    without_pkce: bool = False
    port: int | None = None

    @property
    def listener(self) -> int | None:
        """The port of the redirect URI: 0 is any, with the registered path; None is any, with a random path."""
        return self.port if self.port or not (self.client or self.document) else 0


@dataclass(frozen=True)
class _Attempt:
    client: RegisteredClient
    redirect_uri: str
    verifier: str = field(repr=False)


class AuthorizationFlow:
    """Obtains grants for one server, and caches registered clients."""

    def __init__(self, server: str, now: Callable[[], float] = time.time) -> None:
        self._server = server
        self._now = now
        self._clients: dict[tuple[str, str], RegisteredClient] = {}

    def forget_clients(self) -> None:
        """Forget the registered clients, so that the next sign-in registers again."""
        self._clients.clear()

    async def grant(
        self,
        prompt: UserPrompt,
        options: SignInOptions | None,
        before: Grant | None,
        challenge: Challenge | None,
        granted: Sequence[str],
    ) -> Grant:
        """Obtain a grant that a person consents to.

        Args:
            prompt: Asks the person.
            options: The options; None takes those of `before`, which may come from another kernel.
            before: The grant until now, if any.
            challenge: The challenge to answer; None asks the server for one.
            granted: The scopes that were granted or challenged before, for a step-up; empty for a first sign-in.

        Raises:
            SignInError: the grant was refused, or cannot be trusted.
            UnreachableError: there is no connection.
        """
        transport, probed = await probe_server(self._server)
        challenge = challenge or probed
        issuer, without_pkce = (options.issuer, options.without_pkce) if options else (None, False)
        target = await transport.run(discover(self._server, challenge, issuer, without_pkce=without_pkce))
        options = options or _options_of(before, target.issuer)
        challenged, offered = challenge.scopes if challenge else (), target.authority.scopes_supported
        scopes = (
            step_up_scopes(granted, challenged, offered)
            if granted
            else first_scopes(challenged, target.scopes, offered)
        )
        try:
            return await self._authorize(prompt, transport, target, scopes, options)
        except TokenRefusedError as error:
            if error.code != "invalid_client" or options.client:
                raise
            self._clients.clear()  # our registration there is gone
            return await self._authorize(prompt, transport, target, scopes, options)

    async def _authorize(
        self,
        prompt: UserPrompt,
        transport: Transport,
        target: DiscoveredResource,
        scopes: Sequence[str],
        options: SignInOptions,
    ) -> Grant:
        attempts: dict[str, _Attempt] = {}  # by state: a broker may prepare several requests, of which one is answered

        async def prepare(redirect_uri: str) -> AuthorizationRequest:
            client = await self._find_client(transport, target, redirect_uri, options)
            registered_before = redirect_uri if client.redirect_uri is None else None
            state, verifier = secrets.token_urlsafe(32), new_verifier()
            attempts[state] = _Attempt(client, redirect_uri, verifier)
            url = authorization_url(
                target.authority,
                client,
                redirect_uri,
                resource=target.resource,
                scopes=scopes,
                state=state,
                verifier=verifier,
            )
            question = Question(self._server, target.page, target.resource, tuple(scopes), NAME, registered_before)
            return AuthorizationRequest(url, state, question)

        response = await prompt(self._server, prepare, options.listener)
        attempt = attempts[response["state"]]
        grant = await transport.run(
            exchange_code(
                target,
                attempt.client,
                code_of(target.authority, response, self._server),
                server=self._server,
                redirect_uri=attempt.redirect_uri,
                verifier=attempt.verifier,
                scopes=scopes,
                scope=transport.scope,
                now=self._now(),
            )
        )
        return replace(grant, port=options.port)

    async def _find_client(
        self, transport: Transport, target: DiscoveredResource, redirect_uri: str, options: SignInOptions
    ) -> RegisteredClient:
        key = target.issuer, redirect_uri
        client = self._clients.get(key)
        if client is None or not client.serves(redirect_uri, self._now()):
            flow = obtain_client(
                target.authority, redirect_uri, server=self._server, preset=options.client, document=options.document
            )
            client = self._clients[key] = await transport.run(flow)
        return client


def _options_of(grant: Grant | None, issuer: str) -> SignInOptions:
    """Return the options of a grant, which may be another kernel's, so that a preset client stays the same."""
    if grant is None or grant.issuer != issuer or grant.client.redirect_uri:
        return SignInOptions()
    return SignInOptions(client=grant.client, port=grant.port)
