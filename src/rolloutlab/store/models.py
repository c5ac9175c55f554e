"""What the lab remembers, as plain values."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

from rolloutlab.api.wire import trajectories as wire
from rolloutlab.api.wire.base import Wire, moment
from rolloutlab.api.wire.chat import AssistantMessage, Choice, Message, MessageOrChoice
from rolloutlab.errors import InputError


@dataclass(frozen=True)
class StoredTrajectory:
    """One recorded conversation: what was asked, what was sampled, and the reward it got, if any.

    name: `capitals/0/3`, the collection, the group and the place in the group. items: messages and choices, in order.
    row: the row of prompts it was sampled for. sampling: temperature, top_p and seed. step: the checkpoint it is from.
    components: the parts of the reward, when it was given in parts. source: who gave it: function, hand, judge or tool.
    pending: how many scripted turns are still to come; 0 when it is finished. extra: further properties of the
    trajectory on the wire, such as its tools. given: how many of the items are the prompt, where that is known.
    """

    id: int
    name: str
    items: tuple[MessageOrChoice, ...]
    row: Mapping[str, Any]
    model: str
    step: int | None
    sampling: Mapping[str, Any]
    created_at: str
    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    source: str | None = None
    pending: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    given: int | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as plain messages, the sampled ones included."""
        return [(item.message if isinstance(item, Choice) else item).to_wire() for item in self.items]

    @property
    def prompt(self) -> str:
        """The text of the last user message that was given, before anything was sampled."""
        users = [message for message in self.messages[: self.given] if message["role"] == "user"]
        return plain_text(users[-1].get("content")) if users else ""

    @property
    def answer(self) -> str:
        """The text of the last thing the policy said; where nothing was sampled, the assistant's last message."""
        if self.choices or self.given is None:
            return plain_text(self.choices[-1].message.content) if self.choices else ""
        messages = [item for item in self.items[self.given :] if isinstance(item, AssistantMessage)]
        return plain_text(messages[-1].content) if messages else ""

    @cached_property
    def additional(self) -> list[wire.History]:
        """Further conversations that share its reward."""
        return [wire.History.model_validate(each) for each in self.extra.get("additional_histories") or ()]

    @cached_property
    def choices(self) -> list[Choice]:
        return _choices(self.items)

    @property
    def finish_reason(self) -> str | None:
        return self.choices[-1].finish_reason if self.choices else None

    @property
    def tokens(self) -> int:
        """How many tokens were sampled and carry logprobs, over all its histories."""
        return sum(self.history_tokens)

    @property
    def history_tokens(self) -> tuple[int, ...]:
        """As `tokens`, for each of its histories."""
        histories = (self.choices, *(_choices(each.messages_and_choices) for each in self.additional))
        return tuple(sum(len(choice.trained_tokens()) for choice in choices) for choices in histories)

    def histories(self) -> list[wire.History]:
        """Its conversation with the tools that were offered, then the further ones."""
        tools = self.extra.get("tools")
        main = {"messages_and_choices": list(self.items), **({"tools": tools} if tools else {})}
        return [wire.History.model_validate(main), *self.additional]

    @property
    def steps(self) -> list[int]:
        """The checkpoint of each of its answers, where that is known; `[step]` where only that is, or nothing."""
        if self.step is None:
            return []
        versions = [(choice.model_extra or {}).get("policy_version") for choice in self.choices]
        return [version for version in versions if isinstance(version, int)] or [self.step]

    def _versions(self) -> dict[str, int]:
        """The checkpoints of its first and its last answer, where they are known."""
        steps = self.steps
        return {"initial_policy_version": steps[0], "final_policy_version": steps[-1]} if steps else {}

    def to_wire(self) -> wire.Trajectory:
        """The trajectory as a training job carries it; it must have a reward. `extra` goes before the rest."""
        metadata = {k: v for k, v in self.row.items() if isinstance(v, str | int | float | bool | None)}
        return wire.Trajectory.model_validate(
            {
                "messages_and_choices": list(self.items),
                "start_time": self.created_at,
                **self._versions(),
                **self.extra,
                "reward": self.reward,
                "metrics": {**(self.extra.get("metrics") or {}), **self.components},
                "metadata": {
                    **metadata,
                    **self.sampling,
                    "name": self.name,
                    "model": self.model,
                    **(self.extra.get("metadata") or {}),
                },
            }
        )


class TrajectorySummary(NamedTuple):
    """A finished trajectory without its conversation, light enough for a hundred thousand of them.

    group, position: the place of its group in the collection, and its own in the group. tokens_H: trainable tokens of
    each of its histories. The rest is as in `Trajectory`.
    """

    id: int
    group: int
    position: int
    reward: float | None
    source: str | None
    components: Mapping[str, float]
    tokens_H: tuple[int, ...]
    finish_reason: str | None


@dataclass(frozen=True)
class Group:
    """Trajectories of the same prompt. name: `capitals/0`.

    script: the turns of each trajectory: what is said before the policy answers. The first begins after the prompt.
    """

    id: int
    name: str
    prompt: tuple[Message, ...]
    row: Mapping[str, Any]
    trajectories: tuple[StoredTrajectory, ...] = ()
    script: tuple[tuple[Message, ...], ...] = ((),)

    @property
    def position(self) -> int:
        """Its place in the collection."""
        return int(self.name.rpartition("/")[2])


