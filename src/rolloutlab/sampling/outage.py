"""A service that answered and is not reached any more: what is under way ends, and it is asked again for minutes."""

import asyncio
from collections.abc import Awaitable, Callable

from rolloutlab.api.http.retries import Retries
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.errors import BrokenOffError, ServiceError, SignInError, UnreachableError

Complete = Callable[[ChatRequest], Awaitable[ChatCompletion]]


class Outage:
    """Sends requests while their service is reached; once it is not, one of them is sent again and the others wait.

    complete: sends one request. retries: how long a service that has answered is asked again; None: not at all.
    """

    def __init__(self, complete: Complete, retries: Retries | None) -> None:
        self._complete = complete
        self._retries = retries
        self._reached = asyncio.Event()
        self._reached.set()
        self._idle = asyncio.Event()
        self._under_way = 0
        self._has_answered = False

    @property
    def lasts(self) -> bool:
        """Whether the service is not reached at the moment."""
        return not self._reached.is_set()

    async def complete(self, request: ChatRequest) -> ChatCompletion:
        """The answer to a request.

        Raises:
            ServiceError: as it was answered; where the service stays away, once all that was under way has ended.
        """
        while True:
            await self._reached.wait()
            try:
                return await self._sent(request)
            except ServiceError as error:
                if not (ends_all(error) and self._has_answered):
                    raise
                if self._reached.is_set():  # the first that fails is sent again, on behalf of all
                    self._reached.clear()
                    return await self._sent_again(request, error)

    async def _sent_again(self, request: ChatRequest, error: ServiceError) -> ChatCompletion:
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
        """Seconds until it is asked again; a token that is refused is not taken later either."""
        return self._retries.while_away() if self._retries and isinstance(error, UnreachableError) else None

    async def _sent(self, request: ChatRequest) -> ChatCompletion:
        self._under_way += 1
        try:
            completion = await self._complete(request)
        finally:
            self._under_way -= 1
            self._idle.set()
        self._has_answered = True
        return completion


def ends_all(error: ServiceError) -> bool:
    """Whether it would happen to every request; one answer that breaks off may be that request's own trouble."""
    return isinstance(error, SignInError | UnreachableError) and not isinstance(error, BrokenOffError)
