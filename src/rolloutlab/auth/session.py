"""The token of a server, for any number of requests at once: attached, renewed, stepped up, given back."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rolloutlab.api.http.ip_scope import NetworkScope
from rolloutlab.auth.authorization import AuthorizationFlow, SignInOptions
from rolloutlab.auth.challenges import Challenge, bearer
from rolloutlab.auth.prompt import PromptTimeoutError, UserPrompt
from rolloutlab.auth.sans_io import Transport
from rolloutlab.auth.token_requests import Denied, TokenRefused
from rolloutlab.auth.token_store import TokenStore
from rolloutlab.auth.tokens import Grant, refresh, revoke
from rolloutlab.auth.urls import checked_server, host
from rolloutlab.errors import RolloutlabError, ServiceError, SignInError


class LoopLock:
    """Turns at something. One that hangs with its loop keeps nobody on the next loop waiting."""

    def __init__(self) -> None:
        self._here: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def one(self) -> asyncio.Lock:
        """For `async with`: one turn."""
        loop = asyncio.get_running_loop()
        if self._here is None or self._here[0] is not loop:
            self._here = loop, asyncio.Lock()
        return self._here[1]


_ATTEMPTS = 2
"""How often a person is asked for more scopes for one operation that goes on to be refused."""
_RENEWALS = 2
"""How many tokens may be refused, one after the other, before no new one is asked for."""
_OVER = {"invalid_grant", "invalid_client", "unauthorized_client"}
"""Refusals that no waiting mends (RFC 6749, 5.2)."""


@dataclass(frozen=True)
class SignInStatus:
    """Where one is signed in; nothing of it is secret. expires_at: seconds since 1970. renews: without asking again."""

    server: str
    authority: str
    client: str
    scopes: tuple[str, ...]
    expires_at: float | None
    renews: bool
    place: str


class OAuthSession:
    """The way in to one server. Everything is awaited on one event loop, or on another that took its place."""

    def __init__(
        self,
        server: str,
        consent: UserPrompt,
        kept: TokenStore,
        terms: SignInOptions | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.server = checked_server(server)
        self._consent = consent
        self._kept = kept
        self._terms = terms
        self._now = now
        self._asking = AuthorizationFlow(self.server, now)
        self._questions = LoopLock()
        """At asking the person, which may take them long."""
        self._changes = LoopLock()
        """At changing the grant."""
        self._grant: Grant | None = None
        self._challenge: Challenge | None = None
        self._attempts: dict[str, int] = {}
        self._renewals: set[asyncio.Task[Grant]] = set()
        self._rejected: dict[str, set[str]] = {}
        """Tokens that were refused since one was accepted, by operation."""
        self._wanted: dict[str, None] = {}
        """The scopes that were granted or challenged since the person signed in, in order."""
        self._no: SignInError | None = None
        """That a person wants to allow no more, until they ask again."""
        self._failures = 0
        self._failure: RolloutlabError | None = None
        """How often asking for more came to nothing, and why the last time."""

    @property
    def resource(self) -> str:
        """What the token is for, or will probably be."""
        grant = self._known()
        return grant.resource if grant else self.server

    @property
    def standing(self) -> SignInStatus | None:
        """Where one is signed in; None where one is not."""
        grant = self._reread()
        if grant is None:
            return None
        renews = grant.refresh_token is not None
        told = host(grant.issuer), grant.client.id, grant.scopes, grant.expires_at, renews, self._kept.place
        return SignInStatus(self.server, *told)

    async def sign_in(
        self, terms: SignInOptions | None = None, *, keep: bool | None = None, consent: UserPrompt | None = None
    ) -> SignInStatus | None:
        """Ask the person, whatever was allowed or refused before; until they have answered, that holds.

        terms: on which, also for later step-ups. keep: beyond the end of the kernel; None is as it was. consent: by
        whom the person is asked this time.

        Raises:
            SignInError: it was refused, or cannot be trusted. UnreachableError: nothing answers.
        """
        async with self._questions.one:
            self._no = None
            self._attempts.clear()
            self._wanted.clear()
            before, self._terms = self._terms, terms or self._terms
            if terms:
                self._asking.forget_clients()
            try:
                await self._ask(consent or self._consent, self._challenge, (), keep)
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
        async with self._changes.one, self._kept.lock(self.server):
            grant = self._reread()
            self._forget()
            if grant is None:
                return False
            try:
                return await Transport(NetworkScope(grant.reach)).run(revoke(grant))
            except ServiceError:  # they are forgotten here in any case
                return False

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
        failures = self._failures
        async with self._questions.one:
            grant = self._reread()
            if grant and grant.access_token != token:  # somebody was asked meanwhile
                return True
            if self._no:
                raise SignInError(self._no.message, hint=f"%login {self.server}")
            if self._failure and failures != self._failures:  # it was tried while this one waited for its turn
                raise SignInError(self._failure.message, hint=self._failure.hint)
            tried = self._attempts.get(operation, 0)
            if tried >= _ATTEMPTS:
                scopes = " ".join(sorted(set(challenge.scopes))) or "more"
                said = f"{host(self.server)} goes on to want the scopes {scopes!a} after they were granted"
                raise SignInError(said, hint=f"%login {self.server}")
            self._wanted.update(dict.fromkeys([*(grant.scopes if grant else ()), *challenge.scopes]))
            try:
                await self._ask(self._consent, challenge, tuple(self._wanted))
            except RolloutlabError as error:
                self._failures, self._failure = self._failures + 1, error
                if isinstance(error, Denied | PromptTimeoutError):
                    self._no = error
                raise
            self._attempts[operation] = tried + 1
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
        async with self._changes.one, self._kept.lock(self.server):
            grant = self._reread()
            if grant is None:
                raise SignInError(f"you were signed out of {self.server}", hint=f"%login {self.server}")
            if grant.access_token != stale.access_token and grant.fresh(self._now()):
                return grant
            transport = Transport(NetworkScope(grant.reach))
            try:
                renewed = await transport.run(refresh(grant, self._now()))
            except TokenRefused as error:
                if grant.refresh_token is None or error.code in _OVER:
                    self._forget()
                    why = "has expired" if grant.refresh_token is None else "is over"
                    raise SignInError(f"the sign-in to {self.server} {why}", hint=f"%login {self.server}") from None
                raise
            self._keep(renewed)  # before it is used: the old refresh token is worth nothing any more
            return renewed

    async def _ask(
        self, consent: UserPrompt, challenge: Challenge | None, granted: Sequence[str], keep: bool | None = None
    ) -> None:
        """Ask the person, and keep what they give. granted: the scopes there are already, where more are needed."""
        try:
            grant = await self._asking.grant(consent, self._terms, self._reread(), challenge, granted)
            before = await self._replace(grant, keep)
            self._wanted.update(dict.fromkeys(grant.scopes))
        except BaseException as error:
            consent.settled(self.server, False, error.message if isinstance(error, RolloutlabError) else "interrupted")
            raise
        consent.settled(self.server, True, " ".join(grant.scopes))
        if before:
            with suppress(ServiceError):  # what nobody uses any more, nobody can steal
                await Transport(NetworkScope(before.reach)).run(revoke(before))

    async def _replace(self, grant: Grant, keep: bool | None) -> Grant | None:
        """Keep a grant; the one before."""
        async with self._changes.one, self._kept.lock(self.server, keep):
            before = self._reread()
            self._keep(grant, keep)
            self._rejected.clear()
            return before
