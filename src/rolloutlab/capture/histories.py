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
    for call in _without_lost(calls):
        turns = [_Turn(call, choice) for choice in call.choices]
        prefixes = _prefixes(call)
        found = next((ends[prefix] for prefix in reversed(prefixes) if prefix in ends), None)
        if found:
            parent = next((turn for turn in found if not turn.next), found[0])
            parent.next += turns
        else:
            roots.setdefault(prefixes[-1], []).extend(turns)
        for turn, end in zip(turns, _ends(call, prefixes), strict=True):
            ends.setdefault(end, []).append(turn)
    return [_history(path) for turns in roots.values() for path in _paths(turns)]


def _without_lost(calls: Sequence[Call]) -> list[Call]:
    """The calls without those whose answer a retry of the same request replaced, as no later call continues it."""
    prefixes = [_prefixes(call) for call in calls]
    read = {prefix for each in prefixes for prefix in each}
    ends = [set(_ends(call, each)) for call, each in zip(calls, prefixes, strict=True)]
    lost: set[int] = set()
    for i, call in enumerate(calls):
        same = [
            j
            for j in range(i if call.retry else 0)
            if j not in lost
            and calls[j].retry < call.retry
            and prefixes[j][-1] == prefixes[i][-1]
            and not (ends[j] - ends[i]) & read
        ]
        if same:
            lost.add(max(same, key=lambda j: (calls[j].retry, j)))
    return [call for i, call in enumerate(calls) if i not in lost]


def _prefixes(call: Call) -> list[bytes]:
    """A digest of the tools with the messages up to each of them."""
    digest = sha256(json.dumps([tool.to_wire() for tool in call.tools], sort_keys=True).encode()).digest()
    return list(accumulate(call.messages, _with, initial=digest))[1:]


def _ends(call: Call, prefixes: Sequence[bytes]) -> list[bytes]:
    """Of each choice, a digest as of `_prefixes` that ends with its message."""
    return [_with(prefixes[-1], as_message(choice)) for choice in call.choices]


def _with(digest: bytes, message: Message) -> bytes:
    return sha256(digest + json.dumps(message.to_wire(), sort_keys=True).encode()).digest()


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
