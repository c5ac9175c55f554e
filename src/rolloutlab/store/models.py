"""Value types of the lab."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple, Protocol, Self

from rolloutlab.api.wire import trajectories as wire
from rolloutlab.api.wire.base import Wire
from rolloutlab.api.wire.chat import AssistantMessage, Choice, Message, MessageOrChoice
from rolloutlab.api.wire.reasoning import UNREAD, is_unread_mark, reasoning_of
from rolloutlab.errors import InputError
from rolloutlab.objective.credit import turn_rewards
from rolloutlab.store.texts import last_user_text, plain_text

_OPENING_TOKENS = 8
"""The number of tokens of a completion within which reasoning begins."""


@dataclass(frozen=True)
class StoredTrajectory:
    """A trajectory: one conversation with its sampled completions and its reward, if any.

    Attributes:
        id: The number in the database.
        name: Collection, group and position in the group, such as `capitals/0/3`.
        items: Messages and choices, in order.
        row: The row of the prompts that it was sampled for.
        model: The model that sampled it.
        step: The number of the model's checkpoint, if known.
        sampling: Temperature, top_p and seed.
        created_at: The time of its creation, in UTC.
        reward: The reward, if any.
        components: The parts of the reward.
        source: What gave the reward: function, hand, judge, tool or environment.
        pending: The number of scripted turns still to come; 0 if it is finished.
        extra: Further properties of the trajectory on the wire, such as its tools.
        given: The number of items that are the prompt, if known.
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
    def position(self) -> int:
        """The place of the trajectory in its group."""
        return int(self.name.rpartition("/")[2])

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as plain messages, sampled ones included."""
        return [(item.message if isinstance(item, Choice) else item).to_wire() for item in self.items]

    @property
    def prompt(self) -> str:
        """The last user message of the prompt; without one, as with an environment, the last before a completion."""
        before = takewhile(lambda item: not isinstance(item, Choice), self.items)
        return last_user_text(self.messages[: self.given]) or last_user_text(item.to_wire() for item in before)

    @property
    def answer(self) -> str:
        """The last completion without its reasoning; if nothing was sampled, the assistant's last message."""
        return self._reasoned[1]

    @property
    def reasoning(self) -> str:
        """The reasoning of the last completion, or of the assistant's last message; empty without any."""
        return self._reasoned[0]

    @property
    def unread_reasoning(self) -> str:
        """The mark, such as `[THINK]`, of reasoning in `answer` that could not be separated; empty if there is none.

        The service that sampled it reported the mark, or one of its first tokens is named like one.
        """
        if not self.choices or self.reasoning:
            return ""
        last = self.choices[-1]
        marks = (token.token for token in last.sampled_tokens()[:_OPENING_TOKENS] if is_unread_mark(token.token))
        return str((last.model_extra or {}).get(UNREAD) or next(marks, ""))

    @property
    def _reasoned(self) -> tuple[str, str]:
        messages: list[Wire] = [choice.message for choice in self.choices[-1:]]
        if not messages and self.given is not None:
            messages = [item for item in self.items[self.given :] if isinstance(item, AssistantMessage)]
        if not messages:
            return "", ""
        message = messages[-1].to_wire()
        return reasoning_of(message, plain_text(message.get("content")))

    @cached_property
    def additional(self) -> list[wire.History]:
        """Further conversations that share the reward."""
        return [wire.History.model_validate(each) for each in self.extra.get("additional_histories") or ()]

    @cached_property
    def choices(self) -> list[Choice]:
        return _choices(self.items)

    @property
    def turn_rewards(self) -> list[float | None]:
        """The reward that the environment gave for each completion; None if it gave none."""
        rewards = turn_rewards(self.extra.get("metrics") or {})
        return [rewards.get(turn) for turn in range(len(self.choices))]

    @property
    def episode_end(self) -> str | None:
        """How the episode with an environment ended (`environments.record.End`); None without an episode."""
        return str((self.extra.get("metadata") or {}).get("episode_end") or "") or None

    @property
    def finish_reason(self) -> str | None:
        return self.choices[-1].finish_reason if self.choices else None

    @property
    def tokens(self) -> int:
        """The number of sampled tokens with logprobs, over all histories."""
        return sum(self.history_tokens)

    @property
    def history_tokens(self) -> tuple[int, ...]:
        """The number of sampled tokens with logprobs of each history."""
        histories = (self.choices, *(_choices(each.messages_and_choices) for each in self.additional))
        return tuple(sum(len(choice.trained_tokens()) for choice in choices) for choices in histories)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the sampling, and the components of the reward."""
        return {**(self.extra.get("metrics") or {}), **self.components}

    def histories(self) -> list[wire.History]:
        """Return the main conversation with its tools, then the additional ones."""
        tools = self.extra.get("tools")
        main = {"messages_and_choices": list(self.items), **({"tools": tools} if tools else {})}
        return [wire.History.model_validate(main), *self.additional]

    @property
    def steps(self) -> list[int]:
        """The checkpoint of each completion if known, else `[step]`, or nothing."""
        if self.step is None:
            return []
        versions = [(choice.model_extra or {}).get("policy_version") for choice in self.choices]
        return [version for version in versions if isinstance(version, int)] or [self.step]

    def to_wire(self) -> wire.Trajectory:
        """Convert the trajectory to what a training job gets. It must have a reward. `extra` overrides other fields."""
        steps = self.steps
        versions = {"initial_policy_version": steps[0], "final_policy_version": steps[-1]} if steps else {}
        own = {**self.sampling, "name": self.name, "model": self.model}
        metadata = {k: v for k, v in self.row.items() if isinstance(v, str | int | float | bool | None)}
        return wire.Trajectory.model_validate(
            {
                "messages_and_choices": list(self.items),
                "start_time": self.created_at,
                **versions,
                **self.extra,
                "reward": self.reward,
                "metrics": self.metrics,
                "metadata": {**metadata, **own, **(self.extra.get("metadata") or {})},
            }
        )


class TrajectorySummary(NamedTuple):
    """A finished trajectory without its conversation, small enough for lists of 100,000.

    group: the position of the group in the collection. position: the position in the group. tokens_H: the number of
    trainable tokens of each history. The other attributes are those of `StoredTrajectory`.
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
    """Trajectories of the same prompt.

    name: collection and position, such as `capitals/0`.
    script: the messages before each completion of a trajectory; the first turn follows the prompt.
    """

    id: int
    name: str
    prompt: tuple[Message, ...]
    row: Mapping[str, Any]
    trajectories: tuple[StoredTrajectory, ...] = ()
    script: tuple[tuple[Message, ...], ...] = ((),)

    @property
    def position(self) -> int:
        """The place of the group in its collection."""
        return int(self.name.rpartition("/")[2])


