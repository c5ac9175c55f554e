"""The client of a rollout, with which a program calls the policy."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from functools import cached_property
from typing import Any

from pydantic_core import to_json

from rolloutlab.api.answers import parse_answer
from rolloutlab.api.wire.chat import ChatCompletion, ChatCompletionChunk
from rolloutlab.capture.gateway import ENDED, Chunk, Gateway
from rolloutlab.capture.requests import read_object
from rolloutlab.capture.rollout import MODEL, CapturedRollout
from rolloutlab.errors import ConflictError, InputError

Submit = Callable[[Coroutine[Any, Any, ChatCompletion]], "Future[ChatCompletion]"]
"""A function that runs a coroutine on the loop of the gateway."""


class RolloutClient:
    """A program's client for one rollout.

    Use `chat.completions.create` here, or give `base_url`, `api_key` and `model` to any other client. All other
    attributes are those of an `openai.AsyncOpenAI` with this address and key.
    """

    def __init__(self, gateway: Gateway, rollout: CapturedRollout, url: str, submit: Submit) -> None:
        self.base_url = f"{url}/rollouts/{rollout.id}/v1"
        self.api_key = rollout.key
        self.model = MODEL
        self.chat = Chat(gateway, rollout, submit)

    def __repr__(self) -> str:
        return f"RolloutClient(base_url={self.base_url!r}, model={self.model!r})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._openai, name)

    @cached_property
    def _openai(self) -> Any:
        try:
            from openai import AsyncOpenAI
        except ModuleNotFoundError:
            message = "a client has base_url, api_key, model and chat; everything else needs openai"
            raise InputError(message, hint="pip install openai") from None
        return AsyncOpenAI(base_url=self.base_url, api_key=self.api_key)


class Chat:
    """`client.chat`."""

    def __init__(self, gateway: Gateway, rollout: CapturedRollout, submit: Submit) -> None:
        self.completions = ChatCompletions(gateway, rollout, submit)


class ChatCompletions:
    """`client.chat.completions`: calls of the gateway without a connection."""

    def __init__(self, gateway: Gateway, rollout: CapturedRollout, submit: Submit) -> None:
        self._gateway = gateway
        self._rollout = rollout
        self._submit = submit

    async def create(self, **body: Any) -> ChatCompletion | AsyncIterator[ChatCompletionChunk]:
        """Request a chat completion; with `stream=True`, return its chunks.

        body: the fields of OpenAI's request. `model` may be left out. A message may be the `message` of a completion.

        Raises:
            InputError: the request is invalid. ConflictError: the rollout has ended. ServiceError: the service's error.
        """
        try:
            plain = read_object(to_json(body, exclude_none=True))
        except ValueError as error:
            raise InputError(f"the body is not JSON: {error}") from None
        if body.get("stream"):
            return self._chunks(plain)
        try:
            return await asyncio.wrap_future(self._submit(self._gateway.chat(self._rollout, plain)))
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            raise ConflictError(ENDED) from None  # the end of the rollout has cancelled the call, not its caller

    async def _chunks(self, body: dict[str, Any]) -> AsyncIterator[ChatCompletionChunk]:
        loop, chunks = asyncio.get_running_loop(), asyncio.Queue[Chunk | None]()

        def put(chunk: Chunk | None) -> None:
            loop.call_soon_threadsafe(chunks.put_nowait, chunk)

        future = self._submit(self._gateway.chat(self._rollout, body, on_chunk=put))
        future.add_done_callback(lambda _: put(None))
        try:
            while (chunk := await chunks.get()) is not None:
                yield parse_answer(ChatCompletionChunk, chunk)
            if future.cancelled():
                raise ConflictError(ENDED)
            future.result()
        finally:
            future.cancel()
