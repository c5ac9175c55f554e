"""Search records of trajectories: the conversation as text, everything else as metadata."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rolloutlab.api.wire.base import moment
from rolloutlab.api.wire.reasoning import reasoning_of
from rolloutlab.objective.advantages import group_advantages
from rolloutlab.search.engine.records import PARAGRAPH, Record, Span
from rolloutlab.search.where import REASONING, REASONING_TEXT, All, AnyOf, Contains, Matches, Where
from rolloutlab.store.changes import Entry, RewardChange
from rolloutlab.store.texts import plain_text

FIELDS = {
    "collection": "the collection's name",
    "generation": "the number of the collection among those of its name, from 1",
    "group": "the group, as letters:1/0",
    "model": "the model that was sampled",
    "step": "the checkpoint it was sampled from",
    "reward": "the reward it has now",
    "source": "who gave the reward: function, hand, judge, environment, or tool for a client of the MCP server",
    "reward_error": "type and message of the error that a reward function failed with; absent with a reward",
    "advantage_sign": "1 where its reward is above the group's mean, -1 below, 0 at it; absent without a reward",
    "job": "the newest training job that its collection was submitted with",
    "finish_reason": "why the last completion ended: stop, length, tool_calls or content_filter",
    "turns": "how many times the policy answered",
    "tokens": "how many tokens were sampled",
    REASONING: "how many characters of reasoning; `in` and `regex` search its text, as with reasoning_text",
    REASONING_TEXT: "the reasoning of all turns, a blank line between two; in the document after `assistant reasons:`",
    "tools": "names of the tools that were called, a list",
    "environment": "the environment that answered each turn",
    "episode_end": "how its episode ended: done, max_turns, length, content_filter, context, timeout or error",
    "time": "when it was sampled, seconds since 1970",
}
"""Fields of trajectories. A field without a value is absent. There are also `reward.PART` for each component of a
reward, `row.COLUMN` for each column of a row, and `metric.NAME` for each metric, such as `metric.turn_reward/0`.

All are metadata except `reasoning_text`, which is a part of the document and selected by its name."""
PART, COLUMN, METRIC = "reward.", "row.", "metric."
OF_REWARD = ("reward", "source", "reward_error", "advantage_sign")
"""Fields that change with the reward, as do those that begin with `PART`."""
OF_DOCUMENT = (REASONING,)
"""Fields that are computed from the document, and again if a newer version writes documents in another format."""
_LONG = 2**63
"""The smallest integer that does not fit the 64 bits of the index."""


def record_of(entry: Entry, job: str | None = None) -> Record:
    """Make the record of a trajectory, without its reward (see `rewards_of`)."""
    messages: list[Mapping[str, Any]] = [*entry.prompt, *(item.get("message", item) for item in entry.items)]
    document, reasoning = document_of(messages)
    metadata, metrics = (entry.extra.get(name) or {} for name in ("metadata", "metrics"))
    known = {
        "collection": entry.collection,
        "generation": entry.generation,
        "group": entry.group,
        "model": entry.model,
        "step": entry.step,
        "job": job,
        "finish_reason": entry.finish_reason,
        "turns": sum("message" in item or item.get("role") == "assistant" for item in entry.items),
        "tokens": entry.tokens,
        REASONING: sum(end - begin for begin, end in reasoning) or None,
        "tools": sorted({name for message in messages for name, _ in _calls(message)}) or None,
        "environment": _text(metadata.get("environment")),
        "episode_end": _text(metadata.get("episode_end")),
        "time": moment(entry.created_at).timestamp(),
        **{f"{COLUMN}{name}": value for name, value in entry.row.items() if _is_field(value)},
        **{f"{METRIC}{name}": value for name, value in metrics.items() if _is_scalar(value)},
    }
    fields = {name: value for name, value in known.items() if value is not None}
    return Record(id=entry.name, document=document, metadata=fields, reasoning=reasoning)


def rewards_of(members_G: Sequence[RewardChange]) -> dict[str, dict[str, Any]]:
    """Make the reward metadata of the members of a group, by name.

    A member with neither a reward nor an error is absent. So is the source of an imported reward that has none.
    """
    scored = [member for member in members_G if member.reward is not None]
    advantages_G = group_advantages([float(member.reward or 0.0) for member in scored])
    failed = {member.name: {"reward_error": member.error} for member in members_G if member.error is not None}
    return failed | {
        member.name: {
            "reward": member.reward,
            **({"source": member.source} if member.source is not None else {}),
            "advantage_sign": (advantage > 0) - (advantage < 0),
            **{f"{PART}{name}": float(value) for name, value in member.components.items()},
        }
        for member, advantage in zip(scored, advantages_G, strict=True)
    }


def search_reasoning_text(where: Where) -> Where:
    """Let conditions such as `'carry' in reasoning` or `reasoning.regex('carr(y|ied)')` search `reasoning_text`."""
    if isinstance(where, All | AnyOf):
        return type(where)(tuple(map(search_reasoning_text, where.parts)))
    if isinstance(where, Matches) or (isinstance(where, Contains) and isinstance(where.value, str)):
        return replace(where, field=REASONING_TEXT) if where.field == REASONING else where
    return where


def document_of(messages: Iterable[Mapping[str, Any]]) -> tuple[str, tuple[Span, ...]]:
    """Write a conversation as text, and find the spans of reasoning in that text.

    Each message is a paragraph that starts with its role. Reasoning stands before the answer, and each tool call has a
    line.
    """
    paragraphs: list[str] = []
    spans: list[Span] = []
    at = 0
    for message in messages:
        role, (reasoning, text) = message.get("role", ""), _split_reasoning(message)
        thought = f"{role} reasons: {reasoning}" if reasoning else ""
        if thought:
            spans.append((at + len(thought) - len(reasoning), at + len(thought)))
        paragraphs.append("\n".join([*([thought] if thought else []), *_lines(message, text, bool(thought))]))
        at += len(paragraphs[-1]) + len(PARAGRAPH)
    return PARAGRAPH.join(paragraphs), tuple(spans)


def _lines(message: Mapping[str, Any], text: str, reasons: bool) -> Iterator[str]:
    role, calls = message.get("role", ""), list(_calls(message))
    if text or not (calls or reasons):
        yield f"{role}: {text}"
    for name, arguments in calls:
        yield f"{role} calls {name}({arguments})"


def _split_reasoning(message: Mapping[str, Any]) -> tuple[str, str]:
    text = plain_text(message.get("content"))
    return reasoning_of(message, text) if message.get("role") == "assistant" else ("", text)


def _calls(message: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
        if not isinstance(function, dict):  # only assistant messages are validated
            continue
        arguments = function.get("arguments", function.get("input", ""))
        yield str(function.get("name", "")), arguments if isinstance(arguments, str) else json.dumps(arguments)


def _is_field(value: Any) -> bool:
    """Whether a value of a row can be metadata: a string, a number, a bool, or a list of one of these types."""
    if isinstance(value, list):
        return bool(value) and all(map(_is_field, value)) and len({*map(type, value)}) == 1 and _is_scalar(value[0])
    return _is_scalar(value)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _is_scalar(value: Any) -> bool:
    if isinstance(value, bool | str):
        return True
    return (isinstance(value, int) and abs(value) < _LONG) or (isinstance(value, float) and math.isfinite(value))