@dataclass(frozen=True)
class NewGroup:
    """A group to create: prompt, row and script."""

    prompt: Sequence[Message]
    row: Mapping[str, Any]
    script: Sequence[Sequence[Message]] = ((),)


@dataclass(frozen=True)
class Arrival:
    """A completion to store: the items after the prompt, for one position of a group.

    pending: the number of scripted turns still to come. components: parts of the reward, from the environment.
    """

    position: int
    items: Sequence[MessageOrChoice]
    pending: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    components: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorded:
    """A trajectory to import. Attributes that are not listed are those of `StoredTrajectory`.

    Attributes:
        place: Where it comes from, for errors, such as `line 7`.
        collection: The name of its collection.
        group: A position in the collection, or any text that the trajectories of one group share.
        prompt: The messages of the prompt.
        items: Everything after the prompt.
        generation: The number of its generation; None if any will do.
        position: The position in its group; None if any will do.
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
        """Copy a stored trajectory with its reward. prompt: the messages that its items begin with."""
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


COMPARED = "compare."
"""The prefix of the names of collections that comparisons sample."""


def is_hidden(name: str) -> bool:
    """Whether a comparison sampled the collection: lists and searches leave it out unless it is asked for."""
    return name.startswith(COMPARED)


def is_asked_for(name: str, pattern: str | None) -> bool:
    """Whether a list with this pattern has a collection: a hidden one only if the pattern begins with `compare.`."""
    return not is_hidden(name) or is_hidden(pattern or "")


@dataclass(frozen=True)
class StoredCollection:
    """One generation of a collection. plan: how it is sampled. Token counts include judging.

    bare: whether it is the newest generation and the one that the bare name means in this notebook.
    """

    id: int
    name: str
    generation: int
    bare: bool
    created_at: str
    plan: Mapping[str, Any]
    prompt_tokens: int
    completion_tokens: int

    @property
    def label(self) -> str:
        """The bare name if that means this generation and no newer one exists, else `name:N`."""
        return self.name if self.bare else f"{self.name}:{self.generation}"


@dataclass(frozen=True)
class CollectionSummary(StoredCollection):
    """A collection with counts."""

    groups: int
    trajectories: int
    scored: int
    mean_reward: float | None

    @property
    def missing(self) -> int:
        """Planned trajectories that are still missing."""
        return max(0, int(self.plan.get("total", 0)) - self.trajectories)


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of one reward.

    Attributes:
        trajectory: The name of the trajectory.
        at: The time, in UTC.
        who: The user.
        source: What made the edit: function, hand, judge, tool, environment or undo.
        old: The reward before; None if there was none.
        new: The reward after; None if there is none.
        components: The parts of the new reward.
        change: The number of the change; all edits of one call share it.
        note: The reason, if given.
        undoes: The change that this one reverts, if its source is `undo`.
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


class Undoable(NamedTuple):
    """A change of rewards that is not undone.

    low, high: the range of the rewards that it gave. cleared: the number of rewards that it removed.
    """

    source: str
    rewards: int
    cleared: int
    low: float | None
    high: float | None


class TrajectoryKey(Protocol):
    """The part of a trajectory that a reward refers to."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...


class Ref(NamedTuple):
    """A trajectory's id and name, for lists of 100,000."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Score:
    """A reward for a trajectory, with optional components and a note."""

    trajectory: TrajectoryKey
    reward: float
    components: Mapping[str, float] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True)
class SubmittedJob:
    """A training job submitted from this lab.

    service: the URL of a hosted service, or `embedded`, whose URL changes. status: the last known one, or None. step:
    the checkpoint that it produced.
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


_LABEL = re.compile(r"([\w.-]+)(?::(\d{1,18}))?")
"""The form of a label. A generation has at most 18 digits, because SQLite's integers end at 2^63."""


def parts_of(label: str) -> tuple[str, int | None] | None:
    """Parse `name` or `name:N`; None for any other text. Raise InputError if it is not a string."""
    if not isinstance(label, str):
        message = f"a collection name must be a string, not {type(label).__name__}"
        raise InputError(message, hint="%collections lists them")
    match = _LABEL.fullmatch(label)
    return (match[1], int(match[2]) if match[2] else None) if match else None


def dump_items(items: Sequence[Wire]) -> str:
    """Write messages and choices as a JSON array."""
    return "[" + ",".join(item.to_json() for item in items) + "]"


def now() -> str:
    """Return the time now, in UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat()
