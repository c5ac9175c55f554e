"""What the tools do: the lab behind them, opened at the first call, and its answers as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.chat import AssistantMessage, Message
from rolloutlab.errors import ConflictError, InputError, NotFoundError
from rolloutlab.search.dictionary import parse
from rolloutlab.search.embedding import Embedder, embedder
from rolloutlab.search.index import Index
from rolloutlab.search.query import Limit, Select, search_texts
from rolloutlab.settings import Settings
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, Group, NewGroup, Score, StoredCollection, StoredTrajectory
from rolloutlab.store.rewards import finite

Plain = dict[str, Any]

_ROWS, _MOST_ROWS = 10, 100
_PASSAGE = 600
"""Characters that are shown of a document; all of it comes with `get_trajectory`."""

_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])

_LONGEST_NUMBER = 18
_LONGEST_PATTERNS, _LONGEST_LOOK = 1_000, 3.0
"""Characters that the regular expressions of a search have together, and seconds that they are looked for."""


class LabTools:
    """A lab, for callers on any thread, one at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def close(self) -> None:
        """Let go of the files, where they were opened."""
        opened = self.__dict__
        for name in ("_index", "_lab", "_http"):
            if name in opened:
                opened[name].close()

    def search(self, dictionary: Mapping[str, Any]) -> Plain:
        """What a search dictionary finds: id, score, passage and metadata of each; ten unless it says how many.

        Raises:
            InputError: it is no search; the message says where. Or its regular expressions take too long.
            LabError: the index is damaged.
        """
        _short_enough(dictionary)
        notes = self._index.refresh()
        search = parse(dictionary, self._index.fields())
        rows = min(search.limit.limit or _ROWS, _MOST_ROWS)
        wanted = replace(search, limit=Limit(rows, search.limit.offset), select=Select())
        answer = self._index.search(wanted)
        documents = self._index.documents([hit.id for hit in answer.outcome.hits])
        words = search_texts(search)
        hits = [
            {
                "id": hit.id,
                "score": hit.score,
                "document": passage(documents.get(hit.id, ""), words),
                "metadata": dict(hit.metadata or {}),
            }
            for hit in answer.outcome.hits
        ]
        return {"hits": hits, "notes": [*notes, *answer.notes, *answer.outcome.warnings]}

    def trajectory(self, name: str) -> Plain:
        """All of one trajectory; NotFoundError where there is none of that name."""
        collection, trajectory = self._find(name)
        return {
            "id": _lasting(collection, trajectory.name),
            "reward": trajectory.reward,
            "source": trajectory.source,
            "components": dict(trajectory.components),
            "model": trajectory.model,
            "step": trajectory.step,
            "created_at": trajectory.created_at,
            "row": dict(trajectory.row),
            "messages": trajectory.messages,
        }

    def collections(self, limit: int, offset: int) -> Plain:
        """The collections, newest first."""
        stored = self._lab.collections()
        rows = [
            {
                "collection": f"{each.name}:{each.generation}",
                "groups": each.groups,
                "trajectories": each.trajectories,
                "scored": each.scored,
                "mean_reward": each.mean_reward,
            }
            for each in stored[offset : offset + limit]
        ]
        return {"collections": rows, "total": len(stored)}

    def groups(self, label: str, limit: int, offset: int) -> Plain:
        """The groups of a collection, each with its prompt and the rewards of its trajectories."""
        collection = self._lab.collection(label)
        pages = [self._lab.groups(collection, i) for i in range(offset, min(offset + limit, collection.groups))]
        return {"groups": [_shown(collection, group) for (group,) in pages], "total": collection.groups}

    def add(
        self,
        where: str,
        messages: Sequence[Mapping[str, Any]],
        model: str,
        reward: float | None,
        note: str,
        caller: str,
    ) -> Plain:
        """Store a conversation: in a group (`letters:1/0`), or as the first of a new generation of a collection.

        messages: all of it; what comes before the first assistant message is the prompt, which a group shares.

        Raises:
            InputError: a message is none, there is no answer among them, or the group has another prompt.
            NotFoundError: there is no such group.
        """
        prompt, answers = _halves(messages)

        def add() -> str:
            collection, group = self._open(where, prompt)
            place = 1 + max((int(t.name.rpartition("/")[2]) for t in group.trajectories), default=-1)
            self._lab.put(group, [Arrival(place, answers)], model=model, step=None, sampling={})
            name = _lasting(collection, f"{group.name}/{place}")
            if reward is not None:
                self._give(name, reward, note, caller)
            return name

        name = self._lab.at_once(add)
        return {"id": name, "group": name.rpartition("/")[0], "reward": reward}

    def set_reward(self, name: str, reward: float, note: str, caller: str) -> Plain:
        """Give a reward, logged as one of a tool by its caller: scoring takes its place, and `--undo` takes it back.

        Raises:
            ConflictError: the reward was given by hand, which only a hand replaces.
        """
        old = self._give(name, reward, note, caller)
        return {"id": name, "reward": reward, "before": old}

    def _give(self, name: str, reward: float, note: str, caller: str) -> float | None:
        _, scored = self._find(name)
        score = Score(scored, finite(reward, name), note=note or None)
        edits = self._lab.rewards.give([score], "tool", keep_hand=True, who=caller)
        if not edits and self._find(name)[1].source == "hand":
            raise ConflictError(
                f"the reward of {name} was given by hand, and a tool does not replace it",
                hint=f"the owner of the lab changes it: %rewards {name.partition('/')[0]}",
            )
        return scored.reward

    def _open(self, where: str, prompt: list[Message]) -> tuple[StoredCollection, Group]:
        if "/" not in where:
            opened = self._lab.open_collection(where)
            (group,) = self._lab.add_groups(opened, [NewGroup(prompt, {})])
            return opened, group
        collection, group = self._group(where, unfinished=True)
        if list(group.prompt) != prompt:
            raise InputError(
                f"{where} has another prompt", hint="what comes before the first answer is the same in all of a group"
            )
        return collection, group

    def _find(self, name: str) -> tuple[StoredCollection, StoredTrajectory]:
        label, _, place = name.rpartition("/")
        collection, group = self._group(label)
        for each in group.trajectories:
            if each.name.rpartition("/")[2] == place:
                return collection, each
        raise NotFoundError(
            f"there is no trajectory {name!r}", hint="list_groups and search_trajectories tell the names"
        )

    def _group(self, name: str, *, unfinished: bool = False) -> tuple[StoredCollection, Group]:
        label, _, place = name.rpartition("/")
        if not label or not place.isdecimal():
            raise InputError(f"{name!r} is no group", hint="letters:1/0: the collection, the group")
        collection = self._lab.find(label)
        known = len(place) <= _LONGEST_NUMBER  # SQLite counts no further than 2^63
        groups = self._lab.groups(collection, int(place), unfinished=unfinished) if known else []
        if not groups:
            raise NotFoundError(f"there is no group {name!r}", hint=f"list_groups with the collection {label}")
        return collection, groups[0]

    @cached_property
    def _lab(self) -> Lab:
        return Lab(self._settings.database)

    @cached_property
    def _index(self) -> Index:
        return Index(self._lab, self._settings.search_database, self._embedder(), _LONGEST_LOOK)

    @cached_property
    def _http(self) -> HttpClient:
        return HttpClient()

    def _embedder(self) -> Embedder | None:
        """The embedding model of the settings, by which notebooks search too."""
        chosen = self._settings.embedding
        return embedder(self._http, chosen.model, chosen.name, chosen.key_env) if chosen else None


