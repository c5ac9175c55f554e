"""POST /v1/preview/logprobs: what a checkpoint thinks of conversations that exist already."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Request

from rolloutlab.api.wire.chat import (
    AssistantMessage,
    Choice,
    ChoiceLogprobs,
    CompletionMessage,
    MessageOrChoice,
    TokenLogprob,
)
from rolloutlab.api.wire.trajectories import History, LogprobsRequest, ScoredHistories, ScoredHistory, ScoredTurn
from rolloutlab.errors import RenderingError
from rolloutlab.policy.forward import Scorer
from rolloutlab.policy.rendering import Renderer, TokenSequence
from rolloutlab.service.endpoints.body import describe, reads
from rolloutlab.service.endpoints.completer import while_connected
from rolloutlab.service.model_registry import Registry

_SAID = {"role", "content", "refusal", "tool_calls", "function_call"}


def router(registry: Registry, scorer: Scorer) -> APIRouter:
    """Logprobs and token ids of every assistant turn of given histories, under a checkpoint.

    A Choice with logprobs is scored at the very tokens that were sampled; other assistant turns at the tokens with
    which the policy's chat template writes them. Imported conversations get what training needs, stored ones how much
    their logprobs have changed.
    """
    routes = APIRouter(prefix="/v1/preview", tags=["logprobs"])
    policy, alone = registry.policy, CapacityLimiter(1)  # waiting for one's turn must not take threads from others
    renderer = Renderer(policy.tokenizer, policy.end_ids, policy.vocabulary, policy.context)

    @routes.post(
        "/logprobs",
        response_model=ScoredHistories,
        response_model_exclude_unset=True,
        openapi_extra=describe(LogprobsRequest),
    )
    async def create_logprobs(
        body: Annotated[LogprobsRequest, Depends(reads(LogprobsRequest))], request: Request
    ) -> ScoredHistories:
        work = to_thread.run_sync(score, body, limiter=alone, abandon_on_cancel=True)
        return await while_connected(asyncio.ensure_future(work), request.receive)

    def score(body: LogprobsRequest) -> ScoredHistories:
        model, step = registry.resolve(body.model)
        spoken = [
            _Spoken(history, f"histories.{i}", renderer, policy.context) for i, history in enumerate(body.histories)
        ]
        found = scorer.logprobs(registry.adapter(model, step), [each.sequence for each in spoken])
        data = [ScoredHistory(turns=each.turns(values)) for each, values in zip(spoken, found, strict=True)]
        name = f"{model.project}/{model.name}@{step}" if model else policy.name
        return ScoredHistories(object="list", model=name, data=data)

    return routes


class _Spoken:
    """A history in which every assistant turn has tokens, and where they are in its sequence."""

    def __init__(self, history: History, name: str, renderer: Renderer, context: int) -> None:
        self._renderer = renderer
        try:
            _check_room(history, context)
            history = _as_text(history)
            self._items = [self._with_tokens(history, i) for i in range(len(history.messages_and_choices))]
            self.sequence: TokenSequence = renderer.sequence(
                History(messages_and_choices=self._items, **({"tools": history.tools} if history.tools else {}))
            )
        except RenderingError as error:
            raise RenderingError(f"{name}: {error.message}", hint=error.hint) from error
        if self.sequence.trained[:1] == b"\1":
            raise RenderingError(f"{name}: nothing comes before its first token", hint="a message before the answer")

    def turns(self, logprobs: Sequence[float]) -> list[ScoredTurn]:
        """The turns with their logprobs, which are those of the sequence's trained tokens in order."""
        ids = [i for i, trained in zip(self.sequence.ids, self.sequence.trained, strict=True) if trained]
        entries = self._entries(ids, logprobs)
        return [
            ScoredTurn(index=i, logprobs=ChoiceLogprobs(content=[next(entries) for _ in item.sampled_tokens()]))
            for i, item in enumerate(self._items)
            if isinstance(item, Choice) and item.sampled_tokens()
        ]

    def _entries(self, ids: Sequence[int], logprobs: Sequence[float]) -> Iterator[TokenLogprob]:
        for token_id, logprob in zip(ids, logprobs, strict=True):
            text, raw = self._renderer.token(token_id)
            yield TokenLogprob(token=text, logprob=logprob, bytes=raw, top_logprobs=[], token_id=token_id)

    def _with_tokens(self, history: History, i: int) -> MessageOrChoice:
        """The i-th item, an assistant's turn as if it had been sampled."""
        item = history.messages_and_choices[i]
        if isinstance(item, Choice) and item.sampled_tokens():
            return _all_scored(item)
        if not isinstance(item, Choice | AssistantMessage):
            return item
        items = history.messages_and_choices[: i + 1]
        before: list[Any] = [each.message if isinstance(each, Choice) else each for each in items]
        ids = self._renderer.answer(before, history.tools)
        entries = [TokenLogprob(token="", logprob=0.0, top_logprobs=[], token_id=token_id) for token_id in ids]
        said = CompletionMessage.model_validate(_as_said(before[-1].to_wire()))
        return Choice(finish_reason="stop", index=0, message=said, logprobs=ChoiceLogprobs(content=entries))


def _check_room(history: History, context: int) -> None:
    """Refuse what is known to be too long without rendering it: a message is at least a token."""
    count = len(history.messages_and_choices)
    if count > context:
        raise RenderingError(f"{count:,} messages are more than the policy's context of {context:,} tokens")


def _all_scored(choice: Choice) -> Choice:
    """The Choice with its forced tokens as if they had been sampled: they too have a logprob."""
    entries = [token.model_copy(update={"forced": None}) for token in choice.sampled_tokens()]
    return choice.model_copy(update={"logprobs": ChoiceLogprobs(content=entries)})


def _as_text(history: History) -> History:
    """The history without the audio of turns whose words are there: it is the words that get logprobs."""
    items = [
        item.model_copy(update={"audio": None}) if isinstance(item, AssistantMessage) and item.content else item
        for item in history.messages_and_choices
    ]
    return history.model_copy(update={"messages_and_choices": items})


def _as_said(message: dict[str, Any]) -> dict[str, Any]:
    """What a chat template reads of an assistant's message, in the form in which models say it."""
    said = {name: value for name, value in message.items() if name in _SAID}
    if isinstance(said.get("content"), list):
        said["content"] = "".join(part.get("text", part.get("refusal")) for part in said["content"])
    return said
