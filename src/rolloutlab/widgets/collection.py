"""A collection as text and HTML: the prompt of each group, and its completions with reward and advantage.

The HTML reads well without scripts and style sheets too, as on GitHub.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolloutlab.api.wire.chat import Choice, MessageOrChoice
from rolloutlab.api.wire.reasoning import reasoning_of
from rolloutlab.objective.advantages import TokenWeight
from rolloutlab.objective.preflight import WHY_NOT, Preflight, count
from rolloutlab.objective.splits import split_note
from rolloutlab.sanitize import escape_to_one_line
from rolloutlab.store.models import Group, StoredTrajectory
from rolloutlab.store.texts import shown_text
from rolloutlab.widgets import overview
from rolloutlab.widgets.history_tree import HistoryBranch, branches_leaving, history_tree, is_answer
from rolloutlab.widgets.html import Html, Words, code, escape, html_table, paragraphs
from rolloutlab.widgets.kit.parts import advantage_bar, foot, head, panel
from rolloutlab.widgets.kit.table import Heading, TableRow, table
from rolloutlab.widgets.overview import Overview
from rolloutlab.widgets.text import decimals, more, number, signed, text_table, with_minus

MAX_GROUPS = 4
_HEAD = (
    Heading("answers", middle=True),
    Heading("reward", number=True),
    Heading("advantage", number=True),
    Heading("completion"),
    Heading("tokens", number=True, middle=True),
    Heading("ended", middle=True),
)
_MAX_MESSAGES = _MAX_BRANCHES = 20
_MOST_SEATS = 8
_MAX_WIDTH = 100
MAX_CHARS = 4_000
"""The most characters of a text in the HTML."""
FLAGS = {
    "length": "cut off by max_tokens",
    "content_filter": "stopped by a content filter",
    "tool_calls": "ended on a tool call",
    "function_call": "ended on a function call",
    "max_turns": "ended after max_turns answers",
    "context": "ended where the context was full",
    "timeout": "ended by a time-out",
    "error": "ended by an error",
}
"""Reasons why a conversation ended that a reader should not overlook."""


@dataclass(frozen=True)
class Counts:
    """Counts of a collection.

    groups, completions: how many it has. rewards: the rewards of the completions that have one. next: the name of the
    first group that is not shown. failed: by type of error, on how many completions a function failed. overview: the
    overview of the whole collection; None for a single group.
    """

    groups: int
    completions: int
    rewards: Sequence[float]
    next: str
    failed: Mapping[str, int] = field(default_factory=dict)
    overview: Overview | None = None


def text(name: str, groups: Sequence[Group], check: Preflight, counts: Counts) -> str:
    """Write a collection as plain text. groups: the groups to show. check: what would train. counts: of all groups."""
    about = overview.text(counts.overview) if counts.overview else _failure_lines(name, counts)
    lines, shares = [_heading(name, counts), *about], _by_name(check)
    for group in groups[:MAX_GROUPS]:
        lines += ["", f"{group.name}  {_shorten(question(group))}"]
        if counts.groups == 1 and len(group.prompt) > 1:  # the heading shows one message
            lines += [f"  {_shorten(_line(message))}" for message in group.prompt[:_MAX_MESSAGES]]
        rows = []
        for first, alike in _merge_alike(group, shares):
            times = f" \N{MULTIPLICATION SIGN}{len(alike)}" if len(alike) > 1 else ""
            rows.append((number(first.reward), _effect(shares.get(first.name)), _shorten(_completion(first)) + times))
            rows += [("", "", line) for line in _tree_lines(first) if counts.groups == 1]
        lines += text_table((), rows, ">7 >6")
    rest = _rest(counts)
    return "\n".join([*lines, *([""] if rest else []), *rest])


def html(name: str, groups: Sequence[Group], check: Preflight, counts: Counts) -> str:
    """Write the same as HTML, with the first group open. If there is one group, its whole prompt is shown."""
    shares = _by_name(check)
    if counts.overview:
        parts = [overview.heading(name, counts.overview), overview.html(counts.overview)]
    else:
        parts = [head(name, _heading(name, counts).partition(": ")[2]), paragraphs(_failure_lines(name, counts))]
    largest = max((abs(share.advantage) for share in shares.values()), default=0.0)
    largest = counts.overview.largest if counts.overview else largest
    for i, group in enumerate(groups[:MAX_GROUPS]):
        prompt = _prompt(group) if counts.groups == 1 and group.prompt else ""
        summary = f"<summary>{code(group.name)} {escape(_shorten(question(group)))}</summary>"
        rows = [_row(first, alike, shares.get(first.name), largest) for first, alike in _merge_alike(group, shares)]
        shown = table(_HEAD, rows, f"completions of {group.name}") if rows else ""
        parts.append(Html(f'<details{" open" if i == 0 else ""} class="rl-group">{summary}{prompt}{shown}</details>'))
    parts += [foot(line) for line in _rest(counts)]
    return panel(*parts)


def _merge_alike(
    group: Group, shares: Mapping[str, TokenWeight]
) -> list[tuple[StoredTrajectory, list[StoredTrajectory]]]:
    """Merge the completions of a group that look the same, and sort them, highest reward first."""
    alike: dict[object, list[StoredTrajectory]] = {}
    for trajectory in group.trajectories:
        shown = visible_text(trajectory), trajectory.reward, _effect(shares.get(trajectory.name))
        alike.setdefault(shown, []).append(trajectory)
    merged = [(some[0], some) for some in alike.values()]
    return sorted(merged, key=lambda each: math.inf if each[0].reward is None else -each[0].reward)


def visible_text(trajectory: StoredTrajectory) -> str:
    """Return what a reader sees of a conversation, as one text, which is the same for equal completions."""
    first = trajectory.given or 0
    messages = [[read_message(item), reasoning(item)] for item in trajectory.items[first:]]
    noted = trajectory.choices[-1].ending_note if trajectory.choices else None
    end = [trajectory.finish_reason, noted, trajectory.episode_end, trajectory.turn_rewards]
    return json.dumps([messages, end, trajectory.extra.get("additional_histories"), _notes(trajectory)])


def _heading(name: str, counts: Counts) -> str:
    rewards = counts.rewards
    interval = overview.around(counts.overview) if counts.overview else ""
    mean = f", mean reward {decimals(math.fsum(r / len(rewards) for r in rewards))}{interval}" if rewards else ""
    scored = mean or ", not scored yet"
    partly = f" ({len(rewards)} scored)" if rewards and len(rewards) < counts.completions else ""
    return f"{name}: {count(counts.completions, 'completion')} in {count(counts.groups, 'group')}{scored}{partly}"


def failures(name: str, failed: Mapping[str, int]) -> str:
    """Say on how many completions a function failed, by type of error, and what to type."""
    line = f"a reward function failed on {sum(failed.values()):,}: {name_errors(failed)}"
    return f"{line} -> %%reward {name.partition('/')[0]} --resume"


def name_errors(failed: Mapping[str, int]) -> str:
    """Name the types of errors, and how often each occurred."""
    kinds = [f"{escape_to_one_line(error, 60)} \N{MULTIPLICATION SIGN}{times:,}" for error, times in failed.items()]
    return ", ".join(kinds)


def _failure_lines(name: str, counts: Counts) -> list[str]:
    return [failures(name, counts.failed)] if counts.failed else []


def _rest(counts: Counts) -> list[str]:
    return more(counts.groups - MAX_GROUPS, f"%group {counts.next}", "group")


def _by_name(check: Preflight) -> dict[str, TokenWeight]:
    return {share.member.name: share for share in check.all_shares()}


def question(group: Group) -> str:
    """Return the last message of the user; without one, the first observation of an environment."""
    messages = [message.to_wire() for message in group.prompt if message.role == "user"]
    if not messages and group.trajectories:
        return group.trajectories[0].prompt
    return shown_text(messages[-1]) if messages else ""


def _completion(trajectory: StoredTrajectory) -> str:
    """Write the text after the prompt, without reasoning, with a mark if the token limit cut it off, and with notes.

    If its episode with an environment ended early, the text begins with how it did.
    """
    first = next((i for i, item in enumerate(trajectory.items) if isinstance(item, Choice)), 0)
    later = trajectory.items[first:]
    lines = [_line(item) + earned for item, earned in with_rewards(trajectory, later)]
    answer = _answer(later) if len(later) < 2 else "\n".join(lines)
    notes = [f"[{note}]" for note in _notes(trajectory)]
    early = [f"[{end}]"] if (end := trajectory.episode_end) and end != "done" else []
    return "\n".join([*early, answer + (" [cut off]" if trajectory.finish_reason == "length" else ""), *notes])


def _answer(items: Sequence[MessageOrChoice]) -> str:
    """Return the text of the only message of an assistant, if there is one."""
    messages = (read_message(item) for item in items if _role(item) == "assistant")
    return "".join(" ".join([*filter(None, [content]), *calls]) for _, content, calls in messages)


def _line(item: MessageOrChoice) -> str:
    """Write one message of a conversation, with the tools that it calls."""
    role, content, calls = read_message(item)
    return " ".join([f"{role}:", *filter(None, [content]), *calls])


def with_rewards(
    trajectory: StoredTrajectory, items: Sequence[MessageOrChoice]
) -> Iterator[tuple[MessageOrChoice, str]]:
    """Yield items of a conversation, each with the reward of its turn as text. The first completion must be there."""
    rewards = iter(trajectory.turn_rewards)
    for item in items:
        reward = next(rewards, None) if isinstance(item, Choice) else None
        yield item, "" if reward is None else f" ({number(reward)})"


def _tree_lines(trajectory: StoredTrajectory) -> list[str]:
    """Write a line for each additional history, below the history that it branches off from."""
    made = history_tree(trajectory)
    shown = made[:_MAX_BRANCHES]
    waiting = [(each, 0) for each in [*_branches_of(shown, 0), *branches_leaving(shown, None, 0)][::-1]]
    lines: list[str] = []
    while waiting:
        each, depth = waiting.pop()
        own = escape_to_one_line(" ".join(map(_line, each.items)), _MAX_WIDTH // 2)
        lines.append(f"{'   ' * depth}└─ {each.title}: {own}")
        waiting += [(below, depth + 1) for below in _branches_of(shown, each.number)[::-1]]
    return [*lines, *_more_branches(trajectory, made)]


def _branches_of(shown: Sequence[HistoryBranch], parent: int) -> list[HistoryBranch]:
    """Return the branches of a history, in the order in which they leave it."""
    return sorted((each for each in shown if each.parent == parent), key=lambda each: each.place)


def _more_branches(trajectory: StoredTrajectory, made: Sequence[HistoryBranch]) -> list[str]:
    group, _, position = trajectory.name.rpartition("/")
    hint = f"lab.collection({group!r}).trajectories[{position}].additional"
    return [escape_to_one_line(line) for line in more(len(made) - _MAX_BRANCHES, hint, "history")]


def _effect(share: TokenWeight | None) -> str:
    """Write the advantage that every token would train with, or why none would train. Empty without a reward."""
    if share is None:
        return ""
    return WHY_NOT[share.reason] if share.reason else signed(share.advantage)


def _shorten(text: str) -> str:
    return escape_to_one_line(text, _MAX_WIDTH)


def _notes(trajectory: StoredTrajectory) -> list[str]:
    """Return notes about a trajectory: that it trains as several sequences, and those of `logs_of`."""
    return [*filter(None, [split_note(trajectory.histories())]), *logs_of(trajectory)]


def logs_of(trajectory: StoredTrajectory) -> list[str]:
    """Return the notes of a trajectory's sampling, first that its answer has reasoning in it that is not read."""
    unread = (
        f"the answer has reasoning in it, which is not read ({mark})" if (mark := trajectory.unread_reasoning) else ""
    )
    return [*filter(None, [unread]), *map(str, trajectory.extra.get("logs") or ())]


