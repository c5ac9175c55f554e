"""Outage of a service while sampling: one request is retried for minutes, the others wait for it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from rolloutlab.api.http.retries import Retries
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.errors import BrokenOffError, ServiceError, SignInError, UnreachableError

Complete = Callable[[ChatRequest], Awaitable[ChatCompletion]]
R = TypeVar("R")


class Outage(Generic[R]):
    """Sends requests; when the service becomes unreachable, one of them is retried and the others wait.

    complete: sends one request. retries: for a service that has answered before; None for no retry.
    """

    def __init__(self, complete: Callable[[R], Awaitable[ChatCompletion]], retries: Retries | None) -> None:
        self._complete = complete
        self._retries = retries
        self._reached = asyncio.Event()
        self._reached.set()
        self._idle = asyncio.Event()
        self._under_way = 0
        self._has_answered = False

    @property
    def lasts(self) -> bool:
        """Whether the service is unreachable now."""
        return not self._reached.is_set()

    async def complete(self, request: R) -> ChatCompletion:
        """The response to a request; an error of an outage is raised once all concurrent requests have ended."""
        while True:
            await self._reached.wait()
            try:
                return await self._sent(request)
            except ServiceError as error:
                if not (ends_all(error) and self._has_answered):
                    raise
                if self._reached.is_set():  # the first that fails is retried for all
                    self._reached.clear()
                    return await self._sent_again(request, error)

    async def _sent_again(self, request: R, error: ServiceError) -> ChatCompletion:
        while (pause := self._pause(error)) is not None:
            await asyncio.sleep(pause)
            try:
                completion = await self._sent(request)
            except ServiceError as latest:
                if not ends_all(latest):
                    self._reached.set()
                    raise
                error = latest
            else:
                self._reached.set()
                return completion
        while self._under_way:
            self._idle.clear()
            await self._idle.wait()
        raise error

    def _pause(self, error: ServiceError) -> float | None:
        """Seconds until the next try; none for a refused token, which will not be accepted later."""
        return self._retries.while_away() if self._retries and isinstance(error, UnreachableError) else None

    async def _sent(self, request: R) -> ChatCompletion:
        self._under_way += 1
        try:
            completion = await self._complete(request)
        finally:
            self._under_way -= 1
            self._idle.set()
        self._has_answered = True
        return completion


def ends_all(error: ServiceError) -> bool:
    """Whether every request would fail in the same way; a single broken connection may be of one request only."""
    return isinstance(error, SignInError | UnreachableError) and not isinstance(error, BrokenOffError)
