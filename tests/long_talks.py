"""Conversations of many turns, and whether they are learned the same when they are rendered at once."""

from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from rolloutlab.policy.model import Policy

WORDS = "the quick brown fox jumps over the lazy dog; 12 + 30 is 42, she answers: because it is"


def _talk(turns: int, system: bool = False, **answer: Any) -> list[dict[str, Any]]:
    """A conversation of short texts; answer: further properties of each."""
    words = WORDS.split()
    messages: list[dict[str, Any]] = [{"role": "system", "content": "the lazy dog"}] * system
    for i in range(turns):
        messages.append({"role": "user", "content": " ".join(words[i % 7 : i % 7 + 1 + i % 5])})
        messages.append({"role": "assistant", "content": f"{words[-1 - i % 9]} {i}", **answer})
    return messages


LONG = {
    "texts": _talk(18),
    "a system message": _talk(13, system=True),
    "a question at the end": [*_talk(7), {"role": "user", "content": "the"}],
    "context": [{**message, "weight": i % 3 and 1} for i, message in enumerate(_talk(12))],
}
"""Conversations that templates may render at once."""
ODD = {
    "reasoning": _talk(6, reasoning_content="hm"),
    "marks of reasoning": [
        *_talk(6),
        {"role": "user", "content": "so"},
        {"role": "assistant", "content": "hm</think>a"},
    ],
    "white space": [{**message, "content": f" {message['content']}\n"} for message in _talk(6)],
    "nothing": [*_talk(6), {"role": "user", "content": "so"}, {"role": "assistant", "content": ""}, *_talk(2)],
    "two questions": [*_talk(6), {"role": "user", "content": "so"}, *_talk(2)],
    "few": _talk(3),
}
"""Conversations that are rendered turn by turn."""


def learned_alike(policy: "Policy") -> dict[str, bool]:
    """Check that long conversations are learned as turn by turn; which of `LONG` were rendered at once."""
    from rolloutlab.api.wire.fine_tuning import Conversation

    marked = str(policy.tokenizer.decode(sorted(policy.end_ids)[:1]))
    ends = [*_talk(6), {"role": "user", "content": "so"}, {"role": "assistant", "content": f"a {marked} b"}, *_talk(2)]
    once = {}
    for name, messages in {**LONG, **ODD, "a mark of the end": ends}.items():
        conversation = Conversation.model_validate({"messages": messages})
        now, once[name] = _read(policy, conversation)
        # where it was not rendered at once it was read turn by turn
        assert not once[name] or now == _read(policy, conversation, turn_by_turn=True)[0], name
    assert not any(once[name] for name in ODD), once
    return {name: once[name] for name in LONG}


def _read(policy: "Policy", conversation: Any, turn_by_turn: bool = False) -> tuple[Any, bool]:
    """What is read of a conversation, sequence by sequence, and whether it could be rendered at once."""
    from rolloutlab.policy import fine_tuning
    from rolloutlab.policy.model import base_of

    at_once, results = fine_tuning._render_once, list[Any]()

    def record(*given: Any) -> Any:
        results.append(None if turn_by_turn else at_once(*given))
        return results[-1]

    with mock.patch.object(fine_tuning, "_render_once", record):
        read = fine_tuning.read_conversations([("a", conversation)], base_of(policy))
    tokens = [[(list(s.ids), bytes(s.trained), list(map(str, s.logprobs))) for s in each] for each in read.sequences]
    return (tokens, read.skipped, read.unreadable), results != [None]
