"""The histories of a trajectory as a tree: where each additional history branches off."""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from rolloutlab.api.wire.chat import Choice, MessageOrChoice
from rolloutlab.api.wire.reasoning import reasoning_of
from rolloutlab.objective.preflight import count
from rolloutlab.store.models import StoredTrajectory
from rolloutlab.store.texts import plain_text


@dataclass(frozen=True)
class HistoryBranch:
    """An additional history, by its number from 1; the main history is 0.

    parent: the history that it branches off from; None if it shares no answer with another one.
    after: how many answers it shares with the parent.
    instead: whether the next answer of the parent is another one.
    place: after how many of the parent's own answers it branches off.
    items: the items that the parent does not have.
    tokens: the number of tokens sampled in it.
    """

    number: int
    parent: int | None
    after: int
    instead: bool
    place: int
    items: Sequence[MessageOrChoice]
    tokens: int

    @property
    def title(self) -> str:
        """Where the branch leaves which history, and its size."""
        size = f"{count(sum(map(is_answer, self.items)), 'answer')}, {count(self.tokens, 'token')}"
        if self.parent is None:
            return f"history {self.number}, on its own: {size}"
        where = f"in the place of answer {self.after + 1}" if self.instead else f"after answer {self.after}"
        parent = f"history {self.parent}" if self.parent else "the main history"
        return f"history {self.number}, a branch {where} of {parent}: {size}"


@dataclass
class _Node:
    """A message in the tree. history: the first history that has it. answer: whether it counts as an answer."""

    history: int
    answer: bool = False
    next: "dict[Hashable, _Node]" = field(default_factory=dict)


def history_tree(trajectory: StoredTrajectory) -> list[HistoryBranch]:
    """Find where the additional histories of a trajectory branch off. Each comes after the history that it leaves.

    Messages with the same texts and calls are taken to be the same, because programs send earlier answers back. An
    answer with sampled tokens belongs to its own history only. Answers in the prompt are not counted.
    """
    root, made = _Node(0), list[HistoryBranch]()
    if not trajectory.additional:
        return made
    _add(root, 0, trajectory.items, trajectory.given or 0)
    histories = zip(trajectory.additional, trajectory.history_tokens[1:], strict=True)
    for number, (history, tokens) in enumerate(histories, 1):
        items = history.messages_and_choices
        shared = _shared(root, items)
        after, following = sum(node.answer for node in shared), items[len(shared) : len(shared) + 1]
        siblings = shared[-1].next.values() if shared else ()
        instead = any(map(is_answer, following)) and any(node.answer for node in siblings)
        if after or instead:
            parent = shared[-1].history
            place = after + instead - (made[parent - 1].after if parent else 0)
            made.append(HistoryBranch(number, parent, after, instead, place, items[len(shared) :], tokens))
        else:
            made.append(HistoryBranch(number, None, 0, False, 0, items, tokens))
        _add(root, number, items)
    return made


def branches_leaving(made: Sequence[HistoryBranch], parent: int | None, place: int) -> list[HistoryBranch]:
    """Select the branches that leave a history after so many of its own answers. parent None: those on their own."""
    return [each for each in made if (each.parent, each.place) == (parent, place)]


def is_answer(item: MessageOrChoice) -> bool:
    """Whether an item is an answer, sampled or not."""
    return isinstance(item, Choice) or item.role == "assistant"


def _add(node: _Node, history: int, items: Sequence[MessageOrChoice], prompt: int = 0) -> None:
    """Add the messages of a history to the tree. prompt: how many items are its prompt, whose answers do not count."""
    for i, item in enumerate(items):
        node = node.next.setdefault(_key(item), _Node(history, i >= prompt and is_answer(item)))


def _shared(node: _Node, items: Sequence[MessageOrChoice]) -> list[_Node]:
    """Find the messages that an earlier history has, too, up to the first answer that was sampled in this one."""
    shared: list[_Node] = []
    for item in items:
        following = node.next.get(_key(item))
        if following is None or (isinstance(item, Choice) and item.sampled_tokens()):
            break
        shared.append(node := following)
    return shared


def _key(item: MessageOrChoice) -> Hashable:
    """Return what programs keep of a message when they send it back."""
    message = (item.message if isinstance(item, Choice) else item).to_wire()
    content, role = message.get("content"), message["role"]
    text, others = plain_text(content), {"name": message.get("name"), "refusal": message.get("refusal")}
    if role == "assistant":
        text = reasoning_of(message, text)[1].strip()
        others["calls"] = [call.get("function") or call.get("custom") for call in message.get("tool_calls") or ()]
        others["call"] = message.get("function_call")
    if isinstance(content, list):
        others["parts"] = [part for part in content if not (isinstance(part, Mapping) and part.get("type") == "text")]
    return role, text, json.dumps(others, sort_keys=True)
