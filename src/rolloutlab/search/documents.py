"""Search records of trajectories: the conversation as text, everything else as metadata."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rolloutlab.api.wire.base import moment
from rolloutlab.api.wire.reasoning import reasoning_of
from rolloutlab.objective.advantages import group_advantages
from rolloutlab.search.engine.records import Record
from rolloutlab.store.changes import Entry, RewardChange
from rolloutlab.store.models import plain_text

FIELDS = {
    "collection": "the collection's name",
    "generation": "which time it was sampled under that name, from 1",
    "group": "the group, as letters:1/0",
    "model": "the model that was sampled",
    "step": "the checkpoint it was sampled from",
    "reward": "the reward it has now",
    "source": "who gave the reward: function, hand, judge, or tool for a client of the context server",
    "reward_error": "type and message of the error that a reward function failed with; absent with a reward",
    "advantage_sign": "1 where its reward is above the group's mean, -1 below, 0 at it; absent without a reward",
    "job": "the newest training job that its collection was submitted with",
    "finish_reason": "why the last completion ended: stop, length or tool_calls",
    "turns": "how many times the policy answered",
    "tokens": "how many tokens were sampled",
    "reasoning": "how many characters of reasoning; its text is in the document, after `assistant reasons:`",
    "tools": "names of the tools that were called, a list",
    "time": "when it was sampled, seconds since 1970",
}
"""Metadata of every trajectory that has it. Besides: the parts of a reward as `reward.PART`, a row as `row.COLUMN`."""
PART, COLUMN = "reward.", "row."
OF_REWARD = ("reward", "source", "reward_error", "advantage_sign")
"""Fields that change when a reward does, as do all that begin with `PART`."""
OF_DOCUMENT = ("reasoning",)
"""Fields that change where documents are written in another format."""
_LONG = 2**63
"""Where the integers of a file end."""


def record_of(entry: Entry, job: str | None = None) -> Record:
    """The record of a trajectory, without its reward (see `rewards_of`)."""
    messages: list[Mapping[str, Any]] = [*entry.prompt, *(item.get("message", item) for item in entry.items)]
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
        "reasoning": sum(len(_reasoned(message)[0]) for message in messages) or None,
        "tools": sorted({name for message in messages for name, _ in _calls(message)}) or None,
        "time": moment(entry.created_at).timestamp(),
        **{f"{COLUMN}{name}": value for name, value in entry.row.items() if _is_field(value)},
    }
    metadata = {name: value for name, value in known.items() if value is not None}
    return Record(id=entry.name, document=document_of(messages), metadata=metadata)


def rewards_of(members_G: Sequence[RewardChange]) -> dict[str, dict[str, Any]]:
    """Reward metadata of the members of a group, by name; members without a reward or an error are absent.

    An imported reward may have no source; the field is then absent.
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


def document_of(messages: Iterable[Mapping[str, Any]]) -> str:
    """A conversation as text: a paragraph per message, starting with its role, and a line per tool call."""
    return "\n\n".join("\n".join(_lines(message)) for message in messages)


def _lines(message: Mapping[str, Any]) -> Iterable[str]:
    role, calls = message.get("role", ""), list(_calls(message))
    reasoning, text = _reasoned(message)
    if reasoning:
        yield f"{role} reasons: {reasoning}"
    if text or not (calls or reasoning):
        yield f"{role}: {text}"
    for name, arguments in calls:
        yield f"{role} calls {name}({arguments})"


def _reasoned(message: Mapping[str, Any]) -> tuple[str, str]:
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


def _is_scalar(value: Any) -> bool:
    if isinstance(value, bool | str):
        return True
    return (isinstance(value, int) and abs(value) < _LONG) or (isinstance(value, float) and math.isfinite(value))