def passage(document: str, words: Sequence[str]) -> str:
    """A part of a document, around the first of some words that it has."""
    folded = document.casefold()
    places = [place for word in words if (place := folded.find(word.casefold())) >= 0]
    start = max(0, min(places, default=0) - _PASSAGE // 3)
    part = document[start : start + _PASSAGE]
    return f"{'...' if start else ''}{part}{'...' if start + _PASSAGE < len(document) else ''}"


def _short_enough(dictionary: Any) -> None:
    """InputError where the regular expressions are so long that it takes a while to read them."""
    length, waiting = 0, [dictionary]
    while waiting:
        match waiting.pop():
            case dict() as parts:
                length += sum(len(str(parts.get(name, ""))) for name in ("$regex", "$not_regex"))
                waiting += parts.values()
            case list() as parts:
                waiting += parts
    if length > _LONGEST_PATTERNS:
        raise InputError(
            f"where: the regular expressions of a search have at most {_LONGEST_PATTERNS:,} characters, not {length:,}",
            hint='{"where": {"#document": {"$contains": "Paris"}}}',
        )


def _halves(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Message], list[Message]]:
    """The prompt, and everything from the first answer on."""
    try:
        read = _MESSAGES.validate_python(list(messages))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(each) for each in first["loc"])
        raise InputError(f"messages.{place}: {first['msg']}", hint='{"role": "user", "content": "..."}') from error
    answers = [i for i, message in enumerate(read) if isinstance(message, AssistantMessage)]
    if not answers or not answers[0]:
        raise InputError(
            "messages: a prompt and an answer are wanted", hint="an assistant message after a user message"
        )
    return read[: answers[0]], read[answers[0] :]


def _shown(collection: StoredCollection, group: Group) -> Plain:
    return {
        "group": _lasting(collection, group.name),
        "prompt": [message.to_wire() for message in group.prompt],
        "row": dict(group.row),
        "trajectories": [{"id": _lasting(collection, each.name), "reward": each.reward} for each in group.trajectories],
    }


def _lasting(collection: StoredCollection, name: str) -> str:
    """A name with the number of the generation, which means the same when a newer one has begun."""
    return f"{collection.name}:{collection.generation}/{name.partition('/')[2]}"
