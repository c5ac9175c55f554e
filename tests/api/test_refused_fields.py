"""What a service refuses without a word is tried once, by one of the requests that were refused."""

import asyncio

import pytest

from rolloutlab.api.refused_fields import RefusedFields
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.errors import RefusedError, ServiceError
from rolloutlab.settings import Address

ADDRESS = Address("http://chat.example", "http://chat.example/v1")
REQUEST = ChatRequest(model="any", messages=[{"role": "user", "content": "hello"}], seed=1, max_tokens=9)
COMPLETION = ChatCompletion.model_validate(
    {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "any",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
    }
)


class Wordless:
    """Refuses a seed, or everything, and answers others as long as its gate is open."""

    def __init__(self, *, everything: bool = False) -> None:
        self.everything = everything
        self.sent: list[ChatRequest] = []
        self.gate, self.waits = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: ChatRequest) -> ChatCompletion:
        self.sent.append(request)
        if request.seed or self.everything:
            raise RefusedError("no", status=400)
        self.waits.set()
        await self.gate.wait()
        return COMPLETION


def test_a_session_that_was_closed_in_a_trial_tries_anew_when_it_goes_on():
    fields = RefusedFields()

    async def begin(service: Wordless) -> list[asyncio.Task[ChatCompletion]]:
        tasks = [asyncio.create_task(fields.complete(ADDRESS, REQUEST, service)) for _ in range(2)]
        await service.waits.wait()
        return tasks

    async def go_on() -> list[ChatCompletion]:
        service = Wordless()
        tasks = await begin(service)
        service.gate.set()
        return await asyncio.gather(*tasks)

    asyncio.run(begin(Wordless()))  # with the event loop, its tasks are cancelled
    assert asyncio.run(go_on()) == [COMPLETION, COMPLETION]


def test_a_request_without_such_fields_is_not_tried_and_one_with_them_still_is():
    async def play() -> list[ChatRequest]:
        fields, service = RefusedFields(), Wordless(everything=True)
        service.gate.set()
        with pytest.raises(RefusedError):
            await fields.complete(ADDRESS, REQUEST.model_copy(update={"seed": None}), service)
        assert len(service.sent) == 1
        service.everything = False
        assert await fields.complete(ADDRESS, REQUEST, service) is COMPLETION
        return service.sent

    assert len(asyncio.run(play())) == 1 + 4  # refused, tried without and with its seed, and taken


def test_a_cancelled_request_takes_its_trial_along_and_another_one_tries_anew():
    async def play() -> list[ChatRequest]:
        fields, service = RefusedFields(), Wordless()
        first, second = (asyncio.create_task(fields.complete(ADDRESS, REQUEST, service)) for _ in range(2))
        await service.waits.wait()
        assert len([request for request in service.sent if not request.seed]) == 1  # they share a trial
        first.cancel()
        await asyncio.wait([first])
        service.gate.set()
        assert await second is COMPLETION
        assert first.cancelled()
        assert await fields.complete(ADDRESS, REQUEST, service) is COMPLETION
        return service.sent

    sent = asyncio.run(play())
    assert [request.max_tokens for request in sent if not request.seed] == [1, 1, 9, 9]


def test_a_service_that_is_busy_in_a_trial_has_refused_nothing_and_is_tried_again():
    async def play() -> list[int | None]:
        fields, service = RefusedFields(), Wordless()
        service.gate.set()
        busy = [ServiceError("busy", status=503)]

        async def send(request: ChatRequest) -> ChatCompletion:
            if request.messages != REQUEST.messages and busy:
                raise busy.pop()
            return await service(request)

        with pytest.raises(ServiceError, match="busy"):
            await fields.complete(ADDRESS, REQUEST, send)
        assert fields.notes() == []
        assert await fields.complete(ADDRESS, REQUEST, send) is COMPLETION
        return [request.seed for request in service.sent]

    assert asyncio.run(play())[-1] is None
