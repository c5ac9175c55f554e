"""Token ids of earlier turns in requests: for services that read them, and only where these are theirs."""

import asyncio

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.inference import reads_token_ids
from rolloutlab.api.wire.chat import AssistantMessage, ChatCompletion, ChatRequest
from rolloutlab.errors import RefusedError
from rolloutlab.sampling.outage import Complete
from rolloutlab.settings import Address


class EarlierTokens:
    """Sends requests with the token ids of earlier turns where the service lists that it reads these.

    A service whose vocabulary they are not of, as after a conversation with another policy, gets the texts alone.
    """

    def __init__(self, http: HttpClient, address: Address, complete: Complete) -> None:
        self._http = http
        self._address = address
        self._complete = complete
        self._reads: asyncio.Task[bool] | None = None

    async def complete(self, request: ChatRequest) -> ChatCompletion:
        if not any(isinstance(message, AssistantMessage) and message.token_ids for message in request.messages):
            return await self._complete(request)
        if not await self._are_read():
            return await self._complete(_texts_alone(request))
        try:
            return await self._complete(request)
        except RefusedError as error:
            if "token_ids" not in error.message:
                raise
            return await self._complete(_texts_alone(request))

    async def _are_read(self) -> bool:
        """Asked once."""
        self._reads = self._reads or asyncio.create_task(reads_token_ids(self._http, self._address))
        return await asyncio.shield(self._reads)


def _texts_alone(request: ChatRequest) -> ChatRequest:
    messages = [
        AssistantMessage.model_validate({k: v for k, v in message.to_wire().items() if k != "token_ids"})
        if isinstance(message, AssistantMessage)
        else message
        for message in request.messages
    ]
    return request.model_copy(update={"messages": messages})
