"""OAuth sessions of a notebook, one per server: token, renewal, step-up, sign-in, sign-out."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rolloutlab.api.http.ip_scope import NetworkScope
from rolloutlab.api.http.urls import canonical_resource
from rolloutlab.auth.authorization import AuthorizationFlow, DeniedError, SignInOptions
from rolloutlab.auth.challenges import Challenge, bearer
from rolloutlab.auth.prompt import PromptTimeoutError, UserPrompt
from rolloutlab.auth.sans_io import Transport
from rolloutlab.auth.token_store import FileStore, MemoryStore, TieredStore, list_kept_servers
from rolloutlab.auth.tokens import Grant, TokenRefusedError, add_superseded, refresh, revoke, same_client
from rolloutlab.auth.urls import check_server, covers, host
from rolloutlab.errors import LabError, NotFoundError, RolloutlabError, ServiceError, SignInError

_MAX_STEP_UPS = 2  # prompts for more scopes for one operation that is refused again and again
_MAX_RENEWALS = 2  # tokens of one operation that may be refused in a row
_PERMANENT = {"invalid_grant", "invalid_client", "unauthorized_client"}
"""Error codes that no retry helps against (RFC 6749, 5.2)."""
_LOOKS = 0.1
"""Seconds between two looks at the disk for a sign-in in another kernel. Each look lets other threads of Python go
first, which is slow with hundreds of requests under way.
"""


@dataclass(frozen=True)
class SignInStatus:
    """A sign-in without its secrets. expires_at: seconds since 1970. renews: whether it has a refresh token."""

    server: str
    authority: str
    client: str
    scopes: tuple[str, ...]
    expires_at: float | None
    renews: bool
    place: str


class OAuthSession:
    """The sign-in to one server. Its coroutines run on one event loop, or on the loop that replaced it."""

    def __init__(
        self,
        server: str,
        prompt: UserPrompt,
        store: MemoryStore | FileStore,
        options: SignInOptions | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.server = check_server(server)
        self._prompt = prompt
        self._store = store
        self._options = options
        self._now = now
        self._flow = AuthorizationFlow(self.server, now)
        self._locks: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Lock] = {}
        self._grant: Grant | None = None
        self._looked = -math.inf  # when the store was read last
        self._challenge: Challenge | None = None
        self._attempts: dict[str, int] = {}
        self._renewals: set[asyncio.Task[Grant]] = set()
        self._rejected: dict[str, set[str]] = {}  # tokens that were refused since one was accepted, by operation
        self._scopes: dict[str, None] = {}  # the scopes that were granted or challenged since the sign-in, in order
        self._denied: SignInError | None = None  # the person's refusal of more scopes, until they sign in again
        self._failures = 0  # the number of failed step-ups
        self._failure: RolloutlabError | None = None  # the error of the last step-up that failed

    @property
    def resource(self) -> str:
        """The resource of the token; the server's URL before a sign-in."""
        grant = self._find_grant()
        return grant.resource if grant else self.server

    @property
    def status(self) -> SignInStatus | None:
        """The present sign-in; None without one."""
        grant = self._reload()
        if grant is None:
            return None
        renews = grant.refresh_token is not None
        issuer, place = host(grant.issuer), self._store.place
        return SignInStatus(self.server, issuer, grant.client.id, grant.scopes, grant.expires_at, renews, place)

    def _lock(self, of: Literal["prompt", "grant"]) -> asyncio.Lock:
        """Return the lock that is held while a person is asked, which may take minutes, or while the grant changes.

        Each loop has its own: a loop that hangs holds its lock for ever, and the next loop is not to wait for it.
        """
        return self._locks.setdefault((asyncio.get_running_loop(), of), asyncio.Lock())

    async def sign_in(
        self, options: SignInOptions | None = None, *, keep: bool | None = None, prompt: UserPrompt | None = None
    ) -> SignInStatus | None:
        """Ask the person for a new grant. The present one stays in use until then.

        Args:
            options: The options of this sign-in and of later step-ups; None leaves them as they are.
            keep: Whether the grant is kept beyond the end of the kernel; None leaves that as it is.
            prompt: Replaces the prompt of the session this time.

        Raises:
            SignInError: the grant was refused, or cannot be trusted.
            UnreachableError: there is no connection.
        """
        async with self._lock("prompt"):
            self._denied = None
            self._attempts.clear()
            self._scopes.clear()
            before, self._options = self._options, options or self._options
            if options:
                self._flow.forget_clients()
            try:
                await self._authorize(prompt or self._prompt, self._challenge, (), keep)
            except BaseException:
                self._options = before
                raise
        return self.status

    async def token(self) -> str | None:
        """Return the access token, renewed if necessary; None without a sign-in. SignInError if that fails."""
        grant = self._find_grant()
        if grant is None:
            return None
        return (grant if grant.is_fresh(self._now()) else await self._renew_shielded(grant)).access_token

    async def after(self, status: int, headers: Iterable[tuple[str, str]], operation: str, token: str | None) -> bool:
        """Renew the token or ask for scopes if a response requires it, and return whether to send the request again.

        operation: what tries are counted by, such as `tools/call search`. token: the one that the request carried.

        Raises:
            SignInError: there is no sign-in, the person denied it, or it is refused repeatedly.
        """
        if status == 401:
            challenge = bearer(value for name, value in headers if name.lower() == "www-authenticate")
            self._challenge = challenge or self._challenge
            return await self._handle_unauthorized(token, challenge, operation)
        if status == 403:
            challenge = bearer(value for name, value in headers if name.lower() == "www-authenticate")
            if challenge and challenge.error == "insufficient_scope":
                return await self._handle_insufficient_scope(challenge, operation, token)
        elif status < 400:
            self._attempts.pop(operation, None)
            self._rejected.pop(operation, None)
        return False

    async def sign_out(self) -> bool:
        """Revoke and delete the tokens, and return whether the server confirmed the revocation."""
        async with self._lock("grant"), self._store.lock(self.server):
            grant = self._reload()
            self._forget()
            if grant is None:
                return False
            try:
                return await Transport(NetworkScope(grant.reach)).run(revoke(grant))
            except ServiceError:  # they are deleted here in any case
                return False

    def _find_grant(self) -> Grant | None:
        if self._grant is None and time.monotonic() - self._looked >= _LOOKS:
            return self._reload()
        return self._grant

    def _reload(self) -> Grant | None:
        self._grant, self._looked = self._store.read(self.server), time.monotonic()
        return self._grant

    def _forget(self) -> None:
        self._store.forget(self.server)
        self._grant = None

    def _keep(self, grant: Grant, keep: bool | None = None) -> None:
        self._store.write(grant, keep)
        self._grant = grant

    async def _handle_unauthorized(self, token: str | None, challenge: Challenge | None, operation: str) -> bool:
        grant = self._find_grant()
        if grant is None and not (challenge and challenge.resource_metadata):  # it may require an API key
            return False
        if grant is None:
            raise SignInError(f"{self.server} wants you to sign in", hint=f"%login {self.server}")
        if grant.access_token != token:  # renewed by a concurrent request
            return True
        rejected = self._rejected.setdefault(operation, set())
        rejected.add(token)
        if len(rejected) > _MAX_RENEWALS:
            raise SignInError(f"{host(self.server)} refuses its own tokens", hint=f"%login {self.server}")
        await self._renew_shielded(grant)
        return True

    async def _handle_insufficient_scope(self, challenge: Challenge, operation: str, token: str | None) -> bool:
        failures = self._failures
        async with self._lock("prompt"):
            grant = self._reload()
            if grant and grant.access_token != token:  # stepped up by a concurrent request
                return True
            if self._denied:
                raise SignInError(self._denied.message, hint=f"%login {self.server}")
            if self._failure and failures != self._failures:  # it failed while this request waited for the lock
                raise SignInError(self._failure.message, hint=self._failure.hint)
            attempts = self._attempts.get(operation, 0)
            if attempts >= _MAX_STEP_UPS:
                scopes = " ".join(sorted(set(challenge.scopes))) or "more"
                message = f"{host(self.server)} still requires the scopes {scopes!a} after they were granted"
                raise SignInError(message, hint=f"%login {self.server}")
            self._scopes.update(dict.fromkeys([*(grant.scopes if grant else ()), *challenge.scopes]))
            try:
                await self._authorize(self._prompt, challenge, tuple(self._scopes))
            except RolloutlabError as error:
                self._failures, self._failure = self._failures + 1, error
                if isinstance(error, DeniedError | PromptTimeoutError):
                    self._denied = error
                raise
            self._attempts[operation] = attempts + 1
        return True

    async def _renew_shielded(self, stale: Grant) -> Grant:
        """Renew a grant, shielded: an interrupt must not lose a refresh token that was exchanged."""
        renewal = asyncio.create_task(self._renew(stale))
        self._renewals.add(renewal)
        renewal.add_done_callback(self._renewals.discard)
        renewal.add_done_callback(lambda task: task.cancelled() or task.exception())  # retrieved, else asyncio warns
        return await asyncio.shield(renewal)

    async def _renew(self, stale: Grant) -> Grant:
        """Renew a grant, or return that of a kernel that was first: a second exchange would revoke the first."""
        async with self._lock("grant"), self._store.lock(self.server):
            grant = self._reload()
            if grant is None:
                raise SignInError(f"you were signed out of {self.server}", hint=f"%login {self.server}")
            if grant.access_token != stale.access_token and grant.is_fresh(self._now()):
                return grant
            transport = Transport(NetworkScope(grant.reach))
            try:
                renewed = await transport.run(refresh(grant, self._now()))
            except TokenRefusedError as error:
                if grant.refresh_token is None or error.code in _PERMANENT:
                    self._forget()
                    state = "has expired" if grant.refresh_token is None else "has ended"
                    raise SignInError(f"the sign-in to {self.server} {state}", hint=f"%login {self.server}") from None
                error.hint = f"run the cell again; if it lasts, %login {self.server}"
                raise
            except ServiceError as error:
                error.hint = f"run the cell again: the sign-in to {self.server} is kept"
                raise
            self._keep(renewed)  # before its first use, as the old refresh token is no longer valid
            return renewed

    async def _authorize(
        self, prompt: UserPrompt, challenge: Challenge | None, granted: Sequence[str], keep: bool | None = None
    ) -> None:
        """Ask the person for a grant, and keep it. granted: the present scopes, for a step-up."""
        try:
            grant = await self._flow.grant(prompt, self._options, self._reload(), challenge, granted)
            async with self._lock("grant"), self._store.lock(self.server, keep):
                before = self._reload()
                grant = add_superseded(grant, before)
                self._keep(grant, keep)
                self._rejected.clear()
            self._scopes.update(dict.fromkeys(grant.scopes))
        except BaseException as error:
            prompt.show_outcome(
                self.server, False, error.message if isinstance(error, RolloutlabError) else "interrupted"
            )
            raise
        prompt.show_outcome(self.server, True, " ".join(grant.scopes))
        if before and not same_client(before, grant):
            with suppress(ServiceError):  # the sign-in has succeeded
                await Transport(NetworkScope(before.reach)).run(revoke(before))


