"""A chat request from its parsed body to its answer: plan it, have it sampled, write what comes."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

from rolloutlab.api.wire.chat import ChatRequest, FunctionTool
from rolloutlab.api.wire.errors import ChatError, ChatProblem
from rolloutlab.errors import (
    Cancelled,
    ContextError,
    InputError,
    LabError,
    RenderingError,
    RolloutlabError,
    ServiceError,
)
from rolloutlab.policy.decode import Ask, Finish, Sampled
from rolloutlab.policy.parsing import CompletionParser
from rolloutlab.policy.rendering import Renderer
from rolloutlab.policy.sampler import Sampler
from rolloutlab.service.endpoints.completions import CompletionOptions, Writer, usage
from rolloutlab.service.endpoints.sampling_settings import ignored
from rolloutlab.service.model_registry import Registry
from rolloutlab.service.usage import Ledger

_STOPPING = "the service is being stopped"

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Piece = tuple[Sampled, int, str]
"""A row, the position of a new token in it, and the text that the token settled."""


class Completer:
    """Answers chat requests with one policy's checkpoints."""

    def __init__(self, registry: Registry, sampler: Sampler, ledger: Ledger) -> None:
        policy = registry.policy
        self._registry = registry
        self._sampler = sampler
        self._ledger = ledger
        self._renderer = Renderer(policy.tokenizer, policy.end_ids, policy.vocabulary, policy.context)
        self._reader = CompletionParser(policy.tokenizer, self._renderer, policy.end_ids)
        self._writer = Writer(self._renderer, self._reader)

    def plan(self, body: ChatRequest, project: str = "") -> CompletionOptions:
        """What a request asks for.

        Raises:
            InputError: it asks for something that is not offered. ContextError: its prompt is too long.
            NotFoundError: no such model. RenderingError: the policy cannot read its messages.
        """
        without_effect = ignored(body)
        _check_logprobs(body)
        _check_room(body, self._registry.policy.context)
        model, step = self._registry.resolve(body.model)
        tools = () if body.tool_choice == "none" else tuple(body.tools or ())
        self._reader.check(tools)
        prompt = tuple(self._renderer.prompt(body.messages, tools))
        return CompletionOptions(
            model=f"{model.project}/{model.name}@{step}" if model else self._registry.policy.name,
            step=step,
            adapter=self._registry.adapter(model, step),
            asks=tuple(_asks(body, prompt, self._registry.policy.context, self._forced(body, tools))),
            stops=body.stops(),
            tools=tools,
            logprobs=body.logprobs is not False,
            with_usage=bool(body.stream_options and body.stream_options.include_usage),
            project=project,
            ignored=without_effect,
        )

    async def answer(self, plan: CompletionOptions, receive: Receive) -> str:
        """The whole completion as JSON.

        Raises:
            Cancelled: the client went away; decoding stops.
        """
        asks = [self._watched(ask, plan) for ask in plan.asks] if plan.stops else plan.asks
        rows = await while_connected(asyncio.wrap_future(self._sampler.submit(plan.adapter, asks)), receive)
        return await run_in_threadpool(self._written, plan, rows)

    async def stream(self, plan: CompletionOptions) -> AsyncIterator[str]:
        """The completion as server-sent events, one per token; decoding stops when nobody reads on."""
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        put = _from_thread(pieces)
        future = self._sampler.submit(plan.adapter, [self._watched(ask, plan, put) for ask in plan.asks])
        future.add_done_callback(lambda _: put(None))
        shown = dict.fromkeys((ask.index for ask in plan.asks), 0)
        try:
            yield _event(self._writer.opening(plan).to_json())
            while piece := await pieces.get():
                shown[piece[0].ask.index] += len(piece[2])
                yield _event(self._writer.piece(plan, *piece).to_json())
            rows = await run_in_threadpool(self._recorded, plan, future.result())
            for chunk in self._writer.endings(plan, rows, shown):
                yield _event(chunk.to_json())
            yield _event("[DONE]")
        except Exception as error:  # noqa: BLE001 - the answer has begun: what went wrong is its end
            yield _event(_failure(error).to_json())
        finally:
            future.cancel()

    def _written(self, plan: CompletionOptions, rows: list[Sampled]) -> str:
        return self._writer.completion(plan, self._recorded(plan, rows)).to_json()

    def _recorded(self, plan: CompletionOptions, rows: list[Sampled]) -> list[Sampled]:
        """The rows, once counted; an answer is not lost because it cannot be counted."""
        with suppress(LabError):
            self._ledger.add(plan.project, plan.model, usage(rows))
        return rows

    def _forced(self, body: ChatRequest, tools: tuple[FunctionTool, ...]) -> tuple[int, ...]:
        """What the answer is made to begin with; see `Reader.forced`."""
        choice = body.tool_choice
        if choice is None or choice in {"none", "auto"}:
            return ()
        if not tools:
            raise InputError("tool_choice wants a call, and there are no tools", hint="tools: [...]")
        if isinstance(choice, str):
            return self._reader.forced(None)
        name = choice.function.name
        if name not in {tool.function.name for tool in tools}:
            raise InputError(f"tool_choice names {name!r}, which is not among the tools", hint="one of the tools")
        return self._reader.forced(name)

    def _watched(self, ask: Ask, plan: CompletionOptions, put: Callable[[Piece], None] | None = None) -> Ask:
        """The ask, ending at a stop string; `put` gets every token with the text it settled."""
        text = self._reader.stream(plan.stops, plan.tools)

        def watch(row: Sampled) -> Finish | None:
            shown = text.feed(row.tokens[-1])
            if put:
                put((row, len(row.tokens) - 1, shown))
            return "stop" if text.stopped else None

        return replace(ask, watch=watch)


