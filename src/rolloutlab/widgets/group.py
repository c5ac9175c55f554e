"""A trajectory group as JSON for a browser, with control, bidi and invisible characters escaped.

A text is `{text, end, size, number}`: its beginning, where that ends, how many characters the whole text has, and its
number among the texts of its conversation, by which the browser requests the rest.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rolloutlab.api.wire.chat import Choice, MessageOrChoice, TokenLogprob
from rolloutlab.api.wire.reasoning import reasoning_of
from rolloutlab.api.wire.trajectories import ScoredHistories
from rolloutlab.objective.advantages import TokenWeight
from rolloutlab.objective.preflight import WHY, WHY_NOT
from rolloutlab.objective.splits import split_note
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.store.models import Group, StoredTrajectory, TrajectorySummary
from rolloutlab.store.texts import shown_text
from rolloutlab.widgets.collection import flag_of, logs_of, visible_text
from rolloutlab.widgets.history_tree import history_tree

TEXT_CHARS = 20_000
"""How many characters of a text are shown at first."""
_MIN_CHARS = 300
_GROUP_CHARS = 2_000_000  # about how many characters of a group are sent at first
PIECE_CHARS = 200_000
"""How many characters of a text are sent when more is requested."""


class ConversationTexts:
    """The texts of one conversation, numbered in order. About `room` characters of them are shown in all."""

    def __init__(self, room: int = TEXT_CHARS) -> None:
        self.whole: list[str] = []
        self._room = room

    def add(self, text: str) -> dict[str, Any]:
        """Add a text; return what the browser gets of it at first."""
        self.whole.append(text)
        shown = piece(text, 0, min(TEXT_CHARS, max(_MIN_CHARS, self._room)))
        self._room -= shown["end"]
        return {"text": shown["text"], "end": shown["end"], "size": len(text), "number": len(self.whole) - 1}


def piece(text: str, start: int, limit: int = PIECE_CHARS) -> dict[str, Any]:
    """Cut a part out of a text from `start`; return also where it ends, never inside a line end of two characters."""
    end = min(len(text), start + limit)
    end += text[end - 1 : end + 1] == "\r\n"
    return {"text": escape_control_chars(text[start:end]), "end": end, "size": len(text)}


def describe(group: Group) -> dict[str, Any]:
    """Describe the parts of a group that never change: its prompt, the offered tools, and its conversations."""
    room = min(TEXT_CHARS, _GROUP_CHARS // max(1, len(group.trajectories)))
    return {
        "name": escape_control_chars(group.name),
        "position": group.position,
        "row": {
            escape_control_chars(str(name)): escape_control_chars(str(value))[:_MIN_CHARS]
            for name, value in group.row.items()
        },
        **prompt_of(group, ConversationTexts()),
        "members": _members(group, room),
    }


def _members(group: Group, room: int) -> list[dict[str, Any]]:
    """Describe the conversations of a group. `same` is the seat of the first conversation with the same text."""
    first: dict[str, int] = {}
    members = [conversation(trajectory, ConversationTexts(room)) for trajectory in group.trajectories]
    for trajectory, member in zip(group.trajectories, members, strict=True):
        member["same"] = first.setdefault(visible_text(trajectory), member["seat"])
    return members


def prompt_of(group: Group, texts: ConversationTexts) -> dict[str, Any]:
    """Describe the prompt of a group, and the tools that were offered to its first trajectory with tools."""
    tools = next((t.extra["tools"] for t in group.trajectories if t.extra.get("tools")), ())
    return {"prompt": turns(group.prompt, texts), "tools": [_tool(tool, texts) for tool in tools]}


def conversation(trajectory: StoredTrajectory, texts: ConversationTexts) -> dict[str, Any]:
    """Describe the parts of a trajectory that never change: turns after the prompt, model, tokens, finish reason.

    `branches` are its additional histories, numbered from 1. Each has:

    - `parent`: the history that it branches off from; 0 is the main one, null is none;
    - `place`: after how many answers of that history;
    - `turns`: the turns that the parent does not have.
    """
    finish = trajectory.episode_end or trajectory.finish_reason
    return {
        "seat": seat_of(trajectory),
        "name": escape_control_chars(trajectory.name),
        "tokens": trajectory.tokens,
        "finish": finish or "nothing was sampled",
        "flag": flag_of(trajectory),
        "split": split_note(trajectory.histories()) or None,
        "model": escape_control_chars(trajectory.model + ("" if trajectory.step is None else f"@{trajectory.step}")),
        "turns": turns(trajectory.items[trajectory.given or 0 :], texts, trajectory.turn_rewards),
        "branches": [
            {"title": each.title, "parent": each.parent, "place": each.place, "turns": turns(each.items, texts)}
            for each in history_tree(trajectory)
        ],
        "logs": [texts.add(log) for log in logs_of(trajectory)],
    }


def reward_state(summary: TrajectorySummary, share: TokenWeight | None, was: float | None = None) -> dict[str, Any]:
    """Describe the parts of a trajectory that may change: its reward, and its advantage or why it would not train.

    was: the reward before a change by hand.
    """
    reason = share.reason if share else None
    return {
        "seat": summary.position,
        "reward": summary.reward,
        "was": None if was == summary.reward else was,
        "components": {escape_control_chars(name): value for name, value in summary.components.items()},
        "source": summary.source,
        "advantage": share.advantage if share and not reason else None,
        "why": [WHY_NOT[reason], WHY[reason]] if reason else None if share else ["no reward", "no reward yet"],
    }


def seat_of(trajectory: StoredTrajectory) -> int:
    """Return the place of a trajectory in its group."""
    return int(trajectory.name.rpartition("/")[2])


def turns(
    items: Iterable[MessageOrChoice], texts: ConversationTexts, rewards: Iterable[float | None] = ()
) -> list[dict[str, Any]]:
    """Describe the messages of a conversation, each tool result inside its call. rewards: of its completions."""
    turns: list[dict[str, Any]] = []
    left = iter(rewards)
    calls: dict[str, dict[str, Any]] = {}
    for item in items:
        message = (item.message if isinstance(item, Choice) else item).to_wire()
        is_result = message["role"] in {"tool", "function"}
        call = calls.pop(str(message.get("tool_call_id")), None) if is_result else None
        if call is not None:
            call["result"] = texts.add(shown_text(message))
            continue
        reward = next(left, None) if isinstance(item, Choice) else None
        turns.append({**_turn(item, message, texts, calls), "reward": reward})
    return turns


def _turn(
    item: MessageOrChoice, message: Mapping[str, Any], texts: ConversationTexts, calls: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    reasoning, content, refusal = "", shown_text(message), None
    requested: list[Mapping[str, Any]] = []
    if message["role"] == "assistant":  # in other roles, calls and refusals may be anything
        reasoning, content = reasoning_of(message, content)
        refusal = message.get("refusal")
        requested = [*(message.get("tool_calls") or ()), *filter(None, [message.get("function_call")])]
    made = []
    for each in requested:
        call = _call(each, texts)
        calls[str(each.get("id"))] = call
        made.append(call)
    return {
        "role": message["role"],
        "sampled": isinstance(item, Choice) and bool(item.sampled_tokens()),
        "reasoning": texts.add(reasoning) if reasoning else None,
        "content": texts.add(content) if content or not (made or refusal or reasoning) else None,
        "refusal": texts.add(str(refusal)) if refusal else None,
        "calls": made,
    }


def _call(call: Mapping[str, Any], texts: ConversationTexts) -> dict[str, Any]:
    function = call.get("function") or call.get("custom") or call
    arguments = str(function.get("arguments", function.get("input", "")))
    return {
        "name": escape_control_chars(str(function.get("name"))),
        "arguments": texts.add(arguments),
        "result": None,
    }


def _tool(tool: Mapping[str, Any], texts: ConversationTexts) -> dict[str, Any]:
    function = tool.get("function") or tool
    schema = json.dumps(function.get("parameters") or {}, ensure_ascii=False, indent=2)
    description = function.get("description")
    return {
        "name": escape_control_chars(str(function.get("name"))),
        "definition": texts.add(f"{description}\n{schema}" if description else schema),
    }


def tokens_of(trajectory: StoredTrajectory, start: int, limit: int = 2000) -> dict[str, Any]:
    """Describe the sampled tokens of a conversation from number `start` on, at most `limit`, and count all of them.

    A turn is `{turn, text, logprob, rank, instead, outside}`: its number among the turns that carry tokens, then
    columns with a value for each token. rank: 1 if the token was the likeliest of those that were reported, None if
    none were. instead: what else was likely. outside: whether the token is no part of the message's text, like the one
    that ends a turn.
    """
    choices = [item for item in _everything(trajectory) if isinstance(item, Choice) and item.sampled_tokens()]
    total = sum(len(choice.sampled_tokens()) for choice in choices)
    turns, before = [], 0
    for number, choice in enumerate(choices):
        sampled = choice.sampled_tokens()
        window = range(max(0, start - before), min(len(sampled), start + limit - before))
        if window:
            outside = list(_outside(choice))
            turns.append(
                {
                    "turn": number,
                    "text": [_token(sampled[i].token, sampled[i].bytes) for i in window],
                    "logprob": [sampled[i].logprob for i in window],
                    "rank": [_rank(sampled[i]) for i in window],
                    "instead": [_instead(sampled[i]) for i in window],
                    "outside": [outside[i] for i in window],
                }
            )
        before += len(sampled)
    return {"turns": turns, "start": start, "end": min(total, start + limit), "total": total}


def _everything(trajectory: StoredTrajectory) -> Iterator[MessageOrChoice]:
    yield from trajectory.items
    for each in trajectory.additional:
        yield from each.messages_and_choices


def _outside(choice: Choice) -> Iterator[bool]:
    """Yield for each sampled token whether it is outside the text of the message."""
    text = (choice.message.content or choice.message.refusal or "").encode(errors="surrogatepass")
    offset = 0
    for token in choice.sampled_tokens():
        raw = token.token.encode(errors="surrogatepass") if token.bytes is None else _raw(token.bytes)
        inside = bool(raw) and text.startswith(raw, offset)
        offset += len(raw) if inside else 0
        yield not inside


def _token(text: str, raw: Sequence[int] | None) -> str:
    """Write a token's text; its bytes in hexadecimal if they are only a part of a character."""
    if raw is None:
        return escape_control_chars(text)
    try:
        return escape_control_chars(_raw(raw).decode()) or escape_control_chars(text)
    except ValueError:
        return f"⟨{_raw(raw).hex(' ')}⟩"


