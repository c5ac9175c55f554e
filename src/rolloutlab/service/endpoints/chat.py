"""POST /v1/chat/completions, GET /v1/models and the usage ledger, compatible with OpenAI's clients."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from rolloutlab import errors
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest, FunctionTool, Usage
from rolloutlab.api.wire.errors import ChatError, ChatProblem
from rolloutlab.api.wire.training import ModelCardList, UsageEntry, UsageList
from rolloutlab.engines.engine import Engine, OnToken
from rolloutlab.errors import ContextError, InputError, RenderingError
from rolloutlab.policy.decode import Completion, CompletionRequest
from rolloutlab.policy.parsing import CompletionParser
from rolloutlab.service.endpoints.body import describe, reads
from rolloutlab.service.endpoints.completion_format import CompletionOptions, Text, Writer, usage
from rolloutlab.service.endpoints.earlier_turns import EarlierTurns
from rolloutlab.service.endpoints.sampling_settings import header, ignored_fields
from rolloutlab.service.model_registry import Registry
from rolloutlab.store.sqlite import Database

_STOPPING = "the service is being stopped"
_EXAMPLE = {"model": "practice", "messages": [{"role": "user", "content": "What is 12 + 30?"}], "max_tokens": 8}
_EVENTS: dict[str, dict[str, str]] = {"text/event-stream": {}}  # a schema here would describe each single event
T = TypeVar("T")
Tokens = tuple[int, ...]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Piece = tuple[Completion, int, Text]
"""A completion, the position of its new token, and the reasoning and content that the token has made final."""
Pieces = asyncio.Queue[Piece | None]
Completions = Future[list[Completion]]


def router(registry: Registry, completer: "Completer", **common: Any) -> APIRouter:
    """Make the router of the OpenAI-compatible endpoints, below /v1. common: options of all its routes."""
    routes = APIRouter(prefix="/v1", tags=["chat"], **common)

    extra: dict[str, Any] = {"responses": {200: {"content": _EVENTS}}, "openapi_extra": describe(ChatRequest, _EXAMPLE)}

    @routes.post("/chat/completions", response_model=ChatCompletion, **extra)
    async def create_chat_completion(
        body: Annotated[ChatRequest, Depends(reads(ChatRequest))],
        request: Request,
        vendor_project: Annotated[str | None, Header()] = None,
        openai_project: Annotated[str | None, Header()] = None,
    ) -> Response:
        options = await run_in_threadpool(completer.prepare, body, vendor_project or openai_project or "")
        headers = header(options.ignored)
        if body.stream:
            headers["Cache-Control"] = "no-cache"
            events = completer.stream(options, *await completer.begin(options))
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)
        text = await completer.complete(options, request.receive)
        return Response(text, media_type="application/json", headers=headers)

    @routes.get("/models", response_model=ModelCardList, response_model_exclude_unset=True)
    async def list_models() -> ModelCardList:
        return ModelCardList(object="list", data=registry.cards())

    return routes


class Ledger:
    """Counts requests and tokens by project and model; chats without a project header count under ''."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, project: str, model: str, counts: Usage) -> None:
        values = (project, model, counts.prompt_tokens, counts.completion_tokens)
        with self._database.write() as connection:
            connection.execute(
                "INSERT INTO usage VALUES (?, ?, 1, ?, ?) ON CONFLICT DO UPDATE SET requests = requests + 1, "
                "prompt_tokens = prompt_tokens + excluded.prompt_tokens, "
                "completion_tokens = completion_tokens + excluded.completion_tokens",
                values,
            )

    def entries(self) -> list[UsageEntry]:
        rows = self._database.read("SELECT * FROM usage ORDER BY project, model")
        return [UsageEntry.model_validate(dict(row)) for row in rows]


def usage_router(ledger: Ledger, **common: Any) -> APIRouter:
    """Make the router of GET /v1/preview/usage: token counts by project and model."""
    routes = APIRouter(prefix="/v1/preview/usage", tags=["chat"], **common)

    @routes.get("")
    def list_usage() -> UsageList:
        return UsageList(object="list", data=ledger.entries())

    return routes


