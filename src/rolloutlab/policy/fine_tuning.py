"""Supervised fine-tuning: conversations to sequences of which the answers are learned by cross-entropy.

Sampled tokens are learned as they were sampled, other answers as the chat template renders them. The tokens of another
model mean other texts here, or none, so its answers are rendered too.
"""

import hashlib
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from rolloutlab.api.wire.chat import (
    AssistantMessage,
    Choice,
    ChoiceLogprobs,
    CompletionMessage,
    FunctionToolCall,
    MessageOrChoice,
    TokenLogprob,
)
from rolloutlab.api.wire.fine_tuning import MASKS, Conversation, SFTTrainingConfig
from rolloutlab.api.wire.reasoning import CLOSING, OPENING, reasoning_of
from rolloutlab.api.wire.trajectories import History
from rolloutlab.errors import ContextError, RenderingError, TrainingError
from rolloutlab.objective.advantages import Reason
from rolloutlab.objective.option_docs import LARGE_POLICY_SFT_RATE, rate_warnings
from rolloutlab.objective.options import Options
from rolloutlab.objective.preflight import count
from rolloutlab.objective.steps import TINY
from rolloutlab.policy.base import Base
from rolloutlab.policy.messages import content_of
from rolloutlab.policy.rendering import Renderer
from rolloutlab.policy.steps import Step, TrainingSequence
from rolloutlab.policy.task import Callbacks, Task, seed_of
from rolloutlab.policy.token_sequence import TokenSequence

_REPORTED = (
    "loss", "entropy", "grad_norm", "kl_base", "learning_rate",
    "row_tokens", "num_trajectories", "num_trainable_tokens",
)  # fmt: skip
"""Numbers of a gradient step that mean something here: there is no policy that sampled, and no reward."""


Batch = list[list[TokenSequence]]
"""Conversations of a step, each with its sequences."""
_FEW_ANSWERS = 4
"""A conversation with more answers is rendered once for all of them, if that gives the same tokens."""
_TEXT_FIELDS = {"role", "content", "name", *MASKS}
_LEARNED = TokenLogprob.model_construct(token="", logprob=0.0, top_logprobs=[])
"""An entry for a token that is learned and was not sampled: its logprob is not known."""


@dataclass(frozen=True)
class ReadConversations:
    """Conversations without their texts: about nine bytes per token.

    sequences: those of each conversation that is learned from. number: how many conversations were read. skipped: names
    of the conversations that are not learned from, by reason. unreadable: names of unreadable ones, by error. digest:
    SHA-256 of all conversations.
    """

    sequences: list[list[TokenSequence]]
    number: int
    skipped: dict[Reason, list[str]]
    unreadable: dict[str, list[str]]
    warnings: list[str]
    digest: bytes

    @property
    def tokens(self) -> int:
        """How many tokens are learned."""
        return sum(sequence.trainable for sequences in self.sequences for sequence in sequences)

    def steps(self, base: Base, batch_size: int | None = None) -> list[Step]:
        """Cut the conversations, in order, into steps of `batch_size`; the last step has the rest.

        Without `batch_size`, a step has as many conversations as fit into the policy's batch, but at least as many as a
        job's step has groups. A step of one long conversation would move the weights as far as any other step.
        """
        return [
            _make_step(each)
            for each in (self._fill_batches(base) if batch_size is None else self._cut_batches(batch_size))
        ]

    def _cut_batches(self, batch_size: int) -> list[Batch]:
        remaining = iter(self.sequences)
        return list(iter(lambda: list(islice(remaining, batch_size)), []))

    def _fill_batches(self, base: Base) -> list[Batch]:
        batches: list[Batch] = []
        room = 0
        for sequences in self.sequences:
            tokens = sum(map(len, sequences))
            if not batches or (tokens > room and len(batches[-1]) >= base.groups_per_step):
                batches.append([])
                room = base.batch_tokens
            batches[-1].append(sequences)
            room -= tokens
        if len(batches) > 1 and len(batches[-1]) < base.groups_per_step:
            batches[-2:] = [batches[-2] + batches[-1]]
        return batches


def _make_step(batch: Batch) -> Step:
    # advantage and weight 1 make the loss the mean negative logprob of the trained tokens
    learned = [TrainingSequence(each, 1.0, 1.0) for each in chain.from_iterable(batch)]
    return Step(learned, sum(each.tokens.trainable for each in learned) + TINY, len(batch))


