"""Asking a person for a grant: where to, for what, as whom, and what comes of the answer."""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rolloutlab.auth.challenges import Challenge, first_scopes, stepped_up
from rolloutlab.auth.discovery import DiscoveredResource, discover
from rolloutlab.auth.pkce import new_verifier
from rolloutlab.auth.prompt import AuthorizationRequest, Question, UserPrompt
from rolloutlab.auth.registration import NAME, RegisteredClient, registered
from rolloutlab.auth.sans_io import Transport, probe_server
from rolloutlab.auth.token_requests import TokenRefused, authorization_url, code_of
from rolloutlab.auth.tokens import Grant, exchange_code


@dataclass(frozen=True)
class SignInOptions:
    """How to sign in where a server does not say it all.

    issuer: its authorization server. client: as registered there. document: the address of our client ID metadata
    document. without_pkce: go on where the authorization server does not say that it checks a proof of the code. port:
    of this machine, where answers for the client or the document have to come to.
    """

    issuer: str | None = None
    client: RegisteredClient | None = None
    document: str | None = None
    without_pkce: bool = False
    port: int | None = None

    @property
    def listener(self) -> int | None:
        """The port for answers: 0 is any, at the path that was registered beforehand; None is any, at any path."""
        return self.port if self.port or not (self.client or self.document) else 0


@dataclass(frozen=True)
class _Asked:
    client: RegisteredClient
    redirect_uri: str
    verifier: str = field(repr=False)


class AuthorizationFlow:
    """Asks for grants of one server, and remembers as which clients we are registered."""

    def __init__(self, server: str, now: Callable[[], float] = time.time) -> None:
        self._server = server
        self._now = now
        self._clients: dict[tuple[str, str], RegisteredClient] = {}

    def forget_clients(self) -> None:
        """Register anew the next time."""
        self._clients.clear()

    async def grant(
        self,
        consent: UserPrompt,
        terms: SignInOptions | None,
        before: Grant | None,
        challenge: Challenge | None,
        granted: Sequence[str],
    ) -> Grant:
        """What a person gives.

        before: the grant until now. terms: None are those of that, which another kernel may have been given. granted:
        the scopes that were granted or challenged before, where more are wanted.

        Raises:
            SignInError: it was refused, or cannot be trusted. UnreachableError: nothing answers.
        """
        transport, told = await probe_server(self._server)
        challenge = challenge or told
        said = terms or SignInOptions()
        found = await transport.run(discover(self._server, challenge, said.issuer, without_pkce=said.without_pkce))
        terms = terms or _terms_of(before, found.issuer)
        challenged, offered = challenge.scopes if challenge else (), found.authority.scopes_supported
        scopes = (
            stepped_up(granted, challenged, offered) if granted else first_scopes(challenged, found.scopes, offered)
        )
        try:
            return await self._granted(consent, transport, found, scopes, terms)
        except TokenRefused as error:
            if error.code != "invalid_client" or terms.client:
                raise
            self._clients.clear()  # it does not know us any more
            return await self._granted(consent, transport, found, scopes, terms)

    async def _granted(
        self,
        consent: UserPrompt,
        transport: Transport,
        found: DiscoveredResource,
        scopes: Sequence[str],
        terms: SignInOptions,
    ) -> Grant:
        """The grant that a person gives. A broker may prepare several requests, of which one is answered."""
        asked: dict[str, _Asked] = {}

        async def prepare(redirect_uri: str) -> AuthorizationRequest:
            client = await self._client(transport, found, redirect_uri, terms)
            registered_before = redirect_uri if client.redirect_uri is None else None
            state, verifier = secrets.token_urlsafe(32), new_verifier()
            asked[state] = _Asked(client, redirect_uri, verifier)
            url = authorization_url(
                found.authority,
                client,
                redirect_uri,
                resource=found.resource,
                scopes=scopes,
                state=state,
                verifier=verifier,
            )
            question = Question(self._server, found.page, found.resource, tuple(scopes), NAME, registered_before)
            return AuthorizationRequest(url, state, question)

        answer = await consent(self._server, prepare, terms.listener)
        of = asked[answer["state"]]
        grant = await transport.run(
            exchange_code(
                found,
                of.client,
                code_of(found.authority, answer, self._server),
                server=self._server,
                redirect_uri=of.redirect_uri,
                verifier=of.verifier,
                scopes=scopes,
                reach=transport.reach,
                now=self._now(),
            )
        )
        return replace(grant, port=terms.port)

    async def _client(
        self, transport: Transport, found: DiscoveredResource, redirect_uri: str, terms: SignInOptions
    ) -> RegisteredClient:
        key = found.issuer, redirect_uri
        known = self._clients.get(key)
        if known is None or not known.serves(redirect_uri, self._now()):
            flow = registered(
                found.authority, redirect_uri, server=self._server, preset=terms.client, document=terms.document
            )
            known = self._clients[key] = await transport.run(flow)
        return known


def _terms_of(grant: Grant | None, issuer: str) -> SignInOptions:
    """Those by which a grant was given, that of another kernel too: a client known beforehand goes on being it."""
    if grant is None or grant.issuer != issuer or grant.client.redirect_uri:
        return SignInOptions()
    return SignInOptions(client=grant.client, port=grant.port)
