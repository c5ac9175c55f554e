"""One rollout of a program while it runs: its requests as the service gets them, and its answered calls."""

import copy
import json
import secrets
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import accumulate
from typing import Any

from rolloutlab.api.wire.chat import (
    AssistantMessage,
    ChatCompletion,
    ChatRequest,
    Choice,
    FunctionTool,
    Message,
    MessageOrChoice,
    ToolMessage,
)
from rolloutlab.api.wire.trajectories import History
from rolloutlab.api.wire.turns import as_message, kept, kept_of
from rolloutlab.errors import BudgetError, RolloutlabError


@dataclass
class _Answer:
    """Messages as they were sent to the service, with the answer to them as the last.

    continued: whether a later call of the program continues this answer.
    """

    messages: list[Message]
    continued: bool = False


@dataclass
class EarlierAnswers:
    """The answers that a program has got. They are found by the messages before them.

    Messages are compared only by what frameworks keep. When these send an answer back, most leave out reasoning and
    token ids, turn texts into parts, and write the JSON of arguments anew. Some rename calls.

    It is a tree: each message leads from one node to the next, and a node has the answers to the messages up to it.
    """

    _answers: list[_Answer] = field(default_factory=list)
    _next: "dict[Hashable, EarlierAnswers]" = field(default_factory=dict)

    def add(self, messages: Sequence[Message], choices: Sequence[Choice]) -> None:
        """Add the answers to messages as they were sent to the service."""
        place = self
        for each in kept(messages):
            place = place._step_to(each)
        for choice in choices:
            answer = as_message(choice)
            place._step_to(kept_of(answer))._answers.append(_Answer([*messages, answer]))

    def restore(self, messages: Sequence[Message]) -> list[Message]:
        """Replace the longest known beginning of messages by what was really sent and sampled.

        If several equal answers are known, the first that no call continues yet is taken.
        """
        place, length, answers = self, 0, list[_Answer]()
        for i, each in enumerate(kept(messages), 1):
            following = place._next.get(each)
            if following is None:
                break
            place = following
            if place._answers:
                length, answers = i, place._answers
        if not answers:
            return list(messages)
        answer = next((each for each in answers if not each.continued), answers[0])
        answer.continued = True
        names = _new_names(messages[:length], answer.messages)
        return [*answer.messages, *(_rename(message, names) for message in messages[length:])]

    def _step_to(self, each: Hashable) -> "EarlierAnswers":
        return self._next.setdefault(each, EarlierAnswers())


def _new_names(sent: Sequence[Message], known: Sequence[Message]) -> dict[str, list[str]]:
    """Map the ids that a program uses for calls to the sampled ids. One id may be used for several calls."""
    names: dict[str, list[str]] = {}
    for one, other in zip(sent, known, strict=True):
        if isinstance(one, AssistantMessage) and isinstance(other, AssistantMessage):
            names |= {call.id: [] for call in one.tool_calls or ()}
            for a, b in zip(one.tool_calls or (), other.tool_calls or (), strict=True):
                names[a.id].append(b.id)
    return names


def _rename(message: Message, names: dict[str, list[str]]) -> Message:
    """Give a result the id of its sampled call. Results of calls that share an id are in the order of the calls."""
    if not isinstance(message, ToolMessage) or message.tool_call_id not in names:
        return message
    of_calls = names[message.tool_call_id]
    return message.model_copy(update={"tool_call_id": of_calls.pop(0) if len(of_calls) > 1 else of_calls[0]})


@dataclass(frozen=True)
class Call:
    """One chat completion of a program.

    messages: the messages as they were sent to the service, with the token ids of earlier turns.
    tools: the tools that the policy could call.
    retry: the number of times that the client had sent the request before.
    """

    messages: Sequence[Message]
    choices: Sequence[Choice]
    tools: Sequence[FunctionTool] = ()
    retry: int = 0


@dataclass
class _Turn:
    """One choice of a call, and the choices of the calls that continue it."""

    call: Call
    choice: Choice
    next: "list[_Turn]" = field(default_factory=list)
    trained: bool = False