class Completer:
    """Completes chat requests with the checkpoints of one engine."""

    def __init__(self, registry: Registry, engine: Engine, ledger: Ledger) -> None:
        base = engine.base
        self._registry = registry
        self._engine = engine
        self._ledger = ledger
        self._renderer = base.renderer(base.context)
        self._parser = CompletionParser(base.tokenizer, self._renderer, base.end_ids)
        self._writer = Writer(self._renderer, self._parser)
        self._earlier = EarlierTurns(self._renderer.reads)

    def prepare(self, body: ChatRequest, project: str = "") -> CompletionOptions:
        """Resolve the model, render the prompt, check the settings.

        Raises:
            InputError: a setting is not supported.
            ContextError: the prompt is too long.
            NotFoundError: there is no such model or checkpoint.
            RenderingError: the policy cannot render the messages.
        """
        ignored = ignored_fields(body)
        if body.top_logprobs and body.logprobs is False:
            raise InputError("top_logprobs needs logprobs", hint="logprobs: true")
        context = self._registry.base.context
        _check_length(body, context)
        model, step = self._registry.resolve(body.model)
        tools = () if body.tool_choice == "none" else tuple(body.tools or ())
        self._parser.check(tools)
        messages = self._earlier.restore(body.messages)
        prompt = tuple(self._renderer.prompt(messages, tools))
        ignored += tuple(f"messages.{i}.content" for i in self._renderer.find_unread(messages, tools))
        return CompletionOptions(
            model=f"{model.project}/{model.name}@{step}" if model else self._registry.base.name,
            step=step,
            model_id=str(model.id) if model else None,
            requests=tuple(_make_requests(body, prompt, context, self._forced_tokens(body, tools))),
            stops=body.stops(),
            tools=tools,
            logprobs=body.logprobs is not False,
            with_usage=bool(body.stream_options and body.stream_options.include_usage),
            project=project,
            ignored=ignored,
            continues=self._renderer.continues(prompt, messages, tools),
            messages=tuple(messages),
        )

    async def complete(self, options: CompletionOptions, receive: Receive) -> str:
        """Return the whole chat completion as JSON.

        Raises:
            Cancelled: the client disconnected, and decoding stops.
        """
        future = asyncio.wrap_future(await run_in_threadpool(self._sample, options))
        rows = await wait_while_connected(future, receive)
        return await run_in_threadpool(lambda: self._finish(options, rows).to_json())

    async def begin(self, options: CompletionOptions) -> tuple[Pieces, Completions]:
        """Queue the completions of a stream. Errors are those of `Registry.checkpoint`, before a status is sent."""
        pieces: Pieces = asyncio.Queue()
        put = _make_put(pieces)
        future = await run_in_threadpool(self._sample, options, self._make_reader(options, put))
        future.add_done_callback(lambda _: put(None))
        return pieces, future

    async def stream(self, options: CompletionOptions, pieces: Pieces, future: Completions) -> AsyncIterator[str]:
        """Yield the completion as server-sent events, one per token. Decoding stops when the client disconnects."""
        sent = dict.fromkeys((each.index for each in options.requests), (0, 0))
        try:
            yield _event(self._writer.opening(options).to_json())
            while piece := await pieces.get():
                row, _, (reasoning, content) = piece
                reasoned, answered = sent[row.request.index]
                sent[row.request.index] = reasoned + len(reasoning), answered + len(content)
                yield _event(self._writer.piece(options, *piece).to_json())
            rows = future.result()
            await run_in_threadpool(self._finish, options, rows)
            for chunk in self._writer.endings(options, rows, sent):
                yield _event(chunk.to_json())
            yield _event("[DONE]")
        except Exception as error:  # noqa: BLE001 - the status is sent already: an error can only be the last event
            yield _event(_stream_error(error).to_json())
        finally:
            future.cancel()

    def _finish(self, options: CompletionOptions, rows: list[Completion]) -> ChatCompletion:
        """Make the completion, count its tokens and remember its turns. A full disk does not lose the completion."""
        with suppress(errors.LabError):
            self._ledger.add(options.project, options.model, usage(rows))
        completion = self._writer.completion(options, rows)
        self._earlier.add(options.messages, completion.choices)
        return completion

    def _forced_tokens(self, body: ChatRequest, tools: tuple[FunctionTool, ...]) -> Tokens:
        """Return the tokens that `tool_choice` forces the completion to begin with."""
        choice = body.tool_choice
        if choice is None or choice in {"none", "auto"}:
            return ()
        if not tools:
            raise InputError("tool_choice requires a call, and there are no tools", hint="tools: [...]")
        if isinstance(choice, str):
            return self._parser.forced(None)
        name = choice.function.name
        if name not in {tool.function.name for tool in tools}:
            raise InputError(f"tool_choice names {name!r}, which is not among the tools", hint="one of the tools")
        return self._parser.forced(name)

    def _sample(self, options: CompletionOptions, on_token: OnToken | None = None) -> Completions:
        """Queue the completions. Errors are those of `Registry.checkpoint`."""
        if options.model_id is None:
            return self._engine.sample(None, options.requests, on_token)
        with self._registry.checkpoint(options.model_id, options.step) as checkpoint:
            return self._engine.sample(checkpoint, options.requests, on_token)

    def _make_reader(self, options: CompletionOptions, put: Callable[[Piece], None]) -> OnToken:
        """Make a function that calls `put` for every token, with the text that the token has made final."""
        texts = {
            each.index: (
                self._parser.stream(options.stops, options.tools),
                self._parser.reasoning_stream(each.prompt, options.tools),
            )
            for each in options.requests
        }

        def read(row: Completion) -> None:
            text, parts = texts[row.request.index]
            put((row, len(row.tokens) - 1, parts.feed(text.feed(row.tokens[-1]))))

        return read


