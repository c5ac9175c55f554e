"""Bearer authentication for the MCP SDK, which has an HTTP library of its own (httpx2)."""

import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

import httpx2

from rolloutlab.api.http.secrecy import Unencrypted
from rolloutlab.auth.session import OAuthSession
from rolloutlab.errors import RolloutlabError, SignInError

_REMEMBERED = 100
"""Sent tokens that are masked; older ones have expired, as each is used for minutes."""


class BearerAuth(httpx2.Auth):
    """Attaches the token to every request, and repeats a request after a renewal or a step-up."""

    requires_request_body = True

    def __init__(self, access: OAuthSession) -> None:
        self._access = access
        self._failure: tuple[float, RolloutlabError] | None = None
        self._sent: deque[str] = deque(maxlen=_REMEMBERED)
        self._waiting = 0
        self._paused = 0.0
        self._since = 0.0

    @property
    def paused(self) -> float:
        """Seconds in which requests waited for a sign-in, which do not count as time of a tool."""
        return self._paused + (time.monotonic() - self._since if self._waiting else 0.0)

    def failure_since(self, begun: float) -> RolloutlabError | None:
        """The error that ended a request since then; the SDK reports a closed connection instead."""
        return self._failure[1] if self._failure and self._failure[0] >= begun else None

    def masked(self, text: str) -> str:
        """A text of the server with the tokens that it was sent masked."""
        for token in sorted(self._sent, key=len, reverse=True):  # one may begin with another
            text = text.replace(token, "...")
        return text

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        operation, again = operation_of(request.content), True
        try:
            while again:
                token = await self._access.token()
                if token:
                    if token not in self._sent:
                        self._sent.append(token)
                    request.headers["Authorization"] = f"Bearer {token}"
                    Unencrypted().check(str(request.url), request.headers)
                response = yield request
                headers = response.headers.multi_items()
                with self._pausing():
                    again = await self._access.after(response.status_code, headers, operation, token)
                if response.status_code == 401 and not again:
                    server = self._access.server
                    raise SignInError(f"{server} wants you to sign in", hint=f"%login {server}")
        except RolloutlabError as error:
            self._failure = time.monotonic(), error
            raise

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._paused += time.monotonic() - self._since


def operation_of(body: bytes) -> str:
    """The operation of a JSON-RPC request, by which tries are counted: `tools/call search`, or the method."""
    try:
        message = json.loads(body)
        name = (message.get("params") or {}).get("name", "")
        return f"{message.get('method', '')} {name}".strip()
    except (ValueError, AttributeError):
        return ""