def read_conversations(
    conversations: Iterable[tuple[str, Conversation]],
    base: Base,
    progress: Callable[[int], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> ReadConversations:
    """Read named conversations once, in order, into sequences.

    progress: called after each conversation with their number so far. check: called often, also within a conversation;
    what it raises ends the work.
    """
    renderer = base.renderer(base.context, check)
    digest, number = hashlib.sha256(), 0
    read = ReadConversations([], 0, {}, {}, [], b"")
    foreign: dict[str, None] = {}
    for number, (name, conversation) in enumerate(conversations, start=1):
        digest.update(conversation.to_json().encode())
        try:
            items = _drop_foreign_tokens(conversation.messages, renderer)
            foreign |= {} if items == conversation.messages else {name: None}
            sequences = [
                each for each in _make_sequences(conversation, items, renderer, base.context) if each.trainable
            ]
            fitting = [sequence for sequence in sequences if len(sequence) <= base.context]
            reason = Reason.TOO_LONG if sequences else Reason.NO_ANSWER
        except ContextError:
            fitting, reason = [], Reason.TOO_LONG
        except RenderingError as error:
            fitting, reason = [], Reason.UNREADABLE
            read.unreadable.setdefault(error.message, []).append(name)
        if not fitting:
            read.skipped.setdefault(reason, []).append(name)
        else:
            read.sequences.append(fitting)
            if len(fitting) < len(sequences):
                read.warnings.append(f"{name}: a part longer than the policy's context is left out")
        progress(number)
    if foreign:
        what = f"{count(len(foreign), 'conversation')} with tokens of another model ({next(iter(foreign))})"
        read.warnings.insert(0, f"{what}: learned from the text of the answers")
    return replace(read, number=number, digest=digest.digest())


def _drop_foreign_tokens(items: Sequence[MessageOrChoice], renderer: Renderer) -> list[MessageOrChoice]:
    """Return the items, with Choices of another model's tokens stripped of these."""
    return [
        item.model_copy(update={"logprobs": None})
        if isinstance(item, Choice) and item.sampled_tokens() and not renderer.has_own_tokens(item)
        else item
        for item in items
    ]


def _make_sequences(
    conversation: Conversation, items: Sequence[MessageOrChoice], renderer: Renderer, context: int
) -> Iterator[TokenSequence]:
    """Make the sequences in which the answers are trained. Their logprobs are NaN, because none are known."""
    if len(items) > context:  # a message has at least one token
        raise ContextError(f"{len(items):,} messages")
    tools, answers = conversation.all_tools(), set(conversation.answers())
    for i in sorted(answers):
        item = items[i]
        if (why := conversation.cut_off(i)) and not (isinstance(item, Choice) and item.sampled_tokens()):
            raise RenderingError(f"messages.{i}: the answer was cut off ({why}), so its end is not known")
    if once := _render_once(items, sorted(answers), renderer, tools):
        yield once
        return
    learned = [_add_tokens(items, i, renderer, tools) if i in answers else item for i, item in enumerate(items)]
    history = History.model_construct(messages_and_choices=learned, tools=tools)
    for sequence in renderer.sequences(history):
        if sequence.trained[:1] == b"\1":
            raise RenderingError("messages: the first answer has no context")
        yield replace(sequence, logprobs=array("f", [math.nan]) * len(sequence))


def _render_once(
    items: Sequence[MessageOrChoice], answers: Sequence[int], renderer: Renderer, tools: Any
) -> TokenSequence | None:
    """Make the sequence of alternating texts from one rendering of them all, not from some for each answer.

    That requires a template that renders each beginning of the conversation alike. This is checked at answer 0, at each
    power of two and at the last answer, by the functions that render answers one by one. Return None if the check
    fails, or if the conversation has reasoning, calls or other parts that a template may treat specially.
    """
    if len(answers) <= _FEW_ANSWERS or not _are_alternating_texts(items):
        return None
    messages: list[Any] = list(items[: answers[-1] + 1])
    try:
        turns = renderer.render_at_once(messages, answers, tools)
        if turns is None:
            return None
        sequence, last = TokenSequence(), len(answers) - 1
        for n, (i, (context, ids)) in enumerate(zip(answers, turns, strict=True)):
            sequence.extend(context, (), ())
            if n in {0, last} or n & (n - 1) == 0:
                same_prompt = renderer.prompt(messages[:i], tools) == list(sequence.ids)
                if not same_prompt or renderer.answer(messages[: i + 1], tools) != ids:
                    return None
            sequence.extend((), ids, [_LEARNED] * len(ids))
            messages[i] = messages[i].model_copy(update={"token_ids": ids})
    except RenderingError:
        return None
    return replace(sequence, logprobs=array("f", [math.nan]) * len(sequence))


def _are_alternating_texts(items: Sequence[MessageOrChoice]) -> bool:
    """Whether items are questions and answers in turn, after at most one system message, of nothing but text."""
    if any(isinstance(item, Choice) for item in items):
        return False
    messages = [item.to_wire() for item in items]
    roles = [message["role"] for message in messages]
    turns = roles[1:] if roles[0] == "system" else roles
    return all(role == ("user", "assistant")[n % 2] for n, role in enumerate(turns)) and all(
        message.keys() <= _TEXT_FIELDS
        and isinstance(content := message.get("content"), str)
        and OPENING not in content
        and CLOSING not in content
        and content == content.strip()
        for message in messages
    )


def _add_tokens(items: Sequence[MessageOrChoice], i: int, renderer: Renderer, tools: Any) -> Choice:
    """Return the answer `i` as a Choice with tokens: those that were sampled, or those that the template renders."""
    item = items[i]
    if isinstance(item, Choice) and item.sampled_tokens():
        return item
    before: list[Any] = [each.message if isinstance(each, Choice) else each for each in items[: i + 1]]
    if any(map(renderer.ends_within, _texts(before[-1]))):
        raise RenderingError(f"messages.{i}: the text of the answer has the policy's end of a turn in it")
    tokens = [
        TokenLogprob.model_construct(token="", logprob=0.0, top_logprobs=[], token_id=token_id)
        for token_id in renderer.answer(before, tools)
    ]
    logprobs = ChoiceLogprobs.model_construct(content=tokens)
    return Choice.model_construct(finish_reason="stop", index=0, message=before[-1], logprobs=logprobs)


def _texts(message: AssistantMessage | CompletionMessage) -> list[str]:
    """Return the texts of an answer that are learned: content, reasoning, and the arguments of calls."""
    calls = [call.function.arguments for call in message.tool_calls or () if isinstance(call, FunctionToolCall)]
    return [content_of(message), reasoning_of(message.to_wire(), "")[0], *calls]


def read_fine_tuning(
    base: Base,
    conversations: Iterable[tuple[str, Conversation]],
    config: SFTTrainingConfig | None,
    step: int,
    callbacks: Callbacks,
) -> Task:
    """Read a job of fine-tuning: the loss of a step is the mean negative logprob of its trained tokens.

    Args:
        base: The base model.
        conversations: The conversations, each with its place.
        config: The options; None takes the defaults.
        step: The number of the checkpoint that the job starts from.
        callbacks: Called with the events of the job.

    Raises:
        TrainingError: there are fewer learning rates than steps.
        Cancelled: as in `read_task`.
    """
    config, report = config or SFTTrainingConfig(), callbacks.report
    read = read_conversations(conversations, base, callbacks.beat, callbacks.raise_if_cancelled)
    steps = read.steps(base, config.batch_size)
    rates = _rates(config, base, len(steps))
    report("training_started", {"num_sequences": len(steps), "learning_rate": rates[0] if rates else 0.0, "step": step})
    warnings = rate_warnings(max(rates, default=0.0), default_rate(base))
    report("preflight", {**_preflight_data(read, config), "warnings": [*read.warnings, *warnings]})
    constant = {"num_trajectories": float(len(read.sequences)), "num_trainable_tokens": float(read.tokens)}
    return Task(steps, rates, Options(), seed_of(read.digest, config, step), constant, frozenset(_REPORTED))


def default_rate(base: Base) -> float:
    """Return the learning rate of a fine-tuning job without the option."""
    return max(base.learning_rate, LARGE_POLICY_SFT_RATE)


def _rates(config: SFTTrainingConfig, base: Base, steps: int) -> list[float]:
    """Return the learning rate of each step. Raises TrainingError if the option has fewer than there are steps."""
    given = default_rate(base) if config.learning_rate is None else config.learning_rate
    if not isinstance(given, list):
        return [given] * steps
    if lack := config.lacks_rates(steps):
        raise TrainingError(lack, hint=f"learning_rate: one number, or {steps} of them")
    return given[:steps]


def _preflight_data(read: ReadConversations, config: SFTTrainingConfig) -> dict[str, object]:
    return {
        "trajectories": read.number,
        "trainable_trajectories": len(read.sequences),
        "trainable_tokens": read.tokens,
        "reasons": {str(reason): len(names) for reason, names in read.skipped.items()},
        "skipped": {str(reason): names for reason, names in read.skipped.items()},
        "unreadable": read.unreadable,
        "unknown_options": sorted(config.model_extra or {}),
    }