def make_histories(calls: Sequence[Call]) -> list[History]:
    """Make the conversations of one rollout; the first is the main one.

    A call continues an earlier answer if it has the same tools, and if its messages begin with the messages of that
    answer and the answer itself. Any other call begins a history. Histories branch if several calls continue an answer,
    or if a call has several choices. Each choice is in one history with its logprobs; in other histories its message is
    context. If a client's retry of the same request replaced an answer, that answer is in no history.

    calls: the calls, in the order in which they began.
    """
    roots: dict[bytes, list[_Turn]] = {}
    ends: dict[bytes, list[_Turn]] = {}
    for call in _drop_lost(_digest_calls(calls)):
        turns = [_Turn(call.call, choice) for choice in call.call.choices]
        continued = next((ends[prefix] for prefix in reversed(call.prefixes) if prefix in ends), None)
        if continued:
            parent = next((turn for turn in continued if not turn.next), continued[0])
            parent.next += turns
        else:
            roots.setdefault(call.prefixes[-1], []).extend(turns)
        for turn, end in zip(turns, call.ends, strict=True):
            ends.setdefault(end, []).append(turn)
    return [_make_history(path) for turns in roots.values() for path in _find_paths(turns)]


@dataclass(frozen=True)
class _DigestedCall:
    """A call with digests.

    prefixes: for each message, the digest of the tools and of the messages up to it.
    ends: for each choice, the digest of the tools, of all messages and of the choice. It is a prefix of a call that
        continues the choice.
    """

    call: Call
    prefixes: Sequence[bytes]
    ends: Sequence[bytes]


def _digest_calls(calls: Sequence[Call]) -> list[_DigestedCall]:
    texts: dict[int, bytes] = {}  # by the id of a message: later calls have the same objects again

    def following(digest: bytes, message: Message) -> bytes:
        if id(message) not in texts:
            texts[id(message)] = json.dumps(message.to_wire(), sort_keys=True).encode()
        return sha256(digest + texts[id(message)]).digest()

    digested = []
    for call in calls:
        tools = sha256(json.dumps([tool.to_wire() for tool in call.tools], sort_keys=True).encode()).digest()
        prefixes = list(accumulate(call.messages, following, initial=tools))[1:]
        answers = [as_message(choice) for choice in call.choices]
        ends = [sha256(prefixes[-1] + json.dumps(each.to_wire(), sort_keys=True).encode()).digest() for each in answers]
        digested.append(_DigestedCall(call, prefixes, ends))
    return digested


def _drop_lost(calls: Sequence[_DigestedCall]) -> list[_DigestedCall]:
    """Drop the calls whose answer a retry of the same request replaced and no later call continues."""
    read = {prefix for each in calls for prefix in each.prefixes}
    lost: set[int] = set()
    for i, call in enumerate(calls):
        same = [
            j
            for j in range(i if call.call.retry else 0)
            if j not in lost
            and calls[j].call.retry < call.call.retry
            and calls[j].prefixes[-1] == call.prefixes[-1]
            and not {*calls[j].ends}.difference(call.ends) & read
        ]
        if same:
            lost.add(max(same, key=lambda j: (calls[j].call.retry, j)))
    return [call for i, call in enumerate(calls) if i not in lost]


def _find_paths(turns: Sequence[_Turn]) -> Iterator[list[_Turn]]:
    """Find every path from a first turn to a last one. Choices that are continued come first."""
    waiting = [[turn] for turn in _put_continued_first(turns)[::-1]]
    while waiting:
        path = waiting.pop()
        waiting += [[*path, turn] for turn in _put_continued_first(path[-1].next)[::-1]]
        if not path[-1].next:
            yield path


def _put_continued_first(turns: Sequence[_Turn]) -> list[_Turn]:
    return sorted(turns, key=lambda turn: not turn.next)


def _make_history(path: Sequence[_Turn]) -> History:
    """Make the history of a path. A turn that is in an earlier history is context."""
    items: list[MessageOrChoice] = []
    for turn in path:
        items += turn.call.messages[len(items) :]
        items.append(as_message(turn.choice) if turn.trained else turn.choice)
        turn.trained = True
    tools: Mapping[str, object] = {"tools": list(path[0].call.tools)} if path[0].call.tools else {}
    return History.model_validate({"messages_and_choices": items, **tools})


MODEL = "policy"
"""The name of the policy that programs get. Frameworks would read `lab/practice` as a model of a provider `lab`."""

_SEEDS = 2**32
"""The size of the range of call numbers that one session takes its seeds from."""


@dataclass(frozen=True)
class CallSettings:
    """The settings of calls that the program does not decide.

    model: the policy's name. fixed: fields that replace those of each request. seed_of: returns the seed of a call by
    the number of the call, from 0.
    """

    model: str
    fixed: Mapping[str, Any]
    seed_of: Callable[[int], int]


