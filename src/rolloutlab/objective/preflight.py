"""What of a job will train, and in words why the rest will not and what to type about it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rolloutlab.api.wire.chat import Choice
from rolloutlab.api.wire.trajectories import History, Trajectory
from rolloutlab.objective.advantages import Member, Reason, TokenWeight, token_weights
from rolloutlab.objective.options import Options

WHY = {
    Reason.UNSCORED: "no reward yet",
    Reason.EQUAL_REWARDS: "all rewards of the group are equal, so nothing in it is better or worse",
    Reason.MEAN_REWARD: "exactly the group's mean reward, so the advantage is 0",
    Reason.NO_LOGPROBS: "no sampled tokens with logprobs",
    Reason.TOO_LONG: "longer than the policy's context",
    Reason.UNREADABLE: "it holds what the policy cannot read",
    Reason.BALANCED_AWAY: "advantage_balance takes the whole advantage away",
}

_FIX = {
    Reason.UNSCORED: "%%reward {collection}",
    Reason.EQUAL_REWARDS: "%%reward {collection} with a finer score, or %%chat with a larger -n or --temperature 1",
    Reason.MEAN_REWARD: "nothing: this is expected",
    Reason.NO_LOGPROBS: "%logprobs {collection} adds them",
    Reason.TOO_LONG: "%%chat {collection} with a smaller --max-tokens or a shorter prompt",
    Reason.UNREADABLE: "%group {collection} shows it",
    Reason.BALANCED_AWAY: "advantage_balance: 0",
}


class Seat(NamedTuple):
    """A stored trajectory as far as a dry run shows it. tokens: how many of it train."""

    name: str
    reward: float | None
    tokens: int


@dataclass(frozen=True)
class Preflight:
    """What a job would train. `shares` has one list per group, in order; unscored trajectories are in `unscored`."""

    shares: list[list[TokenWeight]]
    unscored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    skipped: Mapping[Reason, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        names: dict[Reason, list[str]] = {Reason.UNSCORED: list(self.unscored)} if self.unscored else {}
        for share in self.all_shares():
            if share.reason:
                names.setdefault(share.reason, []).append(share.member.name)
        object.__setattr__(self, "skipped", {reason: tuple(found) for reason, found in names.items()})

    def all_shares(self) -> Iterable[TokenWeight]:
        return (share for group in self.shares for share in group)

    @property
    def trajectories(self) -> int:
        return sum(map(len, self.shares)) + len(self.unscored)

    @property
    def trainable_groups(self) -> int:
        return sum(any(share.reason is None for share in group) for group in self.shares)

    @property
    def trainable_trajectories(self) -> int:
        return sum(share.reason is None for share in self.all_shares())

    @property
    def trainable_tokens(self) -> int:
        return sum(share.member.tokens for share in self.all_shares() if share.reason is None)

    def reasons(self) -> dict[str, int]:
        """How many trajectories each reason keeps from training."""
        return {str(reason): len(names) for reason, names in self.skipped.items()}

    def unreadable(self) -> dict[str, list[str]]:
        """What the policy cannot read, with its place in the trajectory; and the trajectories that hold it there."""
        found: dict[str, list[str]] = {}
        for share in self.all_shares():
            if share.reason is Reason.UNREADABLE:
                found.setdefault(share.member.unreadable, []).append(share.member.name)
        return found

    def words(self, collection: str = "NAME") -> list[str]:
        """The report for a person: one line for what trains, one per reason for the rest, then the warnings."""
        groups = f"{self.trainable_groups:,} of {count(len(self.shares), 'group')}"
        lines = [
            f"{self.trainable_trajectories:,} of {count(self.trajectories, 'trajectory')} will train: "
            f"{count(self.trainable_tokens, 'token')} in {groups}"
        ]
        for reason, names in self.skipped.items():
            fix = _FIX[reason].format(collection=collection)
            why = WHY[reason]
            if reason is Reason.UNREADABLE:
                why += f", {_some(list(self.unreadable()))}"
            lines.append(f"{len(names):,} left out: {why} ({_some(names)}) -> {fix}")
        return [*lines, *self.warnings]


def explained(reason: str, collection: str) -> tuple[str, str]:
    """Why a trajectory does not train, and what to type about it, for a reason by its name on the wire."""
    try:
        known = Reason(reason)
    except ValueError:  # of a newer service
        return reason, ""
    return WHY[known], _FIX[known].format(collection=collection)


def preflight(
    groups: Sequence[Sequence[Member]], options: Options, unscored: Iterable[str] = (), warnings: Iterable[str] = ()
) -> Preflight:
    """Check a job before it is sent: the trainer's own shares, and why anything is left out."""
    ignored = [f"unknown option {name!r} has no effect here" for name in options.unknown]
    return Preflight(token_weights(groups, options), tuple(unscored), (*ignored, *warnings))