def read_message(item: MessageOrChoice) -> tuple[str, str, list[str]]:
    """Return role, text without reasoning, and tool calls of a message. Calls are written as in Python.

    In the text, a refusal has a mark before it, and parts other than text are named.
    """
    message = (item.message if isinstance(item, Choice) else item).to_wire()
    if message["role"] != "assistant":  # in other roles, calls and refusals may be anything
        return message["role"], shown_text(message), []
    calls = [call.get("function") or call["custom"] for call in message.get("tool_calls") or ()]
    calls += filter(None, [message.get("function_call")])
    written = [f"{call['name']}({call.get('arguments', call.get('input'))})" for call in calls]
    refused = f"[refused] {refusal}" if (refusal := message.get("refusal")) else ""
    return "assistant", " ".join(filter(None, [_split_reasoning(message)[1], refused])), written


def conversation_text(items: Sequence[MessageOrChoice]) -> str:
    """Write messages as text, a paragraph each. A single message without reasoning and calls is only its text."""
    if len(items) == 1 and not reasoning(items[0]) and not read_message(items[0])[2]:
        return read_message(items[0])[1]
    return "\n\n".join("\n".join(_paragraph(item)) for item in items)


def _paragraph(item: MessageOrChoice) -> Iterator[str]:
    role, content, calls = read_message(item)
    thought = reasoning(item)
    if thought:
        yield f"{role} reasons: {thought}"
    if content or not (calls or thought):
        yield f"{role}: {content}"
    yield from (f"{role} calls {call}" for call in calls)


