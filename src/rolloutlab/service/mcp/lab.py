"""Implementation of the MCP tools over a lab, which is opened at the first call; results are JSON-ready."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.chat import AssistantMessage, Message
from rolloutlab.errors import ConflictError, InputError, NotFoundError
from rolloutlab.search.dictionary import parse
from rolloutlab.search.embedding import embedder
from rolloutlab.search.index import Index
from rolloutlab.search.query import Limit, Select, search_texts
from rolloutlab.settings import Settings
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, Group, NewGroup, Score, StoredCollection, StoredTrajectory, is_hidden
from rolloutlab.store.rewards import finite

Plain = dict[str, Any]
_ROWS, _MAX_ROWS = 10, 100
_PASSAGE = 600
"""Characters of a search result; `get_trajectory` returns the whole conversation."""
_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])
_MAX_DIGITS = 18
_MAX_PATTERN_CHARS, _PATTERN_SECONDS = 1_000, 3.0
"""Limits of all regular expressions of a search together."""


class LabTools:
    """The tools as methods, which any thread may call, one call at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def close(self) -> None:
        """Close what has been opened."""
        opened = self.__dict__
        for name in ("_index", "_lab", "_http"):
            if name in opened:
                opened[name].close()

    def search(self, dictionary: Mapping[str, Any]) -> Plain:
        """Find the hits of a search dictionary: id, score, passage and metadata; ten by default.

        Raises:
            InputError: not a valid search, with the path of the error; or its regular expressions take too long.
            LabError: the index is damaged.
        """
        _check_pattern_length(dictionary)
        notes = self._index.refresh()
        search = parse(dictionary, self._index.fields())
        rows = min(search.limit.limit or _ROWS, _MAX_ROWS)
        answer = self._index.search(replace(search, limit=Limit(rows, search.limit.offset), select=Select()))
        documents = self._index.documents([hit.id for hit in answer.outcome.hits])
        words = search_texts(search)
        hits = [
            {"id": hit.id, "score": hit.score, "document": passage(documents.get(hit.id, ""), words),
             "metadata": dict(hit.metadata or {})}
            for hit in answer.outcome.hits
        ]  # fmt: skip
        return {"hits": hits, "notes": [*notes, *answer.notes, *answer.outcome.warnings]}

    def trajectory(self, name: str) -> Plain:
        """Return a whole trajectory, or raise NotFoundError."""
        collection, trajectory = self._find(name)
        shown = ("reward", "source", "components", "model", "step", "created_at", "row", "messages")
        values = {name: getattr(trajectory, name) for name in shown}
        return {"id": _stable_name(collection, trajectory.name), **values}

    def collections(self, limit: int, offset: int, *, everything: bool = False) -> Plain:
        """List the collections, newest first. everything: list those of comparisons as well."""
        stored = [each for each in self._lab.collections() if everything or not is_hidden(each.name)]
        counts = ("groups", "trajectories", "scored", "mean_reward")
        rows = [
            {"collection": f"{each.name}:{each.generation}", **{name: getattr(each, name) for name in counts}}
            for each in stored[offset : offset + limit]
        ]
        return {"collections": rows, "total": len(stored)}

    def groups(self, label: str, limit: int, offset: int) -> Plain:
        """List the groups of a collection, each with its prompt and the rewards of its trajectories."""
        collection = self._lab.collection(label)
        positions = self._lab.outlines.positions(collection)  # they may have gaps
        groups = [group for i in positions[offset : offset + limit] for group in self._lab.groups(collection, i)]
        return {"groups": [_group_summary(collection, group) for group in groups], "total": len(positions)}

    def add(
        self, into: str, messages: Sequence[Mapping[str, Any]], model: str, reward: float | None, note: str, caller: str
    ) -> Plain:
        """Store a conversation: in a group (`letters:1/0`), or as the first of a new generation of a collection.

        Args:
            into: The group, or the name of the collection.
            messages: The whole conversation. Messages before the first assistant message are the prompt of the group.
            model: The model that wrote the answers.
            reward: The reward, if any.
            note: The reason for the reward.
            caller: The client that calls the tool.

        Raises:
            InputError: a message is invalid, none is an assistant's, or the group has another prompt.
            NotFoundError: there is no such group.
        """
        prompt, answers = _split_prompt(messages)

        def add() -> str:
            collection, group = self._open(into, prompt)
            position = 1 + max((int(t.name.rpartition("/")[2]) for t in group.trajectories), default=-1)
            self._lab.put(group, [Arrival(position, answers)], model=model, step=None, sampling={})
            name = _stable_name(collection, f"{group.name}/{position}")
            if reward is not None:
                self._set_reward(name, reward, note, caller)
            return name

        name = self._lab.at_once(add)
        return {"id": name, "group": name.rpartition("/")[0], "reward": reward}

    def set_reward(self, name: str, reward: float, note: str, caller: str) -> Plain:
        """Set a reward with the source `tool` and the caller's name; scoring overwrites it, and `--undo` reverts it.

        Raises:
            ConflictError: the reward was given by hand, and only a person replaces it.
        """
        old = self._set_reward(name, reward, note, caller)
        return {"id": name, "reward": reward, "before": old}

    def _set_reward(self, name: str, reward: float, note: str, caller: str) -> float | None:
        _, scored = self._find(name)
        score = Score(scored, finite(reward, name), note=note or None)
        edits = self._lab.rewards.give([score], "tool", keep_hand=True, who=caller)
        if not edits and self._find(name)[1].source == "hand":
            raise ConflictError(
                f"the reward of {name} was given by hand, and a tool cannot replace it",
                hint=f"the owner of the lab changes it: %rewards {name.partition('/')[0]}",
            )
        return scored.reward

    def _open(self, into: str, prompt: list[Message]) -> tuple[StoredCollection, Group]:
        if "/" not in into:
            opened = self._lab.open_collection(into)
            (group,) = self._lab.add_groups(opened, [NewGroup(prompt, {})])
            return opened, group
        collection, group = self._group(into, unfinished=True)
        if list(group.prompt) != prompt:
            hint = "the messages before the first assistant message must be the same in the whole group"
            raise InputError(f"{into} has another prompt", hint=hint)
        return collection, group

    def _find(self, name: str) -> tuple[StoredCollection, StoredTrajectory]:
        label, _, position = name.rpartition("/")
        collection, group = self._group(label)
        for each in group.trajectories:
            if each.name.rpartition("/")[2] == position:
                return collection, each
        raise NotFoundError(f"there is no trajectory {name!r}", hint="list_groups and search_trajectories list ids")

    def _group(self, name: str, *, unfinished: bool = False) -> tuple[StoredCollection, Group]:
        label, _, position = name.rpartition("/")
        if not label or not position.isdecimal():
            raise InputError(f"{name!r} is not the name of a group", hint="letters:1/0: the collection, the group")
        collection = self._lab.find(label)
        in_range = len(position) <= _MAX_DIGITS  # SQLite's integers end at 2^63
        if not (groups := self._lab.groups(collection, int(position), unfinished=unfinished) if in_range else []):
            raise NotFoundError(f"there is no group {name!r}", hint=f"list_groups with the collection {label}")
        return collection, groups[0]

    @cached_property
    def _lab(self) -> Lab:
        return Lab(self._settings.database)

    @cached_property
    def _index(self) -> Index:
        model = self._settings.embedding  # as in notebooks
        embed = embedder(self._http, model.model, model.name, model.key_env) if model else None
        return Index(self._lab, self._settings.search_database, embed, _PATTERN_SECONDS)

    @cached_property
    def _http(self) -> HttpClient:
        return HttpClient()


