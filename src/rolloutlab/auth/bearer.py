"""The token of a server, for any number of requests at once: attached, renewed, stepped up, given back."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from rolloutlab.auth.addresses import checked_server, covers, host
from rolloutlab.auth.challenges import Challenge, bearer
from rolloutlab.auth.consent import Consent, Pending, Question, Settled
from rolloutlab.auth.discovery import Found, discover
from rolloutlab.auth.grants import Grant, given_back, redeemed, refreshed
from rolloutlab.auth.kept import Kept
from rolloutlab.auth.pkce import new_verifier
from rolloutlab.auth.registration import NAME, Client, registered
from rolloutlab.auth.requests import TokenRefused, authorization_url, code_of
from rolloutlab.auth.scopes import first_scopes, stepped_up
from rolloutlab.auth.transport import Transport, met
from rolloutlab.errors import RolloutlabError, ServiceError, SignInError
from rolloutlab.reach import Reach

_ATTEMPTS = 2
"""How often a person is asked for more scopes for one operation that goes on to be refused."""
_RENEWALS = 2
"""How many tokens may be refused, one after the other, before no new one is asked for."""
_OVER = {"invalid_grant", "invalid_client", "unauthorized_client"}
"""Refusals that no waiting mends (RFC 6749, 5.2)."""


@dataclass(frozen=True)
class Terms:
    """How to sign in where a server does not say it all.

    issuer: its authorization server. client: as registered there. document: the address of our client ID metadata
    document. without_pkce: go on where the authorization server does not say that it checks a proof of the code. port:
    of this machine, where answers for the client or the document have to come to.
    """

    issuer: str | None = None
    client: Client | None = None
    document: str | None = None
    without_pkce: bool = False
    port: int | None = None

    @property
    def listener(self) -> int | None:
        """The port for answers: 0 is any, at the path that was registered beforehand; None is any, at any path."""
        return self.port if self.port or not (self.client or self.document) else 0


@dataclass(frozen=True)
class Standing:
    """Where one is signed in; nothing of it is secret. expires_at: seconds since 1970. renews: without asking again."""

    server: str
    authority: str
    client: str
    scopes: tuple[str, ...]
    expires_at: float | None
    renews: bool
    place: str


@dataclass(frozen=True)
class _Asked:
    client: Client
    redirect_uri: str
    verifier: str = field(repr=False)


class Access:
    """The way in to one server. Everything is awaited on one event loop, or on another that took its place."""

    def __init__(
        self,
        server: str,
        consent: Consent,
        kept: Kept,
        terms: Terms | None = None,
        settled: Settled = lambda _server, _wrong: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.server = checked_server(server)
        self._consent = consent
        self._kept = kept
        self._terms = terms
        self._settled = settled
        self._now = now
        self._turn: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._grant: Grant | None = None
        self._clients: dict[tuple[str, str], Client] = {}
        self._challenge: Challenge | None = None
        self._attempts: dict[str, int] = {}
        self._renewals: set[asyncio.Task[Grant]] = set()
        self._rejected: dict[str, set[str]] = {}
        """Tokens that were refused since one was accepted, by operation."""
        self._refused: dict[frozenset[str], SignInError] = {}
        """What a person said no to, until they ask again."""

    @property
    def resource(self) -> str:
        """What the token is for, or will probably be."""
        grant = self._known()
        return grant.resource if grant else self.server

    @property
    def standing(self) -> Standing | None:
        """Where one is signed in; None where one is not."""
        grant = self._reread()
        if grant is None:
            return None
        renews = grant.refresh_token is not None
        told = host(grant.issuer), grant.client.id, grant.scopes, grant.expires_at, renews, self._kept.place
        return Standing(self.server, *told)

    def covers(self, url: str) -> bool:
        """Whether requests to an address may carry this token: what the grant is for, and nothing beside it."""
        return covers(self.resource, url)

    async def sign_in(self, terms: Terms | None = None, *, keep: bool | None = None) -> Standing | None:
        """Ask the person, whatever was allowed or refused before; until they have answered, that holds.

        terms: on which, also for later step-ups. keep: beyond the end of the kernel; None is as it was.

        Raises:
            SignInError: it was refused, or cannot be trusted. UnreachableError: nothing answers.
        """
        async with self._lock:
            self._refused.clear()
            self._attempts.clear()
            before, self._terms = self._terms, terms or self._terms
            if terms:
                self._clients.clear()
            try:
                await self._sign_in(self._challenge, keep=keep)
            except BaseException:
                self._terms = before
                raise
        return self.standing

    async def token(self) -> str | None:
        """The access token, renewed where that is due; None where nobody has signed in.

        Raises:
            SignInError: it has expired and cannot be renewed.
        """
        grant = self._known()
        if grant is None:
            return None
        return (grant if grant.fresh(self._now()) else await self._renewed(grant)).access_token

    async def after(self, status: int, headers: Iterable[tuple[str, str]], operation: str, token: str | None) -> bool:
        """Whether, after this answer, the request is to be sent once more with the token that there is now.

        operation: what requests are counted by, such as `tools/call search`. token: what the request bore.

        Raises:
            SignInError: nobody has signed in, the person said no, or it is refused again and again.
        """
        if status == 401:
            challenge = bearer(value for name, value in headers if name.lower() == "www-authenticate")
            self._challenge = challenge or self._challenge
            return await self._unauthorized(token, challenge, operation)
        if status == 403:
            challenge = bearer(value for name, value in headers if name.lower() == "www-authenticate")
            if challenge and challenge.error == "insufficient_scope":
                return await self._insufficient(challenge, operation, token)
        elif status < 400:
            self._attempts.pop(operation, None)
            self._rejected.pop(operation, None)
        return False

    async def sign_out(self) -> bool:
        """Give the tokens back and forget them; whether the server said that they are ended."""
        async with self._lock, self._kept.alone(self.server):
            grant = self._reread()
            self._forget()
            if grant is None:
                return False
            try:
                return await Transport(Reach(grant.reach)).run(given_back(grant))
            except ServiceError:  # they are forgotten here in any case
                return False

    @property
    def _lock(self) -> asyncio.Lock:
        """One at a time, on the loop that there is now: whoever had its turn on one that hung would never end it."""
        loop = asyncio.get_running_loop()
        if self._turn is None or self._turn[0] is not loop:
            self._turn = loop, asyncio.Lock()
        return self._turn[1]

    def _known(self) -> Grant | None:
        """The grant, as far as this process knows."""
        return self._grant or self._reread()

    def _reread(self) -> Grant | None:
        self._grant = self._kept.read(self.server)
        return self._grant

    def _forget(self) -> None:
        self._kept.forget(self.server)
        self._grant = None

    def _keep(self, grant: Grant, keep: bool | None = None) -> None:
        self._kept.write(grant, keep)
        self._grant = grant

    async def _unauthorized(self, token: str | None, challenge: Challenge | None, operation: str) -> bool:
        grant = self._known()
        if grant is None and not (challenge and challenge.resource_metadata):  # it may want a key
            return False
        if grant is None:
            raise SignInError(f"{self.server} wants you to sign in", hint=f"%login {self.server}")
        if grant.access_token != token:  # somebody has renewed it meanwhile
            return True
        rejected = self._rejected.setdefault(operation, set())
        rejected.add(token)
        if len(rejected) > _RENEWALS:
            raise SignInError(f"{host(self.server)} takes none of its own tokens", hint=f"%login {self.server}")
        await self._renewed(grant)
        return True

    async def _insufficient(self, challenge: Challenge, operation: str, token: str | None) -> bool:
        wanted = frozenset(challenge.scopes)
        async with self._lock:
            grant = self._reread()
            if grant and grant.access_token != token:  # somebody was asked meanwhile
                return True
            if before := self._refused.get(wanted):
                raise SignInError(before.message, hint=f"%login {self.server}")
            tried = self._attempts.get(operation, 0)
            if tried >= _ATTEMPTS:
                scopes = " ".join(sorted(wanted)) or "more"
                said = f"{host(self.server)} goes on to want the scopes {scopes!a} after they were granted"
                raise SignInError(said, hint=f"%login {self.server}")
            self._attempts[operation] = tried + 1
            try:
                await self._sign_in(challenge, grant.scopes if grant else ())
            except SignInError as error:
                self._refused[wanted] = error
                raise
        return True

    async def _renewed(self, stale: Grant) -> Grant:
        """A fresh grant. Who waits for it may be interrupted: what was exchanged by then must not be lost."""
        renewal = asyncio.create_task(self._renew(stale))
        self._renewals.add(renewal)
        renewal.add_done_callback(self._renewals.discard)
        renewal.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # it may be nobody's
        return await asyncio.shield(renewal)

    async def _renew(self, stale: Grant) -> Grant:
        """A fresh grant: another kernel's, if it was quicker; two would end each other's refresh token."""
        async with self._lock, self._kept.alone(self.server):
            grant = self._reread()
            if grant is None:
                raise SignInError(f"you were signed out of {self.server}", hint=f"%login {self.server}")
            if grant.access_token != stale.access_token and grant.fresh(self._now()):
                return grant
            transport = Transport(Reach(grant.reach))
            try:
                renewed = await transport.run(refreshed(grant, self._now()))
            except TokenRefused as error:
                if grant.refresh_token is None or error.code in _OVER:
                    self._forget()
                    why = "has expired" if grant.refresh_token is None else "is over"
                    raise SignInError(f"the sign-in to {self.server} {why}", hint=f"%login {self.server}") from None
                raise
            self._keep(renewed)  # before it is used: the old refresh token is worth nothing any more
            return renewed

    async def _sign_in(
        self, challenge: Challenge | None, granted: Sequence[str] = (), *, keep: bool | None = None
    ) -> None:
        """Ask the person. granted: the scopes there are already, where more are needed."""
        try:
            await self._ask(challenge, granted, keep)
        except RolloutlabError as error:
            self._settled(self.server, error.message)
            raise
        self._settled(self.server, None)

    async def _ask(self, challenge: Challenge | None, granted: Sequence[str], keep: bool | None) -> None:
        transport, told = await met(self.server)
        challenge = challenge or told
        terms = self._terms or Terms()
        found = await transport.run(discover(self.server, challenge, terms.issuer, without_pkce=terms.without_pkce))
        terms = self._terms or self._terms_before(found.issuer)
        challenged, offered = challenge.scopes if challenge else (), found.authority.scopes_supported
        scopes = (
            stepped_up(granted, challenged, offered) if granted else first_scopes(challenged, found.scopes, offered)
        )
        try:
            grant = await self._granted(transport, found, scopes, terms)
        except TokenRefused as error:
            if error.code != "invalid_client" or terms.client:
                raise
            self._clients.clear()  # it does not know us any more
            grant = await self._granted(transport, found, scopes, terms)
        async with self._kept.alone(self.server):
            before = self._reread()
            self._keep(grant, keep)
        self._rejected.clear()
        if before:
            with suppress(ServiceError):  # what nobody uses any more, nobody can steal
                await Transport(Reach(before.reach)).run(given_back(before))

    def _terms_before(self, issuer: str) -> Terms:
        """Those of another kernel, whose grant was kept: a client that was known beforehand goes on being it."""
        grant = self._known()
        if grant is None or grant.issuer != issuer or grant.client.redirect_uri:
            return Terms()
        return Terms(client=grant.client, port=grant.port)

    async def _granted(self, transport: Transport, found: Found, scopes: Sequence[str], terms: Terms) -> Grant:
        """The grant that a person gives. A broker may prepare several requests, of which one is answered."""
        asked: dict[str, _Asked] = {}

        async def prepare(redirect_uri: str) -> Pending:
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
            question = Question(self.server, host(found.issuer), found.resource, tuple(scopes), NAME, registered_before)
            return Pending(url, state, question)

        answer = await self._consent(self.server, prepare, terms.listener)
        of = asked[answer["state"]]
        grant = await transport.run(
            redeemed(
                found,
                of.client,
                code_of(found.authority, answer, self.server),
                server=self.server,
                redirect_uri=of.redirect_uri,
                verifier=of.verifier,
                scopes=scopes,
                reach=transport.reach,
                now=self._now(),
            )
        )
        return replace(grant, port=terms.port)

    async def _client(self, transport: Transport, found: Found, redirect_uri: str, terms: Terms) -> Client:
        key = found.issuer, redirect_uri
        known = self._clients.get(key)
        if known is None or not known.serves(redirect_uri, self._now()):
            flow = registered(
                found.authority, redirect_uri, server=self.server, preset=terms.client, document=terms.document
            )
            known = self._clients[key] = await transport.run(flow)
        return known
