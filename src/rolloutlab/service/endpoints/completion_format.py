"""Sampled tokens as OpenAI's chat completions and chunks."""

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolloutlab.api.wire import chat as wire
from rolloutlab.api.wire.reasoning import UNREAD
from rolloutlab.policy.decode import Completion, CompletionRequest
from rolloutlab.policy.parsing import CompletionParser, ParsedMessage
from rolloutlab.policy.rendering import Renderer

Chunk = wire.ChatCompletionChunk
Text = tuple[str, str]
"""Reasoning and content."""
Sent = tuple[int, int]


@dataclass(frozen=True)
class CompletionOptions:
    """A validated chat request: what to sample, from which checkpoint, and how to write the response.

    Attributes:
        model_id: The id of the model; None for the base policy.
        ignored: The fields of the request that have no effect.
        continues: Whether the prompt begins with the prompt and the sampled tokens of the turn before; None if no
            earlier turn has tokens.
        messages: The messages of the request, with the tokens of sampled turns.
    """

    model: str
    model_id: str | None
    step: int
    requests: tuple[CompletionRequest, ...]
    stops: tuple[str, ...] = ()
    tools: tuple[wire.FunctionTool, ...] = ()
    logprobs: bool = True
    with_usage: bool = False
    project: str = ""
    ignored: tuple[str, ...] = ()
    continues: bool | None = None
    messages: tuple[wire.Message, ...] = ()
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def head(self) -> dict[str, Any]:
        """Fields that a completion and its chunks share."""
        return {"id": self.id, "created": self.created, "model": self.model}

    @property
    def origin(self) -> dict[str, Any]:
        """Fields of each choice: its checkpoint, and whether it continues the training sequence of the turn before."""
        return {"policy_version": self.step, **({} if self.continues is None else {"continues": self.continues})}


class Writer:
    """Builds completions and their chunks."""

    def __init__(self, renderer: Renderer, parser: CompletionParser) -> None:
        self._renderer = renderer
        self._parser = parser

    def completion(self, options: CompletionOptions, rows: Sequence[Completion]) -> wire.ChatCompletion:
        choices = [self._choice(options, row) for row in rows]
        return wire.ChatCompletion(object="chat.completion", choices=choices, usage=usage(rows), **options.head)

    def opening(self, options: CompletionOptions) -> Chunk:
        """Make the first chunk: the role of every choice."""
        delta = wire.Delta(role="assistant", content="")
        return _chunk(options, [wire.ChunkChoice(index=request.index, delta=delta) for request in options.requests])

    def piece(self, options: CompletionOptions, row: Completion, position: int, text: Text) -> Chunk:
        """Make the chunk of a token, with the text that the token has made final."""
        entries = [self._entry(row, position)] if options.logprobs else None
        logprobs = wire.ChoiceLogprobs(content=entries) if entries else None
        delta = _delta(*text) if text[0] else wire.Delta(content=text[1])
        return _chunk(options, [wire.ChunkChoice(index=row.request.index, delta=delta, logprobs=logprobs)])

    def endings(self, options: CompletionOptions, rows: Sequence[Completion], sent: dict[int, Sent]) -> Iterator[Chunk]:
        """Yield the rest of each choice and its finish reason, then the usage if it was requested.

        sent: the numbers of characters of reasoning and of content that were sent before, by index of the choice.
        """
        for row in rows:
            choice = self._choice(options, row)
            message, (reasoned, answered) = choice.message, sent.get(row.request.index, (0, 0))
            calls = [wire.ToolCallDelta(index=i, **call.to_wire()) for i, call in enumerate(message.tool_calls or [])]
            rest = (message.reasoning_content or "")[reasoned:], (message.content or "")[answered:]
            if any(rest) or calls:
                delta = _delta(*rest, calls)
                yield _chunk(options, [wire.ChunkChoice(index=choice.index, delta=delta)])
            i, reason = choice.index, choice.finish_reason
            unread = {name: value for name, value in (choice.model_extra or {}).items() if name == UNREAD}
            end = wire.ChunkChoice(index=i, delta=wire.Delta(), finish_reason=reason, **options.origin, **unread)
            yield _chunk(options, [end])
        if options.with_usage:
            yield _chunk(options, [], usage(rows))

    def _choice(self, options: CompletionOptions, row: Completion) -> wire.AnsweredChoice:
        parsed = self._parser.message(row.tokens, options.stops, row.request.prompt, options.tools)
        entries = [self._entry(row, i) for i in range(len(row.tokens))] if options.logprobs else None
        return wire.AnsweredChoice(
            index=row.request.index,
            finish_reason="tool_calls" if parsed.calls else "stop" if row.finish == "stop" else "length",
            message=_message(parsed),
            logprobs=wire.ChoiceLogprobs(content=entries) if entries else None,
            **options.origin,
            **self._unread(row, parsed),
        )

    def _unread(self, row: Completion, parsed: ParsedMessage) -> dict[str, str]:
        """Return the field with the mark of reasoning that was not read, and so is part of the content; or no field."""
        mark = "" if parsed.reasoning else self._parser.unread_reasoning(row.tokens)
        return {UNREAD: mark} if mark else {}

    def _entry(self, row: Completion, i: int) -> wire.TokenLogprob:
        text, raw = self._renderer.token(row.tokens[i])
        top = [self._top(*pair) for pair in row.top[i]] if row.top else []
        forced = {"forced": True} if i < len(row.request.forced) else {}
        logprob, token_id = row.logprobs[i], row.tokens[i]
        return wire.TokenLogprob(token=text, logprob=logprob, bytes=raw, top_logprobs=top, token_id=token_id, **forced)

    def _top(self, token_id: int, logprob: float) -> wire.TopLogprob:
        text, raw = self._renderer.token(token_id)
        return wire.TopLogprob(token=text, logprob=logprob, bytes=raw, token_id=token_id)


def usage(rows: Sequence[Completion]) -> wire.Usage:
    """Count the tokens of a request. The prompt counts once, whatever `n` is."""
    completion, prompt = sum(len(row.tokens) for row in rows), len(rows[0].request.prompt)
    return wire.Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


def _chunk(options: CompletionOptions, choices: list[wire.ChunkChoice], counts: wire.Usage | None = None) -> Chunk:
    used = {"usage": counts} if counts else {}
    return Chunk(object="chat.completion.chunk", choices=choices, **options.head, **used)


def _delta(reasoning: str, content: str, calls: Sequence[wire.ToolCallDelta] = ()) -> wire.Delta:
    parts = {"reasoning_content": reasoning, "content": content, "tool_calls": list(calls)}
    return wire.Delta.model_validate({name: part for name, part in parts.items() if part})


def _message(parsed: ParsedMessage) -> wire.CompletionMessage:
    reasoning = {"reasoning_content": parsed.reasoning} if parsed.reasoning else {}
    if not parsed.calls:
        return wire.CompletionMessage(role="assistant", content=parsed.content, **reasoning)
    functions = [wire.FunctionCall(name=call.name, arguments=call.arguments) for call in parsed.calls]
    tool_calls = [
        wire.FunctionToolCall(id=f"call_{uuid.uuid4().hex[:24]}", type="function", function=each) for each in functions
    ]
    content = {"content": parsed.content} if parsed.content else {}
    return wire.CompletionMessage(role="assistant", tool_calls=tool_calls, **content, **reasoning)
