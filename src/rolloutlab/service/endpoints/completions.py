"""What was sampled, in the form that OpenAI's clients read: whole, or in chunks as it comes."""

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rolloutlab.api.wire.chat import (
    AnsweredChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChoiceLogprobs,
    ChunkChoice,
    CompletionMessage,
    Delta,
    FunctionCall,
    FunctionTool,
    FunctionToolCall,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from rolloutlab.policy.decode import Ask, Sampled
from rolloutlab.policy.model import Adapter
from rolloutlab.policy.parsing import CompletionParser
from rolloutlab.policy.rendering import Renderer
from rolloutlab.policy.tool_calls import Call


@dataclass(frozen=True)
class CompletionOptions:
    """A chat request that was understood: what is sampled, under which checkpoint, and how the answer is written.

    ignored: names of fields of the request that have no effect.
    """

    model: str
    step: int
    adapter: Adapter
    asks: tuple[Ask, ...]
    stops: tuple[str, ...] = ()
    tools: tuple[FunctionTool, ...] = ()
    logprobs: bool = True
    with_usage: bool = False
    project: str = ""
    ignored: tuple[str, ...] = ()
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))


class Writer:
    """Writes the answers of one service."""

    def __init__(self, renderer: Renderer, reader: CompletionParser) -> None:
        self._renderer = renderer
        self._reader = reader

    def completion(self, plan: CompletionOptions, rows: Sequence[Sampled]) -> ChatCompletion:
        return ChatCompletion(
            id=plan.id,
            object="chat.completion",
            created=plan.created,
            model=plan.model,
            choices=[self._choice(plan, row) for row in rows],
            usage=usage(rows),
        )

    def opening(self, plan: CompletionOptions) -> ChatCompletionChunk:
        """The first chunk: everyone begins to speak."""
        delta = Delta(role="assistant", content="")
        return _chunk(plan, [ChunkChoice(index=ask.index, delta=delta) for ask in plan.asks])

    def piece(self, plan: CompletionOptions, row: Sampled, position: int, text: str) -> ChatCompletionChunk:
        """A token of a choice, with the text that it settled."""
        entries = [self._entry(row, position)] if plan.logprobs else None
        logprobs = ChoiceLogprobs(content=entries) if entries else None
        return _chunk(plan, [ChunkChoice(index=row.ask.index, delta=Delta(content=text), logprobs=logprobs)])

    def endings(
        self, plan: CompletionOptions, rows: Sequence[Sampled], shown: dict[int, int]
    ) -> Iterator[ChatCompletionChunk]:
        """What the pieces left out of each choice and why it ended, then the counts.

        shown: characters already sent, by index of the choice.
        """
        for row in rows:
            choice = self._choice(plan, row)
            rest = (choice.message.content or "")[shown.get(row.ask.index, 0) :]
            calls = [ToolCallDelta(index=i, **call.to_wire()) for i, call in enumerate(choice.message.tool_calls or [])]
            if rest or calls:
                delta = Delta(**({"content": rest} if rest else {}), **({"tool_calls": calls} if calls else {}))
                yield _chunk(plan, [ChunkChoice(index=choice.index, delta=delta)])
            end = ChunkChoice(
                index=choice.index, delta=Delta(), finish_reason=choice.finish_reason, policy_version=plan.step
            )
            yield _chunk(plan, [end])
        if plan.with_usage:
            yield _chunk(plan, [], usage(rows))

    def _choice(self, plan: CompletionOptions, row: Sampled) -> AnsweredChoice:
        """A Choice; `policy_version` is the checkpoint it was sampled from."""
        text, calls = self._reader.message(row.tokens, plan.stops, row.ask.prompt, plan.tools)
        entries = [self._entry(row, i) for i in range(len(row.tokens))] if plan.logprobs else None
        return AnsweredChoice(
            index=row.ask.index,
            finish_reason="tool_calls" if calls else "stop" if row.finish == "stop" else "length",
            message=_message(text, calls),
            logprobs=ChoiceLogprobs(content=entries) if entries else None,
            policy_version=plan.step,
        )

    def _entry(self, row: Sampled, i: int) -> TokenLogprob:
        text, raw = self._renderer.token(row.tokens[i])
        top = [self._top(*pair) for pair in row.top[i]] if row.top else []
        marked = {"forced": True} if i < len(row.ask.forced) else {}
        return TokenLogprob(
            token=text, logprob=row.logprobs[i], bytes=raw, top_logprobs=top, token_id=row.tokens[i], **marked
        )

    def _top(self, token_id: int, logprob: float) -> TopLogprob:
        text, raw = self._renderer.token(token_id)
        return TopLogprob(token=text, logprob=logprob, bytes=raw, token_id=token_id)


def usage(rows: Sequence[Sampled]) -> Usage:
    """Counts of a request: its prompt counts once, whatever `n` is."""
    made, read = sum(len(row.tokens) for row in rows), len(rows[0].ask.prompt)
    return Usage(prompt_tokens=read, completion_tokens=made, total_tokens=read + made)


def _chunk(plan: CompletionOptions, choices: list[ChunkChoice], counts: Usage | None = None) -> ChatCompletionChunk:
    given = {"usage": counts} if counts else {}
    return ChatCompletionChunk(
        id=plan.id, object="chat.completion.chunk", created=plan.created, model=plan.model, choices=choices, **given
    )


def _message(text: str, calls: Sequence[Call]) -> CompletionMessage:
    if not calls:
        return CompletionMessage(role="assistant", content=text)
    written = [
        FunctionToolCall(
            id=f"call_{uuid.uuid4().hex[:24]}",
            type="function",
            function=FunctionCall(name=call.name, arguments=call.arguments),
        )
        for call in calls
    ]
    return CompletionMessage(role="assistant", tool_calls=written, **({"content": text} if text else {}))
