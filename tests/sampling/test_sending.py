"""Requests during an outage of the service: one is retried, the others wait, and none waits for ever."""

import asyncio

import pytest

from rolloutlab.api.http.retries import Retries
from rolloutlab.api.wire.chat import ChatCompletion
from rolloutlab.errors import BudgetError, UnreachableError
from rolloutlab.sampling.sending import Outage

CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Paris"}}
COMPLETION = ChatCompletion.model_validate(
    {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [CHOICE]}
)
PATIENCE = 60.0


class Away:
    """A service that has answered once, and is away until `back`; what is sent meanwhile is in `sent`."""

    def __init__(self, retries: Retries | None) -> None:
        self.back, self.tried = asyncio.Event(), asyncio.Event()
        self.back.set()
        self.sent: list[str] = []
        self.outage = Outage(self._complete, retries)

    async def _complete(self, request: str) -> ChatCompletion:
        self.sent.append(request)
        if not self.back.is_set():
            self.tried.set()
            raise UnreachableError("refused")
        if request == "too expensive":
            raise BudgetError("0.1 dollars are spent")
        return COMPLETION

    async def begin(self, *requests: str) -> list[asyncio.Task[ChatCompletion]]:
        """The service goes away; the first of these requests is retried, and the others wait."""
        await self.outage.complete("before")
        self.back.clear()
        tasks = [asyncio.create_task(self.outage.complete(each)) for each in requests]
        await self.tried.wait()
        return tasks


async def ends(task: "asyncio.Task[ChatCompletion]") -> ChatCompletion:
    return await asyncio.wait_for(task, PATIENCE)


def test_a_request_that_is_cancelled_while_it_is_retried_leaves_the_others_to_be_sent():
    async def play() -> None:
        service = Away(Retries(4, 1e9))
        retried, waiting = await service.begin("retried", "waiting")
        service.back.set()
        retried.cancel()
        assert await ends(waiting) is COMPLETION
        assert service.sent == ["before", "retried", "waiting"]
        assert not service.outage.lasts

    asyncio.run(play())


def test_a_retry_that_fails_by_itself_leaves_the_others_to_be_sent():
    async def play() -> None:
        service = Away(Retries(4, 0.0))
        retried, waiting = await service.begin("too expensive", "waiting")
        service.back.set()
        with pytest.raises(BudgetError):
            await ends(retried)
        assert await ends(waiting) is COMPLETION

    asyncio.run(play())


def test_an_outage_that_no_retry_ends_is_the_error_of_all_that_wait_and_what_comes_later_is_sent():
    async def play() -> None:
        service = Away(Retries(4, 0.0))
        for task in await service.begin("retried", "waiting"):
            with pytest.raises(UnreachableError, match="refused"):
                await ends(task)
        service.back.set()
        assert await service.outage.complete("later") is COMPLETION
        assert "waiting" not in service.sent

    asyncio.run(play())
