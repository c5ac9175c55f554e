"""A group as HTML that reads well without scripts and style sheets, on GitHub say: its prompt, and its completions."""

import json
from collections.abc import Iterable, Sequence
from html import escape

from rolloutlab.api.wire.chat import Choice, MessageOrChoice
from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.store.models import Group, StoredTrajectory, plain_text
from rolloutlab.widgets.html import heading, words

LONGEST = 4_000
"""Characters of a text that a page shows."""

FLAGS = {
    "length": "cut off at the token limit",
    "content_filter": "stopped by a content filter",
    "tool_calls": "ended on a tool call",
    "function_call": "ended on a function call",
}
"""Reasons why a conversation ended that a reader should not overlook."""


def written(text: str) -> str:
    """A text of others as HTML, line by line; a long one is cut, and says so."""
    lines = "<br>".join(escape(escape_control_chars(text[:LONGEST])).split("\n"))
    return lines if len(text) <= LONGEST else f"{lines} <i>... and {len(text) - LONGEST:,} more characters</i>"


def prompt(group: Group) -> str:
    """Every message that a group was given, and the tools it was offered, folded."""
    rows = "".join(f"<tr><th>{_role(message)}</th>{words(_message(message))}</tr>" for message in group.prompt)
    tools = next((t.extra["tools"] for t in group.trajectories if t.extra.get("tools")), ())
    told = "".join(f"<li>{written(json.dumps(tool, ensure_ascii=False))}</li>" for tool in tools)
    summary = f"<summary>{count(len(tools), 'tool')} offered</summary>"
    offered = f"<details>{summary}<ul>{told}</ul></details>" if tools else ""
    return f"<table>{rows}</table>{offered}"


def completions(rows: Iterable[tuple[StoredTrajectory, str, str]]) -> str:
    """Each trajectory with its reward and its advantage in words."""
    names = "".join(f"<th>{name}</th>" for name in ("reward", "advantage", "tokens", "finish"))
    head = f"<tr>{names}{heading('completion')}</tr>"
    return f"<table>{head}{''.join(_row(*row) for row in rows)}</table>"


def _row(trajectory: StoredTrajectory, reward: str, effect: str) -> str:
    finish = trajectory.finish_reason or ""
    told = f"<b>{escape(FLAGS[finish])}</b>" if finish in FLAGS else escape(finish)
    logs = "".join(f"<br>[{written(str(log))}]" for log in trajectory.extra.get("logs") or ())
    said = _conversation(trajectory.items[trajectory.given or 0 :])
    cells = f"<td>{reward}</td><td>{effect}</td><td>{trajectory.tokens:,}</td><td>{told}</td>"
    return f"<tr>{cells}{words(said + logs)}</tr>"


def _conversation(items: Sequence[MessageOrChoice]) -> str:
    if len(items) == 1:
        return _message(items[0])
    return "<br>".join(f"<b>{_role(item)}</b> {_message(item)}" for item in items)


def _message(item: MessageOrChoice) -> str:
    """What a message says, and the tools that it calls."""
    _, said, called = spoken(item)
    said = said or str(getattr(item.message if isinstance(item, Choice) else item, "refusal", None) or "")
    return "<br>".join([*([written(said)] if said else []), *(f"<code>{written(call)}</code>" for call in called)])


def spoken(item: MessageOrChoice) -> tuple[str, str, list[str]]:
    """Who said it, what was said, and the tools that were called, as Python would call them."""
    message = (item.message if isinstance(item, Choice) else item).to_wire()
    given = message.get("tool_calls") if message["role"] == "assistant" else None  # of others it may be anything
    calls = [call.get("function") or call["custom"] for call in given or ()]
    called = [f"{call['name']}({call.get('arguments', call.get('input'))})" for call in calls]
    return message["role"], plain_text(message.get("content")), called


def _role(item: MessageOrChoice) -> str:
    return "assistant" if isinstance(item, Choice) else escape(item.role)