def reasoning(item: MessageOrChoice) -> str:
    """Return the reasoning of a message."""
    return _split_reasoning((item.message if isinstance(item, Choice) else item).to_wire())[0]


def _split_reasoning(message: Mapping[str, Any]) -> tuple[str, str]:
    text = shown_text(message)
    return reasoning_of(message, text) if message["role"] == "assistant" else ("", text)


def _prompt(group: Group) -> Html:
    """Draw every message of a group's prompt, and the tools that were offered, folded."""
    rows = [(_role(message), Words(_message(message))) for message in group.prompt]
    tools = next((t.extra["tools"] for t in group.trajectories if t.extra.get("tools")), ())
    listed = "".join(f"<li>{_cut(json.dumps(tool, ensure_ascii=False))}</li>" for tool in tools)
    summary = f"<summary>{count(len(tools), 'tool')} offered</summary>"
    offered = f"<details>{summary}<ul>{listed}</ul></details>" if tools else ""
    return Html(f"{html_table((), rows, labelled=True)}{offered}")


def flag_of(trajectory: StoredTrajectory) -> str | None:
    """Say how a conversation ended, if a reader should not overlook it; else None."""
    finish = trajectory.episode_end or trajectory.finish_reason or ""
    if finish == "length" and trajectory.choices and trajectory.choices[-1].ending_note:
        return "broken off by the service"
    return FLAGS.get(finish)