@dataclass(frozen=True)
class NewGroup:
    """A group to be: its prompt, the row of prompts it comes from, and its script."""

    prompt: Sequence[Message]
    row: Mapping[str, Any]
    script: Sequence[Sequence[Message]] = ((),)


@dataclass(frozen=True)
class Arrival:
    """What was sampled at one place of a group: everything after the prompt, with `pending` turns still to come."""

    position: int
    items: Sequence[MessageOrChoice]
    pending: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Placed:
    """What was sampled for one group, by which checkpoint and how. usage: prompt and completion tokens it cost."""

    group: Group
    arrivals: Sequence[Arrival]
    model: str
    step: int | None
    sampling: Mapping[str, Any]
    usage: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Recorded:
    """A trajectory that was recorded elsewhere, and where it goes; `place` is where it was found, such as `line 7`.

    generation, position: as they were, None when anything will do. group: a position in the collection, or any text
    that trajectories of one group share. items: everything after the prompt. The rest is as in `Trajectory`.
    """

    place: str
    collection: str
    group: int | str
    prompt: Sequence[Message]
    items: Sequence[MessageOrChoice]
    generation: int | None = None
    position: int | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    step: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    created_at: str | None = None
    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    source: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def copy_of(
        cls, trajectory: StoredTrajectory, prompt: Sequence[Message], collection: str, group: int | str
    ) -> Self:
        """A stored trajectory once more, with its reward; `prompt` is how its items begin."""
        return cls(
            trajectory.name,
            collection,
            group,
            prompt,
            trajectory.items[len(prompt) :],
            row=trajectory.row,
            model=trajectory.model,
            step=trajectory.step,
            sampling=trajectory.sampling,
            created_at=trajectory.created_at,
            reward=trajectory.reward,
            components=trajectory.components,
            source=trajectory.source,
            extra=trajectory.extra,
        )


@dataclass(frozen=True)
class StoredCollection:
    """One generation of a collection. plan: how it is sampled. Tokens are what sampling and judging it took."""

    id: int
    name: str
    generation: int
    newest: bool
    created_at: str
    plan: Mapping[str, Any]
    prompt_tokens: int
    completion_tokens: int

    @property
    def label(self) -> str:
        """The bare name for the newest generation, `name:N` for an older one."""
        return self.name if self.newest else f"{self.name}:{self.generation}"


@dataclass(frozen=True)
class CollectionSummary(StoredCollection):
    """One generation of a collection, counted."""

    groups: int
    trajectories: int
    scored: int
    mean_reward: float | None

    @property
    def missing(self) -> int:
        """How many trajectories its plan still wants."""
        return max(0, int(self.plan.get("total", 0)) - self.trajectories)


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of one reward: when (UTC), who, by which source, from what to what; None is no reward.

    change: what was given at once has one number. note: why, where the source says so. undoes: the change that this one
    takes back; its source is then `undo`.
    """

    trajectory: str
    at: str
    who: str
    source: str
    old: float | None
    new: float | None
    components: Mapping[str, float]
    change: int
    note: str | None = None
    undoes: int | None = None


class TrajectoryKey(Protocol):
    """A trajectory as far as a reward for it needs to know it."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...


class Ref(NamedTuple):
    """A trajectory by its id and name alone: what is kept of it where there may be a hundred thousand."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Score:
    """A reward for a trajectory, with its components when it has some, and a note that says why."""

    trajectory: TrajectoryKey
    reward: float
    components: Mapping[str, float] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True)
class SubmittedJob:
    """A training job that this lab submitted: where, for which model, from which collections, with which options.

    service: the address of a hosted service, or `embedded`, whose address changes. status: what was last heard of it;
    None when nothing was. step: the checkpoint that it made.
    """

    id: str
    service: str
    model: str
    collections: tuple[str, ...]
    options: Mapping[str, Any]
    created_at: str
    status: str | None = None
    step: int | None = None


def _choices(items: Sequence[MessageOrChoice]) -> list[Choice]:
    return [item for item in items if isinstance(item, Choice)]


def plain_text(content: Any) -> str:
    """The text of a message's content, which may come in parts."""
    if isinstance(content, list):
        return "".join(_text_of(part) for part in content)
    return str(content or "")


def _text_of(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else getattr(part, "text", None)
    return str(text or "")


_LABEL = re.compile(r"([\w.-]+)(?::(\d{1,18}))?")
"""SQLite counts no further than 2^63."""


def parts_of(label: str) -> tuple[str, int | None] | None:
    """Name and generation of `name` or `name:N`; None when it is written otherwise.

    Raises:
        InputError: it is no text.
    """
    if not isinstance(label, str):
        raise InputError(f"a {type(label).__name__} is no name of a collection", hint="%collections lists them")
    match = _LABEL.fullmatch(label)
    return (match[1], int(match[2]) if match[2] else None) if match else None


def dumped(items: Sequence[Wire]) -> str:
    """Messages and choices as a JSON array."""
    return "[" + ",".join(item.to_json() for item in items) + "]"


def now() -> str:
    """The time now, UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat()


def minute(time: str) -> str:
    """A time as a table shows it, in UTC and to the minute: `2026-01-31 12:00`."""
    return f"{moment(time).astimezone(UTC):%Y-%m-%d %H:%M}"