def _raw(numbers: Sequence[int]) -> bytes:
    return bytes(number & 0xFF for number in numbers)


def _rank(token: TokenLogprob) -> int | None:
    """Return the rank of a token among the likeliest ones; one more than their number if it is not among them."""
    return 1 + sum(each.logprob > token.logprob for each in token.top_logprobs) if token.top_logprobs else None


def _instead(token: TokenLogprob) -> list[list[Any]] | None:
    """Return what else was likely: the text and the logprob of each; None if nothing was reported."""
    others = [each for each in token.top_logprobs if each.token != token.token][:5]
    return [[_token(each.token, each.bytes), each.logprob] for each in others] or None


def gaps_of(trajectory: StoredTrajectory, scored: ScoredHistories) -> list[list[float | None]]:
    """Compare logprobs, by turn and token: that in `scored` minus that at sampling; None if it was not scored.

    scored: the scores of the trajectory's histories, in order.
    """
    histories = zip(trajectory.histories(), scored.data, strict=True)
    return [
        _gaps(choice, turns.get(i))
        for history, scores in histories
        for turns in [{turn.index: turn.logprobs.content or [] for turn in scores.turns}]
        for i, choice in enumerate(history.messages_and_choices)
        if isinstance(choice, Choice) and choice.sampled_tokens()
    ]


def _gaps(choice: Choice, now: Sequence[TokenLogprob] | None) -> list[float | None]:
    sampled = choice.sampled_tokens()
    if now is None or len(now) != len(sampled):
        return [None] * len(sampled)
    return [new.logprob - old.logprob for new, old in zip(now, sampled, strict=True)]