def _check_logprobs(body: ChatRequest) -> None:
    if body.top_logprobs and body.logprobs is False:
        raise InputError("top_logprobs needs logprobs", hint="logprobs: true")


def _check_room(body: ChatRequest, context: int) -> None:
    """Refuse what is known to be too long without rendering it: a message or a tool is at least a token."""
    for name, items in (("messages", body.messages), ("tools", body.tools or ())):
        if len(items) > context:
            raise ContextError(f"{len(items):,} {name} are more than the policy's context of {context:,} tokens")


def _asks(body: ChatRequest, prompt: tuple[int, ...], context: int, forced: tuple[int, ...]) -> list[Ask]:
    """One Ask per completion; without a seed, one is drawn."""
    if not prompt:
        raise RenderingError("the chat template writes nothing for these messages", hint="a message with some text")
    room = context - len(prompt)
    if room < 1:
        raise ContextError(f"the prompt has {len(prompt)} tokens and the policy's context {context}", hint="shorten it")
    first = Ask(
        prompt,
        max_tokens=min(body.max_completion_tokens or body.max_tokens or room, room),
        temperature=body.temperature,
        top_p=body.top_p,
        seed=secrets.randbits(32) if body.seed is None else body.seed,
        top=body.top_logprobs,
        forced=forced,
    )
    return [replace(first, index=index) for index in range(body.n)]


async def while_connected(answer: "asyncio.Future[T]", receive: Receive) -> T:
    """The answer; it is cancelled when the client goes away, and Cancelled raised."""
    gone = asyncio.create_task(_disconnected(receive))
    try:
        pending: set[asyncio.Future[Any]] = {answer, gone}
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise Cancelled
        if answer.cancelled():
            raise ServiceError(_STOPPING)
        return answer.result()
    finally:
        gone.cancel()
        answer.cancel()


def _failure(error: Exception) -> ChatProblem:
    """What a stream says of an error; one that nobody foresaw is in the log."""
    said = _STOPPING if isinstance(error, CancelledError) else "the service failed; its log has the details"
    if isinstance(error, RolloutlabError):
        said = error.message
    elif not isinstance(error, CancelledError):
        logging.getLogger(__name__).error("a streamed completion failed", exc_info=error)
    return ChatProblem(error=ChatError(message=said, type="server_error"))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _from_thread(queue: "asyncio.Queue[Piece | None]") -> Callable[[Piece | None], None]:
    """Puts into the queue from another thread, for as long as the loop runs."""
    loop = asyncio.get_running_loop()

    def put(piece: Piece | None) -> None:
        with suppress(RuntimeError):  # the service is being stopped
            loop.call_soon_threadsafe(queue.put_nowait, piece)

    return put


def _event(data: str) -> str:
    return f"data: {data}\n\n"
