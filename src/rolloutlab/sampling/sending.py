"""Requests of a run: metered, with earlier token ids, without what the service refuses, and retried in an outage."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from rolloutlab.api.http.client import HttpClient, Tries
from rolloutlab.api.http.retries import Retries
from rolloutlab.api.inference import complete, reads_token_ids, stream
from rolloutlab.api.wire.chat import AssistantMessage, ChatCompletion, ChatRequest
from rolloutlab.connection import Connector
from rolloutlab.errors import BrokenOffError, RefusedError, ServiceError, SignInError, UnreachableError
from rolloutlab.sampling.metering import Meter
from rolloutlab.settings import Address

OnText = Callable[[str], None]
OnChunk = Callable[[dict[str, Any]], None]
Complete = Callable[[ChatRequest], Awaitable[ChatCompletion]]
R = TypeVar("R")
_REFUSED = re.compile(r"messages\.(\d+)\.token_ids")


class Sender(Protocol):
    """Sends a request. It is streamed if `on_text` or `on_chunk` is given; both are called as by `stream`."""

    async def __call__(
        self, request: ChatRequest, *, on_text: OnText | None = None, on_chunk: OnChunk | None = None
    ) -> ChatCompletion: ...


def make_sender(connector: Connector, address: Address, meter: Meter) -> Sender:
    """Make the function that sends the requests of one run to a service."""

    async def send(
        on_text: OnText | None, on_chunk: OnChunk | None, request: ChatRequest, tries: Tries | None = None
    ) -> ChatCompletion:
        if on_text or on_chunk:
            watch = on_text or (lambda _: None), tries, on_chunk or (lambda _: None)
            try:
                return await stream(connector.http, address, request, *watch)
            except RefusedError as error:
                if "stream" not in error.message:  # llama.cpp: "logprobs is not supported with tools + stream"
                    raise
        return await complete(connector.http, address, request, tries)

    async def answer(
        request: ChatRequest, *, on_text: OnText | None = None, on_chunk: OnChunk | None = None
    ) -> ChatCompletion:
        async def send_metered(request: ChatRequest) -> ChatCompletion:
            return await meter.complete(request, partial(send, on_text, on_chunk, request))

        return await connector.refused.complete(address, request, send_metered)

    return answer


class EarlierTokens:
    """Sends requests with the token ids of earlier turns, if the service says that it reads them.

    The service may refuse the ids of a turn, for example of a turn that another policy sampled. Then the request is
    sent again with only the text of that turn.
    """

    def __init__(self, http: HttpClient, address: Address) -> None:
        self._http = http
        self._address = address
        self._reads: asyncio.Task[bool] | None = None

    async def complete(self, request: ChatRequest, send: Complete) -> ChatCompletion:
        """Send a request and return its completion. The errors are those of `send`."""
        sent = _find_turns_with_ids(request)
        if not sent:
            return await send(request)
        if not await self._ask_whether_read():
            return await send(_drop_ids(request, sent))
        read = list(sent)
        while True:  # it ends: each refusal shortens `read`, and without `read` a refusal is raised
            try:
                completion = await send(request)
                break
            except RefusedError as error:
                if not read or "token_ids" not in error.message:
                    raise
                refused = {int(i) for i in _REFUSED.findall(error.message)}
                read = [i for i in read if i not in refused] if refused.intersection(read) else []
                request = _drop_ids(request, set(sent).difference(read))
        return completion if sent[-1] in read else _mark_as_beginning(completion)

    async def _ask_whether_read(self) -> bool:
        """Return whether the service reads token ids. The service is asked once."""
        self._reads = self._reads or asyncio.create_task(reads_token_ids(self._http, self._address))
        return await asyncio.shield(self._reads)


def _find_turns_with_ids(request: ChatRequest) -> list[int]:
    """Return the indices of the messages that have token ids."""
    return [i for i, each in enumerate(request.messages) if isinstance(each, AssistantMessage) and each.token_ids]


def _drop_ids(request: ChatRequest, turns: Collection[int]) -> ChatRequest:
    """Return the request without the token ids of some turns, whose texts stay."""
    messages = [
        AssistantMessage.model_validate({k: v for k, v in message.to_wire().items() if k != "token_ids"})
        if i in turns
        else message
        for i, message in enumerate(request.messages)
    ]
    return request.model_copy(update={"messages": messages})


def _mark_as_beginning(completion: ChatCompletion) -> ChatCompletion:
    """Mark a completion as the beginning of a training sequence, because the service did not read the ids before it."""
    choices = [choice.model_copy(update={"continues": False}) for choice in completion.choices]
    return completion.model_copy(update={"choices": choices})


class Outage(Generic[R]):
    """Sends requests. While the service is unreachable, one request is retried and the others wait.

    complete: sends one request. retries: the pauses between retries; None for no retry. Only a service that has
    answered before is retried.
    """

    def __init__(self, complete: Callable[[R], Awaitable[ChatCompletion]], retries: Retries | None) -> None:
        self._complete = complete
        self._retries = retries
        self._away: asyncio.Future[ServiceError | None] | None = None
        """The outage, while the service is unreachable. At its end the result is set: its error if no retry helped."""
        self._idle = asyncio.Event()
        self._under_way = 0
        self._has_answered = False

    @property
    def lasts(self) -> bool:
        """Whether the service is unreachable now."""
        return self._away is not None

    async def complete(self, request: R) -> ChatCompletion:
        """Send a request and return the response.

        If no retry ends an outage, every waiting request raises its error, once the requests under way have ended.
        """
        while True:
            if self._away and (lost := await asyncio.shield(self._away)):
                raise lost
            try:
                return await self._send(request)
            except ServiceError as error:
                if not (ends_all(error) and self._has_answered):
                    raise
                if self._away is None:  # the first that fails is retried for all
                    return await self._retry(request, error)

    async def _retry(self, request: R, error: ServiceError) -> ChatCompletion:
        """Retry a request for all during an outage; raise its last error if no retry helps."""
        away = self._away = asyncio.get_running_loop().create_future()
        lost: ServiceError | None = None
        try:
            while (pause := self._next_pause(error)) is not None:
                await asyncio.sleep(pause)
                try:
                    return await self._send(request)
                except ServiceError as latest:
                    if not ends_all(latest):
                        raise
                    error = latest
            while self._under_way:
                self._idle.clear()
                await self._idle.wait()
            lost = error
            raise error
        finally:  # if this request was cancelled, `lost` is None: waiting requests are sent, and one of them retries
            self._away = None
            away.set_result(lost)

    def _next_pause(self, error: ServiceError) -> float | None:
        """Return the seconds until the next try. None for a refused token, because no later try would be accepted."""
        return self._retries.while_away() if self._retries and isinstance(error, UnreachableError) else None

    async def _send(self, request: R) -> ChatCompletion:
        self._under_way += 1
        try:
            completion = await self._complete(request)
        finally:
            self._under_way -= 1
            self._idle.set()
        self._has_answered = True
        return completion


def ends_all(error: ServiceError) -> bool:
    """Whether every request would fail in the same way. A connection that breaks off may concern one request only."""
    return isinstance(error, SignInError | UnreachableError) and not isinstance(error, BrokenOffError)


def retries_of(connector: Connector) -> Retries | None:
    """Return the retries during an outage of the service.

    None for the embedded service: if it has ended, it comes back at another address, so a retry would not reach it.
    """
    return connector.http.retries() if connector.settings.service else None