def member(name: str, trajectory: Trajectory) -> Member:
    """A trajectory as the objective sees it, before anyone knows how long its histories are in tokens."""
    return Member(name, trajectory.reward, tuple(map(sampled_tokens, trajectory.histories())))


def no_text(histories: Sequence[History]) -> str:
    """The first part of the histories that a policy which reads text alone cannot read, with its place; or nothing.

    Which kinds of messages a policy's chat template writes, and which tokens it has, its service alone knows.
    """
    for h, history in enumerate(histories):
        items = history.messages_and_choices
        sampled = [i for i, item in enumerate(items) if isinstance(item, Choice) and item.sampled_tokens()]
        for i, item in enumerate(items[: max(sampled, default=0)]):  # what comes after the last is not read
            if not isinstance(item, Choice) and (found := _no_text(item)):
                return f"{f'additional_histories.{h - 1}.' if h else ''}messages_and_choices.{i}.{found}"
    return ""


def _no_text(message: Any) -> str:
    content = getattr(message, "content", None)
    for j, part in enumerate(content if isinstance(content, list) else ()):
        if part.type not in {"text", "refusal"}:
            return f"content.{j}: the policy reads text, not {part.type}"
    audio = getattr(message, "audio", None)
    words = (audio.model_extra or {}).get("transcript") if audio is not None else None
    spoken = audio is not None and not (isinstance(words, str) and words)
    return "audio: the policy reads text, and this audio has no transcript" if spoken else ""


def sampled_tokens(history: History) -> int:
    """How many trainable tokens a history holds: the sampled tokens of its Choices that carry logprobs."""
    return sum(len(item.trained_tokens()) for item in history.messages_and_choices if isinstance(item, Choice))


def sampling_warnings(trajectories: Iterable[Trajectory]) -> list[str]:
    """Warnings about how the completions were sampled.

    Logprobs are of the unscaled full-vocabulary distribution; at another temperature or top_p the sampler did not draw
    from it, and no logprob that is recorded or recomputed knows.
    """
    return setting_warnings(Counter(setting for trajectory in trajectories for setting in odd_settings(trajectory)))


def odd_settings(trajectory: Trajectory) -> list[str]:
    """How a trajectory was sampled where that was not from the distribution of its logprobs: `temperature 0.7`."""
    values = {name: trajectory.metadata.get(name, 1) for name in ("temperature", "top_p")}
    return [f"{name} {value}" for name, value in values.items() if value != 1]


def setting_warnings(odd: Mapping[str, int]) -> list[str]:
    """As `sampling_warnings`, from how many trajectories were sampled at each setting."""
    return [
        f"{count(n, 'trajectory')} sampled at {setting}: importance ratios assume 1 -> sample at 1"
        for setting, n in odd.items()
    ]


def lag_warnings(sampled: Mapping[int, int], begins: int, collection: str, *, recomputes: bool = False) -> list[str]:
    """Warnings about completions of older checkpoints than the one that a job trains from.

    sampled: how many trajectories have their oldest answer from each step. begins: the step that the job starts from.
    recomputes: whether the job recomputes old logprobs, which makes every importance ratio begin at 1.
    """
    older = {step: n for step, n in sampled.items() if step < begins}
    if not older:
        return []
    first, last, number = min(older), max(older), sum(older.values())
    steps, lag = (f"step {first}", "lag") if first == last else (f"steps {first} to {last}", "lag up to")
    lines = [
        f"{count(number, 'trajectory')} sampled at {steps}, {'trains' if number == 1 else 'train'} from step {begins}: "
        f"{lag} {begins - first} -> %%chat {collection} samples anew, or ppo: true bounds the ratio"
    ]
    if recomputes:
        lines.append(
            "precalculate_logprobs removes the correction for this lag: every ratio begins at 1"
            " -> precalculate_logprobs: false"
        )
    return lines


def count(n: int, noun: str) -> str:
    """`1 trajectory`, `2,304 trajectories`."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{n:,} {noun if n == 1 else plural}"


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
