"""Histories of captured calls: which chat completions of a program continue which."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate

from rolloutlab.api.wire.chat import Choice, FunctionTool, Message, MessageOrChoice
from rolloutlab.api.wire.trajectories import History
from rolloutlab.api.wire.turns import as_message


@dataclass(frozen=True)
class Call:
    """One chat completion of a program.

    messages: as they were sent to the service, with the token ids of earlier turns. tools: that the policy could call.
    retry: how often the client had sent the request before.
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


def histories(calls: Sequence[Call]) -> list[History]:
    """The conversations of one rollout, from its calls in the order in which they began; the first is the main one.

    A call continues the answer that its messages begin with, after the same messages and with the same tools; any other
    call begins a history. An answer that several calls continue, or with `n` other answers, is where histories branch.
    Each choice is in one history with its logprobs; in the others its message is context. An answer that a client's
    retry of the same request replaced is in none.
    """
    roots: dict[bytes, list[_Turn]] = {}
    ends: dict[bytes, list[_Turn]] = {}
    for call in _without_lost(_digested(calls)):
        turns = [_Turn(call.call, choice) for choice in call.call.choices]
        continued = next((ends[prefix] for prefix in reversed(call.prefixes) if prefix in ends), None)
        if continued:
            parent = next((turn for turn in continued if not turn.next), continued[0])
            parent.next += turns
        else:
            roots.setdefault(call.prefixes[-1], []).extend(turns)
        for turn, end in zip(turns, call.ends, strict=True):
            ends.setdefault(end, []).append(turn)
    return [_history(path) for turns in roots.values() for path in _paths(turns)]


@dataclass(frozen=True)
class _Digested:
    """A call with digests of its tools and messages up to each message, and of all of them with each answer."""

    call: Call
    prefixes: Sequence[bytes]
    ends: Sequence[bytes]


def _digested(calls: Sequence[Call]) -> list[_Digested]:
    texts: dict[int, bytes] = {}  # of messages, which later calls have again

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
        digested.append(_Digested(call, prefixes, ends))
    return digested


def _without_lost(calls: Sequence[_Digested]) -> list[_Digested]:
    """The calls without those whose answer a retry of the same request replaced, as no later call continues it."""
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


def _paths(turns: Sequence[_Turn]) -> Iterator[list[_Turn]]:
    """From each choice to each last turn; choices that are continued come first."""
    waiting = [[turn] for turn in _in_order(turns)[::-1]]
    while waiting:
        path = waiting.pop()
        waiting += [[*path, turn] for turn in _in_order(path[-1].next)[::-1]]
        if not path[-1].next:
            yield path


def _in_order(turns: Sequence[_Turn]) -> list[_Turn]:
    return sorted(turns, key=lambda turn: not turn.next)


def _history(path: Sequence[_Turn]) -> History:
    """The items of a path. A turn that is in a history before this one is context."""
    items: list[MessageOrChoice] = []
    for turn in path:
        items += turn.call.messages[len(items) :]
        items.append(as_message(turn.choice) if turn.trained else turn.choice)
        turn.trained = True
    tools: Mapping[str, object] = {"tools": list(path[0].call.tools)} if path[0].call.tools else {}
    return History.model_validate({"messages_and_choices": items, **tools})