@dataclass(frozen=True)
class UnansweredCall:
    """A call without an answer yet.

    request: the request as it is sent to the service.
    number: the number of the call in its rollout, from 0.
    sent: the request of the client.
    tries: the number of times that the client has sent it before.
    retry: as of `Call`, but 0 if no earlier try had an answer.
    """

    request: ChatRequest
    number: int
    sent: ChatRequest
    tries: int
    retry: int


class CapturedRollout:
    """The calls of one rollout.

    id: the part of the address that names the rollout.
    key: the API key of the rollout.
    cut_off: whether the last call got no answer.
    failure: the error that the service gave instead, if any.
    over_budget: the error of a call that a budget did not allow, whatever was answered after it.
    notes: lines on answers that came and are not kept.
    surplus: the number of choices that were not requested.
    completions: the answers, in the order in which they came.
    by_session: whether the program runs many samples, and names the session of each call.
    sessions: these sessions by name.
    """

    def __init__(self, settings: CallSettings, *, by_session: bool = False) -> None:
        self.by_session = by_session
        self.sessions: dict[str, CapturedRollout] = {}
        self.id, self.key = secrets.token_urlsafe(24), f"rollout-{secrets.token_urlsafe(32)}"
        self.failure: RolloutlabError | None = None
        self.over_budget: BudgetError | None = None
        self.cut_off = False
        self.notes: list[str] = []
        self.surplus = 0
        self.completions: list[ChatCompletion] = []
        self.sampling: dict[str, float] = {}
        """Temperature and top_p, each from the first call in which it is not 1."""
        self._settings = settings
        self._earlier = EarlierAnswers()
        self._calls: dict[int, Call] = {}
        self._begun = 0
        self._unanswered: dict[tuple[bytes, int], list[int]] = {}
        """The `retry` of each try that got no answer, by its request and the number of the try."""

    def open_session(self) -> "CapturedRollout":
        """Make the rollout of one more session, with the same settings and other seeds."""
        seed_of, first = self._settings.seed_of, _SEEDS * (1 + len(self.sessions))
        return CapturedRollout(replace(self._settings, seed_of=lambda number: seed_of(first + number)))

    def snapshot(self) -> "CapturedRollout":
        """Copy what has been sampled so far. Later calls do not change the copy, so another thread can read it."""
        now = copy.copy(self)
        now._calls, now.completions, now.sampling = dict(self._calls), list(self.completions), dict(self.sampling)
        now.notes = list(self.notes)
        return now

    def begin(self, body: ChatRequest, tries: int = 0) -> UnansweredCall:
        """Begin a call, and prepare its request for the service.

        tries: the number of times that the client has sent it before.
        """
        number = self._begun
        self._begun += 1
        before = self._unanswered.get((_digest(body), tries - 1)) if tries else None
        retry = before.pop() if before else tries  # after a try without an answer there is none to replace
        return UnansweredCall(self._request(body, number), number, body, tries, retry)

    def _request(self, body: ChatRequest, number: int) -> ChatRequest:
        fixed = dict(self._settings.fixed)
        if body.max_completion_tokens and "max_tokens" in fixed:
            fixed["max_completion_tokens"] = fixed.pop("max_tokens")
        # the program's own seed only selects another seed: it is the same in each rollout, whose answers must differ
        seed = self._settings.seed_of(number if body.seed is None else -1 - body.seed)
        own = {"model": self._settings.model, "seed": seed, "logprobs": True, **fixed}
        return body.model_copy(update={**own, "messages": self._earlier.restore(body.messages)})

    def record_answer(self, call: UnansweredCall, completion: ChatCompletion) -> None:
        """Record the answer to a call."""
        request = call.request
        tools = () if request.tool_choice == "none" else tuple(request.tools or ())
        self._earlier.add(request.messages, completion.choices)
        self._calls[call.number] = Call(request.messages, completion.choices, tools, call.retry)
        for name in ("temperature", "top_p"):
            if getattr(request, name) != 1:
                self.sampling.setdefault(name, getattr(request, name))
        self.completions.append(completion)
        self.failure, self.cut_off = None, False

    def record_failure(self, call: UnansweredCall, error: RolloutlabError | None = None) -> None:
        """Record that a call has no answer. error: the error of the service; None if the call was cancelled."""
        self._unanswered.setdefault((_digest(call.sent), call.tries), []).append(call.retry)
        self.failure, self.cut_off = error or self.failure, True
        self.over_budget = error if isinstance(error, BudgetError) else self.over_budget

    def histories(self) -> list[History]:
        """Return what was sampled, as `make_histories` does."""
        return make_histories([call for _, call in sorted(self._calls.items())])


def _digest(request: ChatRequest) -> bytes:
    return sha256(request.to_json().encode()).digest()
