"""POST /v1/chat/completions and GET /v1/models, in the form that OpenAI's clients read."""

import asyncio
import secrets
import time
import uuid
from concurrent.futures import Future
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from rolloutlab.errors import Cancelled, InputError
from rolloutlab.policy.decode import Ask, Sampled
from rolloutlab.policy.rendering import Renderer
from rolloutlab.policy.sampler import Sampler
from rolloutlab.service.body import StrictRoute
from rolloutlab.service.registry import Registry
from rolloutlab.wire.chat import (
    ChatCompletion,
    ChatRequest,
    Choice,
    ChoiceLogprobs,
    CompletionMessage,
    TokenLogprob,
    Usage,
)
from rolloutlab.wire.training import ModelCard, ModelCardList

_NOT_OFFERED = (
    "frequency_penalty",
    "functions",
    "logit_bias",
    "presence_penalty",
    "response_format",
    "stop",
    "stream",
    "tool_choice",
    "tools",
    "top_logprobs",
)


def router(registry: Registry, sampler: Sampler) -> APIRouter:
    """The inference half of the service; its base address ends in /v1."""
    routes = APIRouter(route_class=StrictRoute, prefix="/v1", tags=["chat"])
    renderer = Renderer(registry.policy.tokenizer, registry.policy.end_ids)

    @routes.post("/chat/completions", response_model=ChatCompletion, response_model_exclude_unset=True)
    async def create_chat_completion(body: ChatRequest, request: Request) -> ChatCompletion:
        _check_offered(body)
        model, step = registry.resolve(body.model)
        prompt = await run_in_threadpool(renderer.prompt, body.messages)
        asks = _asks(body, tuple(prompt), registry.policy.context)
        adapter = await run_in_threadpool(registry.adapter, model, step)
        rows = await _answered(sampler.submit((model and model.id, step), adapter, asks), request)
        name = f"{model.project}/{model.name}@{step}" if model else registry.policy.name
        return _completion(name, step, body, rows, renderer)

    @routes.get("/models", response_model=ModelCardList)
    async def list_models() -> ModelCardList:
        names = [registry.policy.name, *(f"{m.project}/{m.name}" for m in registry.models())]
        cards = [ModelCard(id=name, object="model", created=0, owned_by="rolloutlab") for name in names]
        return ModelCardList(object="list", data=cards)

    return routes


def _check_offered(body: ChatRequest) -> None:
    if not body.messages:
        raise InputError("messages is empty", hint="at least one message")
    for name in _NOT_OFFERED:
        if (body.model_extra or {}).get(name):
            raise InputError(f"{name} is not offered by this service", hint=f"leave {name} out")


def _asks(body: ChatRequest, prompt: tuple[int, ...], context: int) -> list[Ask]:
    """One Ask per completion; without a seed, one is drawn."""
    room = context - len(prompt)
    if room < 1:
        raise InputError(f"the prompt has {len(prompt)} tokens and the policy's context {context}", hint="shorten it")
    seed = secrets.randbits(32) if body.seed is None else body.seed
    max_tokens = min(body.max_completion_tokens or body.max_tokens or room, room)
    return [Ask(prompt, max_tokens, body.temperature, body.top_p, seed, index) for index in range(body.n)]


async def _answered(future: "Future[list[Sampled]]", request: Request) -> list[Sampled]:
    """The sampled completions; their decoding stops when the client goes away."""
    answer = asyncio.wrap_future(future)
    gone = asyncio.create_task(_disconnected(request))
    try:
        pending: set[asyncio.Future[Any]] = {answer, gone}
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise Cancelled
        return answer.result()
    finally:
        gone.cancel()
        answer.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _completion(name: str, step: int, body: ChatRequest, rows: list[Sampled], renderer: Renderer) -> ChatCompletion:
    made = sum(len(row.tokens) for row in rows)
    read = len(rows[0].ask.prompt)
    with_logprobs = body.logprobs is not False
    return ChatCompletion(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        object="chat.completion",
        created=int(time.time()),
        model=name,
        choices=[_choice(row, step, renderer, with_logprobs) for row in rows],
        usage=Usage(prompt_tokens=read, completion_tokens=made, total_tokens=read + made),
    )


def _choice(row: Sampled, step: int, renderer: Renderer, with_logprobs: bool) -> Choice:
    """A Choice; `policy_version` is the checkpoint it was sampled from."""
    entries = (
        [_entry(*pair, renderer) for pair in zip(row.tokens, row.logprobs, strict=True)] if with_logprobs else None
    )
    return Choice(
        index=row.ask.index,
        finish_reason="stop" if row.finish == "stop" else "length",
        message=CompletionMessage(role="assistant", content=renderer.text(row.tokens)),
        logprobs=ChoiceLogprobs(content=entries) if entries else None,
        policy_version=step,
    )


def _entry(token_id: int, logprob: float, renderer: Renderer) -> TokenLogprob:
    text, raw = renderer.token(token_id)
    return TokenLogprob(token=text, logprob=logprob, bytes=raw, top_logprobs=[], token_id=token_id)