def _row(
    trajectory: StoredTrajectory, alike: Sequence[StoredTrajectory], share: TokenWeight | None, largest: float
) -> TableRow:
    """Draw a row with one completion, for all that are equal to it."""
    unusual = flag_of(trajectory)
    flag = Html(f"<b>{escape(unusual)}</b>") if unusual else trajectory.episode_end or trajectory.finish_reason or ""
    logs = "".join(f"<br>[{_cut(note)}]" for note in _notes(trajectory))
    items = trajectory.items[trajectory.given or 0 :]
    made = history_tree(trajectory)
    shown = made[:_MAX_BRANCHES]
    if len(items) == 1:
        conversation = _message(items[0]) + _fold(branches_leaving(shown, 0, 1), shown)
    else:
        conversation = _turns(with_rewards(trajectory, items), 0, shown)
    conversation += _fold(branches_leaving(shown, None, 0), shown)
    further = "".join(f"<p>{escape(line)}</p>" for line in _more_branches(trajectory, made))
    effect = (
        Html(f"{advantage_bar(share.advantage, largest)}{with_minus(_effect(share))}")
        if share and not share.reason
        else None
    )
    lengths = sorted({each.tokens for each in alike})
    tokens = f"{lengths[0]:,}" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,}"
    seats = " ".join(f"#{each.position}" for each in alike[:_MOST_SEATS]) + " …" * (len(alike) > _MOST_SEATS)
    times = Html(f"<b>\N{MULTIPLICATION SIGN}{len(alike)}</b> {seats}") if len(alike) > 1 else seats
    shows = Html(f'<div class="rl-shows">{conversation}{further}{logs}</div>')
    return TableRow([times, number(trajectory.reward), effect or _effect(share), shows, tokens, flag])


def _turns(items: Iterable[tuple[MessageOrChoice, str]], number: int, shown: Sequence[HistoryBranch]) -> str:
    """Draw the messages of a history, with rewards in italics, and with folded branches where they leave it."""
    answers, html = 0, _fold(branches_leaving(shown, number, 0), shown)
    for item, earned in items:
        # a fold is a block of its own: no line break after it
        html += "<br>" if html and not html.endswith("</details>") else ""
        html += f"<b>{escape(_role(item))}</b> {_message(item)}<i>{escape(earned)}</i>"
        if is_answer(item):
            answers += 1
            html += _fold(branches_leaving(shown, number, answers), shown)
    return html


def _fold(some: Iterable[HistoryBranch], shown: Sequence[HistoryBranch]) -> str:
    """Draw branches, folded, each with its own branches inside. shown: all branches of the trajectory."""
    return "".join(
        f"<details><summary>{escape(each.title)}</summary>"
        f"{_turns(((item, '') for item in each.items), each.number, shown)}</details>"
        for each in some
    )


def _message(item: MessageOrChoice) -> Html:
    """Draw the text of a message, its reasoning folded before it, and the tools that it calls."""
    _, content, calls = read_message(item)
    parts = [*([_cut(content)] if content else []), *(f"<code>{_cut(call)}</code>" for call in calls)]
    folded = reasoning(item)
    # a block of its own: no line break after it
    before = f"<details><summary>reasoning</summary>{_cut(folded)}</details>" if folded else ""
    return Html(before + "<br>".join(parts))


def _cut(text: str) -> Html:
    """Draw a text line by line. A long one is cut, with a note of how much is left out."""
    lines = escape(text[:MAX_CHARS]).replace("\n", "<br>")
    left = len(text) - MAX_CHARS
    return Html(f"{lines} <i>... and {left:,} more characters</i>" if left > 0 else lines)


def _role(item: MessageOrChoice) -> str:
    return "assistant" if isinstance(item, Choice) else item.role
