"""POST /v1/preview/logprobs: logprobs of existing conversations under a checkpoint."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Request

from rolloutlab.api.wire import chat as wire
from rolloutlab.api.wire.chat import AssistantMessage, Choice, ChoiceLogprobs, MessageOrChoice
from rolloutlab.api.wire.reasoning import FIELDS
from rolloutlab.api.wire.trajectories import History, LogprobsRequest, ScoredHistories, ScoredHistory, ScoredTurn
from rolloutlab.engines.engine import Engine
from rolloutlab.errors import Cancelled, RenderingError
from rolloutlab.policy.rendering import Renderer
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.service.endpoints.body import describe, reads
from rolloutlab.service.endpoints.chat import wait_while_connected
from rolloutlab.service.model_registry import Registry

_RENDERED = {"role", "content", "refusal", "tool_calls", "function_call", *FIELDS}
"""Fields of an assistant message that chat templates read."""


def router(registry: Registry, engine: Engine, **common: Any) -> APIRouter:
    """Make the router of logprobs and token ids of every assistant turn of given histories, under a checkpoint.

    A Choice with logprobs is scored at its sampled tokens. Any other assistant turn is rendered by the policy's chat
    template, and scored at those tokens. So imported conversations become trainable, and for stored ones the logprobs
    show how far the policy has drifted.
    """
    routes = APIRouter(prefix="/v1/preview", tags=["logprobs"], **common)
    base, limiter = engine.base, CapacityLimiter(1)  # requests queue here, without holding a shared thread

    extra = describe(LogprobsRequest)

    @routes.post("/logprobs", response_model=ScoredHistories, response_model_exclude_unset=True, openapi_extra=extra)
    async def create_logprobs(
        body: Annotated[LogprobsRequest, Depends(reads(LogprobsRequest))], request: Request
    ) -> ScoredHistories:
        gone = threading.Event()
        scores = to_thread.run_sync(score, body, gone, limiter=limiter, abandon_on_cancel=True)
        try:
            return await wait_while_connected(asyncio.ensure_future(scores), request.receive)
        finally:
            gone.set()  # else the thread would go on for a client that does not wait any more

    def score(body: LogprobsRequest, gone: threading.Event) -> ScoredHistories:
        def check() -> None:
            if gone.is_set():
                raise Cancelled

        model, step = registry.resolve(body.model)
        renderer = base.renderer(base.context, check)
        named = {f"histories.{i}": history for i, history in enumerate(body.histories)}
        histories = [_Tokenized(history, name, renderer, base.context) for name, history in named.items()]
        sequences = [sequence for each in histories for sequence in each.sequences]
        with registry.checkpoint(str(model.id), step) if model else nullcontext() as checkpoint:
            logprobs = chain.from_iterable(engine.logprobs(checkpoint, sequences))
        data = [ScoredHistory(turns=each.turns(logprobs)) for each in histories]
        name = f"{model.project}/{model.name}@{step}" if model else base.name
        return ScoredHistories(object="list", model=name, data=data)

    return routes


class _Tokenized:
    """A history in which every assistant turn has tokens, and its token sequences."""

    def __init__(self, history: History, name: str, renderer: Renderer, context: int) -> None:
        self._renderer = renderer
        try:
            _check_length(history, context)
            history = _remove_audio(history)
            self._items = [self._add_tokens(history, i) for i in range(len(history.messages_and_choices))]
            self.sequences: list[TokenSequence] = renderer.sequences(
                History(messages_and_choices=self._items, **({"tools": history.tools} if history.tools else {}))
            )
        except RenderingError as error:
            raise RenderingError(f"{name}: {error.message}", hint=error.hint) from error
        if any(each.trained[:1] == b"\1" for each in self.sequences):
            raise RenderingError(f"{name}: its first token has no context", hint="a message before the answer")

    def turns(self, logprobs: Iterator[float]) -> list[ScoredTurn]:
        """Return the turns with the next logprobs, one for each trained token of the sequences."""
        ids = [i for each in self.sequences for i, trained in zip(each.ids, each.trained, strict=True) if trained]
        entries = self._entries(ids, logprobs)
        items = [(i, item.sampled_tokens()) for i, item in enumerate(self._items) if isinstance(item, Choice)]
        scored = [(i, [next(entries) for _ in tokens]) for i, tokens in items if tokens]
        return [ScoredTurn(index=i, logprobs=ChoiceLogprobs(content=content)) for i, content in scored]

    def _entries(self, ids: Sequence[int], logprobs: Iterator[float]) -> Iterator[wire.TokenLogprob]:
        for token_id, logprob in zip(ids, logprobs, strict=False):
            text, raw = self._renderer.token(token_id)
            yield wire.TokenLogprob(token=text, logprob=logprob, bytes=raw, top_logprobs=[], token_id=token_id)

    def _add_tokens(self, history: History, i: int) -> MessageOrChoice:
        """Return the i-th item, an assistant's turn as if it had been sampled."""
        item = history.messages_and_choices[i]
        if isinstance(item, Choice) and item.sampled_tokens():
            return _mark_sampled(item)
        if not isinstance(item, Choice | AssistantMessage):
            return item
        if why := wire.cut_off(item):
            text = f"messages_and_choices.{i}: the answer was cut off ({why}), so its end is not known"
            raise RenderingError(text, hint="leave the conversation out, or sample it with a larger --max-tokens")
        items = history.messages_and_choices[: i + 1]
        before: list[Any] = [each.message if isinstance(each, Choice) else each for each in items]
        ids = self._renderer.answer(before, history.tools)
        entries = [wire.TokenLogprob(token="", logprob=0.0, top_logprobs=[], token_id=token_id) for token_id in ids]
        message = wire.CompletionMessage.model_validate(_keep_rendered_fields(before[-1].to_wire()))
        return Choice(finish_reason="stop", index=0, message=message, logprobs=ChoiceLogprobs(content=entries))


def _check_length(history: History, context: int) -> None:
    """Refuse a history that is too long without rendering it: a message has at least one token."""
    count = len(history.messages_and_choices)
    if count > context:
        raise RenderingError(f"{count:,} messages do not fit into the policy's context of {context:,} tokens")


def _mark_sampled(choice: Choice) -> Choice:
    """Mark the forced tokens of a Choice as sampled, so that they are scored too."""
    entries = [token.model_copy(update={"forced": None}) for token in choice.sampled_tokens()]
    return choice.model_copy(update={"logprobs": ChoiceLogprobs(content=entries)})


def _remove_audio(history: History) -> History:
    """Remove the audio of turns that also have text, which is what is scored."""
    items = [
        item.model_copy(update={"audio": None}) if isinstance(item, AssistantMessage) and item.content else item
        for item in history.messages_and_choices
    ]
    return history.model_copy(update={"messages_and_choices": items})


def _keep_rendered_fields(message: dict[str, Any]) -> dict[str, Any]:
    """Keep the fields of an assistant message that chat templates read, its content as one string."""
    fields = {name: value for name, value in message.items() if name in _RENDERED}
    if isinstance(fields.get("content"), list):
        fields["content"] = "".join(part.get("text", part.get("refusal")) for part in fields["content"])
    return fields