def _check_length(body: ChatRequest, context: int) -> None:
    """Refuse a request that is too long without rendering it: a message or a tool has at least one token."""
    for name, items in (("messages", body.messages), ("tools", body.tools or ())):
        if len(items) > context:
            raise ContextError(f"{len(items):,} {name} do not fit into the policy's context of {context:,} tokens")


def _make_requests(body: ChatRequest, prompt: Tokens, context: int, forced: Tokens) -> list[CompletionRequest]:
    """Make one request per completion. The seed is random by default."""
    if not prompt:
        raise RenderingError("the chat template renders these messages as nothing", hint="a message with some text")
    room = context - len(prompt)
    if room < 1:
        raise ContextError(f"the prompt has {len(prompt)} tokens and the policy's context {context}", hint="shorten it")
    first = CompletionRequest(
        prompt,
        max_tokens=min(body.max_completion_tokens or body.max_tokens or room, room),
        temperature=body.temperature,
        top_p=body.top_p,
        seed=secrets.randbits(32) if body.seed is None else body.seed,
        top=body.top_logprobs,
        forced=forced,
        stops=body.stops(),
    )
    return [replace(first, index=index) for index in range(body.n)]


async def wait_while_connected(future: "asyncio.Future[T]", receive: Receive) -> T:
    """Return the result of a future. If the client disconnects before, cancel the future and raise Cancelled."""
    disconnected = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        pending: set[asyncio.Future[Any]] = {future, disconnected}
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise errors.Cancelled
        if future.cancelled():
            raise errors.ServiceError(_STOPPING)
        return future.result()
    finally:
        disconnected.cancel()
        future.cancel()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _stream_error(error: Exception) -> ChatProblem:
    """Make the last event of a stream that failed, and log the traceback of a bug."""
    if isinstance(error, errors.RolloutlabError):
        message = error.message
    elif isinstance(error, CancelledError):
        message = _STOPPING
    else:
        message = "the service failed; its log has the details"
        logging.getLogger(__name__).error("a streamed completion failed", exc_info=error)
    return ChatProblem(error=ChatError(message=message, type="server_error"))


def _make_put(queue: Pieces) -> Callable[[Piece | None], None]:
    """Make a thread-safe `put` into the queue, which does nothing once the loop is closed."""
    loop = asyncio.get_running_loop()

    def put(piece: Piece | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: the service is being stopped
            loop.call_soon_threadsafe(queue.put_nowait, piece)

    return put


def _event(data: str) -> str:
    return f"data: {data}\n\n"