def passage(document: str, words: Sequence[str]) -> str:
    """Cut out the part of a document around the first occurrence of any of some words."""
    folded = document.casefold()
    positions = [position for word in words if (position := folded.find(word.casefold())) >= 0]
    start = max(0, min(positions, default=0) - _PASSAGE // 3)
    part = document[start : start + _PASSAGE]
    return f"{'...' if start else ''}{part}{'...' if start + _PASSAGE < len(document) else ''}"


def _check_pattern_length(dictionary: Any) -> None:
    """Raise InputError if the regular expressions are so long that compiling them would take too long."""
    length, stack = 0, [dictionary]
    while stack:
        match stack.pop():
            case dict() as parts:
                length += sum(len(str(parts.get(name, ""))) for name in ("$regex", "$not_regex"))
                stack += parts.values()
            case list() as parts:
                stack += parts
    if length > _MAX_PATTERN_CHARS:
        raise InputError(
            f"where: the regular expressions have {length:,} characters; at most {_MAX_PATTERN_CHARS:,} are allowed",
            hint='{"where": {"#document": {"$contains": "Paris"}}}',
        )


def _split_prompt(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Message], list[Message]]:
    """Split a conversation into its prompt and everything from the first assistant message on."""
    try:
        parsed = _MESSAGES.validate_python(list(messages))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(each) for each in first["loc"])
        raise InputError(f"messages.{path}: {first['msg']}", hint='{"role": "user", "content": "..."}') from error
    if not (start := next((i for i, message in enumerate(parsed) if isinstance(message, AssistantMessage)), 0)):
        hint = "an assistant message after a user message"
        raise InputError("messages: must be a prompt and an answer", hint=hint)
    return parsed[:start], parsed[start:]


def _group_summary(collection: StoredCollection, group: Group) -> Plain:
    return {
        "group": _stable_name(collection, group.name),
        "prompt": [message.to_wire() for message in group.prompt],
        "row": dict(group.row),
        "trajectories": [{"id": _stable_name(collection, t.name), "reward": t.reward} for t in group.trajectories],
    }


def _stable_name(collection: StoredCollection, name: str) -> str:
    """Add the number of the generation to a name, so that it stays valid when a newer one begins."""
    return f"{collection.name}:{collection.generation}/{name.partition('/')[2]}"