class OAuthSessions:
    """The OAuth session of each server. folder: holds the grants that are kept beyond the end of the kernel."""

    def __init__(self, prompt: UserPrompt, folder: Path) -> None:
        self._prompt = prompt
        self._folder = folder
        self._known: dict[str, OAuthSession] = {}

    def servers(self) -> list[str]:
        """List the URLs of servers that this notebook has used or that have stored grants. Opens no keyring."""
        return list(dict.fromkeys([*self._known, *list_kept_servers(self._folder)]))

    def statuses(self) -> tuple[list[SignInStatus], list[LabError]]:
        """Return the present sign-ins, and the errors of stored grants that cannot be used."""
        statuses: list[SignInStatus] = []
        errors: list[LabError] = []
        for server in self.servers():
            try:
                status = self.at(server).status
            except LabError as error:
                errors.append(error)
            else:
                statuses += [status] if status else []
        return statuses, errors

    def of(self, url: str) -> OAuthSession | None:
        """Find the session whose token a request to a URL may carry: the one with the most specific resource."""
        matches = [(resource, each) for each in self._known.values() if covers(resource := _resource(each), url)]
        return max(matches, key=lambda each: len(each[0]), default=(None, None))[1]

    def at(self, server: str) -> OAuthSession:
        """Return the session of a server, with a stored grant if there is one. InputError if it is no such URL."""
        address = check_server(server)
        if address not in self._known:
            self._known[address] = OAuthSession(address, self._prompt, TieredStore(self._folder))
        return self._known[address]

    def require_sign_in(self, server: str) -> OAuthSession:
        """Return the session of a server that the person is signed in to, or raise NotFoundError."""
        session = self._known.get(canonical_resource(server)) or self.at(server)
        if session.status is None:
            raise NotFoundError(f"you are not signed in to {session.server}", hint=f"%login {session.server}")
        return session


def _resource(session: OAuthSession) -> str:
    try:
        return session.resource
    except LabError:  # an unusable grant must break only requests to its own server, which report the error
        return session.server
