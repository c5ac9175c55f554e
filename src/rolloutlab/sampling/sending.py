"""Chat requests of a run: without what the service refuses, metered, streamed for those who watch."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from rolloutlab.api.http.client import Tries
from rolloutlab.api.inference import complete, stream
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.connection import Connector
from rolloutlab.errors import RefusedError
from rolloutlab.sampling.metering import Meter
from rolloutlab.settings import Address

OnText = Callable[[str], None]
OnChunk = Callable[[dict[str, Any]], None]


class Sender(Protocol):
    """Sends a request. on_text, on_chunk: as of `stream`, where one is given."""

    async def __call__(
        self, request: ChatRequest, *, on_text: OnText | None = None, on_chunk: OnChunk | None = None
    ) -> ChatCompletion: ...


def sender(connector: Connector, address: Address, meter: Meter) -> Sender:
    """What sends the requests of one run to a service."""

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
        async def metered(request: ChatRequest) -> ChatCompletion:
            return await meter.complete(request, partial(send, on_text, on_chunk, request))

        return await connector.refused.complete(address, request, metered)

    return answer
