"""Token ids of earlier turns in requests: for services that read them, and only where these are theirs."""

import asyncio
import re
from collections.abc import Collection

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.inference import reads_token_ids
from rolloutlab.api.wire.chat import AssistantMessage, ChatCompletion, ChatRequest
from rolloutlab.errors import RefusedError
from rolloutlab.sampling.outage import Complete
from rolloutlab.settings import Address

_REFUSED = re.compile(r"messages\.(\d+)\.token_ids")


class EarlierTokens:
    """Sends requests with the token ids of earlier turns where the service lists that it reads these.

    Of turns whose ids it refuses, as after a conversation with another policy, it gets the texts alone.
    """

    def __init__(self, http: HttpClient, address: Address) -> None:
        self._http = http
        self._address = address
        self._reads: asyncio.Task[bool] | None = None

    async def complete(self, request: ChatRequest, send: Complete) -> ChatCompletion:
        """The completion of a request; raises as `send`."""
        sent = _with_ids(request)
        if not sent:
            return await send(request)
        if not await self._are_read():
            return await send(_without_ids(request, sent))
        read = list(sent)
        while True:
            try:
                completion = await send(request)
                break
            except RefusedError as error:
                if not read or "token_ids" not in error.message:
                    raise
                refused = {int(i) for i in _REFUSED.findall(error.message)}
                read = [i for i in read if i not in refused] if refused.intersection(read) else []
                request = _without_ids(request, set(sent).difference(read))
        return completion if sent[-1] in read else _as_beginning(completion)

    async def _are_read(self) -> bool:
        """Asked once."""
        self._reads = self._reads or asyncio.create_task(reads_token_ids(self._http, self._address))
        return await asyncio.shield(self._reads)


def _with_ids(request: ChatRequest) -> list[int]:
    """Which messages have token ids."""
    return [i for i, each in enumerate(request.messages) if isinstance(each, AssistantMessage) and each.token_ids]


def _without_ids(request: ChatRequest, turns: Collection[int]) -> ChatRequest:
    """The request with the texts alone of some turns."""
    messages = [
        AssistantMessage.model_validate({k: v for k, v in message.to_wire().items() if k != "token_ids"})
        if i in turns
        else message
        for i, message in enumerate(request.messages)
    ]
    return request.model_copy(update={"messages": messages})


def _as_beginning(completion: ChatCompletion) -> ChatCompletion:
    """The completion after a turn whose tokens were not read: marked as the beginning of a training sequence."""
    choices = [choice.model_copy(update={"continues": False}) for choice in completion.choices]
    return completion.model_copy(update={"choices": choices})
