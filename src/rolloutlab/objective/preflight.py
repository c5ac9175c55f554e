"""Pre-flight check of a training job: what will train, why the rest will not, warnings about the data."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from rolloutlab.api.wire.chat import Choice
from rolloutlab.api.wire.trajectories import History, Trajectory
from rolloutlab.objective.advantages import Member, Reason, TokenWeight, job_weights
from rolloutlab.objective.credit import turns
from rolloutlab.objective.options import Options

WHY = {
    Reason.UNSCORED: "no reward yet",
    Reason.EQUAL_REWARDS: "all rewards of the group are equal, so nothing in it is better or worse",
    Reason.ALL_FAILED: "all rewards of the group are the lowest of this job, so none is better",
    Reason.ALL_PASSED: "all rewards of the group are the highest of this job, so none is worse",
    Reason.MEAN_REWARD: "exactly the group's mean reward, so the advantage is 0",
    Reason.NO_LOGPROBS: "no sampled tokens with logprobs",
    Reason.TOO_LONG: "longer than the policy's context",
    Reason.UNREADABLE: "a part that the policy cannot read",
    Reason.NO_TURN_ADVANTAGE: "the reward to go of every turn is the group's mean of that turn",
    Reason.BALANCED_AWAY: "advantage_balance takes the whole advantage away",
    Reason.NO_ANSWER: "no answer of an assistant to learn",
    Reason.TRUNCATED: "the last answer was cut off by max_tokens, and mask_truncated is on",
}
WHY_NOT = {
    Reason.EQUAL_REWARDS: "equal rewards",
    Reason.ALL_FAILED: "all fail",
    Reason.ALL_PASSED: "all pass",
    Reason.MEAN_REWARD: "the mean",
    Reason.NO_LOGPROBS: "no logprobs",
    Reason.TOO_LONG: "too long",
    Reason.UNREADABLE: "unreadable",
    Reason.NO_TURN_ADVANTAGE: "no difference",
    Reason.BALANCED_AWAY: "balanced away",
    Reason.NO_ANSWER: "no answer",
    Reason.TRUNCATED: "cut off",
}
"""`WHY` in a word or two, shown instead of an advantage."""

_TURNS = 8
"""Turns that a report names."""
_CELLS = 2
"""Cells that one piece of advice names."""
_UNTRAINED = "this service samples only and trains nothing -> %connect embedded, or another service that trains"
_FIX = {
    Reason.UNSCORED: "%%reward {collection}",
    Reason.EQUAL_REWARDS: "%%reward {collection} with a finer score, or sample it with a larger -n",
    Reason.ALL_FAILED: "sample {collection} with a larger -n, or over easier rows",
    Reason.ALL_PASSED: "sample {collection} over harder rows, or %%reward {collection} with a finer score",
    Reason.MEAN_REWARD: "nothing: this is expected",
    Reason.NO_LOGPROBS: "%logprobs {collection}",
    Reason.TOO_LONG: "sample {collection} with a smaller --max-tokens or a shorter prompt",
    Reason.UNREADABLE: "%group {collection}",
    Reason.NO_TURN_ADVANTAGE: "sample {collection} with a larger -n, or credit: trajectory",
    Reason.BALANCED_AWAY: "advantage_balance: 0",
    Reason.NO_ANSWER: "%group {collection}",
    Reason.TRUNCATED: "sample {collection} with a larger --max-tokens, or mask_truncated: false",
}

_TOP_UP = {
    Reason.EQUAL_REWARDS: "%%reward {collection} with a finer score, or {top_up}",
    Reason.ALL_FAILED: "{top_up}, or sample {collection} over easier rows",
}
"""Advice instead of that in `_FIX` if `--top-up` is possible, which samples further only for such groups."""
_ENDS = {
    "greedy": ("sampled at temperature 0", "sample {collection} with --temperature 1"),
    "length": ("cut off by max_tokens", "sample {collection} with a larger --max-tokens"),
    "max_turns": ("ended after max_turns answers", "sample {collection} with a larger --max-turns"),
    "timeout": ("ended by a time-out", "sample {collection} with a larger --env-timeout"),
}
"""Unusual ends of answers that may explain equal rewards: a text, and advice that replaces a larger -n."""
_EQUAL = {Reason.EQUAL_REWARDS, Reason.ALL_FAILED, Reason.ALL_PASSED}


class TurnCount(NamedTuple):
    """How much of one turn trains, over all trajectories. turn: its index; None for the additional histories."""

    turn: int | None
    trajectories: int
    trainable_trajectories: int
    trainable_tokens: int

    def __str__(self) -> str:
        name = "additional histories train" if self.turn is None else f"turn {self.turn} trains"
        tokens = count(self.trainable_tokens, "token")
        return f"{name} in {self.trainable_trajectories:,} of {self.trajectories:,} ({tokens})"


class Report(NamedTuple):
    """A report for a person, line by line; ` -> ` separates the advice.

    facts: what trains; the first line is about all of it. left_out: a line for each reason why trajectories do not
    train. warnings: about the data. steps: a line on the gradient steps, if they are known.
    """

    facts: Sequence[str]
    left_out: Sequence[str] = ()
    warnings: Sequence[str] = ()
    steps: str = ""

    def lines(self) -> list[str]:
        first, *rest = self.facts
        return [first, *([self.steps] if self.steps else []), *rest, *self.left_out, *self.warnings]


class Seat(NamedTuple):
    """A stored trajectory in a dry run.

    tokens: the number of trainable tokens. sequences: how many sequences it is trained as. split: why there are
    several. end: how it ended: `greedy` (answers at temperature 0), `length`, `max_turns`, `timeout`, or another text.
    """

    name: str
    reward: float | None
    tokens: int
    sequences: int = 1
    split: str = ""
    end: str = ""


@dataclass(frozen=True)
class Preflight:
    """The result of a pre-flight check.

    shares: the token weights of the trajectories, one list per group, in order. unscored: names of trajectories without
    a reward. advantage_scale: the factor that all advantages of the job were multiplied by; None if nothing trains.
    """

    shares: list[list[TokenWeight]]
    unscored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    advantage_scale: float | None = None
    skipped: Mapping[Reason, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        names: dict[Reason, list[str]] = {Reason.UNSCORED: list(self.unscored)} if self.unscored else {}
        for share in self.all_shares():
            if share.reason:
                names.setdefault(share.reason, []).append(share.member.name)
        object.__setattr__(self, "skipped", {reason: tuple(each) for reason, each in names.items()})

    def all_shares(self) -> Iterable[TokenWeight]:
        return (share for group in self.shares for share in group)

    @property
    def trajectories(self) -> int:
        return sum(map(len, self.shares)) + len(self.unscored)

    @property
    def trainable_groups(self) -> int:
        return sum(any(share.reason is None for share in group) for group in self.shares)

    def counts_by_status(self) -> dict[str, int]:
        """Count the groups by status: `trains`, or a short reason why nothing of the group trains."""
        numbers: Counter[str] = Counter()
        for group in self.shares:
            reasons = [share.reason for share in group]
            why = next((WHY_NOT.get(reason, "") for reason in reasons if reason), "not scored yet")
            numbers["trains" if None in reasons else why] += 1
        return dict(numbers)

    @property
    def trainable_trajectories(self) -> int:
        return sum(share.reason is None for share in self.all_shares())

    @property
    def trainable_tokens(self) -> int:
        return sum(share.tokens for share in self.all_shares())

    def turns(self) -> list[TurnCount]:
        """How much of each turn trains; empty without `credit: turn`."""
        if not any(share.turns for share in self.all_shares()):
            return []
        counts: dict[int | None, TurnCount] = {}
        for turn, _, tokens, advantage in (each for share in self.all_shares() for each in share.by_turn()):
            if turn is not None or tokens:
                before, trains = counts.get(turn, TurnCount(turn, 0, 0, 0)), advantage is not None
                counts[turn] = TurnCount(turn, before[1] + 1, before[2] + trains, before[3] + trains * tokens)
        rest = counts.pop(None, None)
        return [*sorted(counts.values()), *([rest] if rest else [])]

    def reasons(self) -> dict[str, int]:
        """How many trajectories each reason keeps from training."""
        return {str(reason): len(names) for reason, names in self.skipped.items()}

    def unreadable(self) -> dict[str, list[str]]:
        """The trajectories with each unreadable part, by the part and its path."""
        names: dict[str, list[str]] = {}
        for share in self.all_shares():
            if share.reason is Reason.UNREADABLE:
                names.setdefault(share.member.unreadable, []).append(share.member.name)
        return names

    def words(self, collection: str = "NAME") -> list[str]:
        """The report for a person, line by line."""
        return self.outcome(collection).lines()

    def outcome(
        self,
        collection: str = "NAME",
        *,
        trains: bool = True,
        ends: Mapping[str, str] = MappingProxyType({}),
        top_ups: Mapping[str, str] = MappingProxyType({}),
    ) -> Report:
        """The report for a person: one line for what trains, one per reason for the rest, then the warnings.

        Args:
            collection: the name that advice contains, if no label of the trajectories is among `top_ups`.
            trains: whether the service trains. A service that does not train cannot compute logprobs of imported
                conversations either.
            ends: how trajectories ended, by their names.
            top_ups: for the label of each collection of the job, the cell that samples further completions for groups
                with nothing to learn. The text is empty if there is no such cell.
        """
        groups = f"{self.trainable_groups:,} of {count(len(self.shares), 'group')}"
        facts = [
            f"{self.trainable_trajectories:,} of {count(self.trajectories, 'trajectory')} will train: "
            f"{count(self.trainable_tokens, 'token')} in {groups}"
        ]
        if turns := self.turns():
            facts.append(_some([str(turn) for turn in turns], limit=_TURNS))
        if not trains:
            facts.insert(0, _UNTRAINED)
        left_out = []
        for reason, names in self.skipped.items():
            labels = dict.fromkeys(name.rsplit("/", 2)[0] for name in names)
            cells = [top_ups.get(label, "") for label in labels]
            fixes = _FIX | _TOP_UP if all(cells) and len(cells) <= _CELLS else _FIX
            elsewhere = "" if trains or reason is not Reason.NO_LOGPROBS else "%connect embedded, then "
            ended, of_end = _most_ended(reason, [ends.get(name, "") for name in names])
            fix = elsewhere + (of_end or fixes[reason]).format(
                collection=next((label for label in labels if label in top_ups), collection), top_up=" and ".join(cells)
            )
            why = WHY[reason] + ended + (f", {_some(list(self.unreadable()))}" if reason is Reason.UNREADABLE else "")
            left_out.append(f"{len(names):,} left out: {why} ({_some(names)}) -> {fix}")
        return Report(facts, left_out, self.warnings)


def _most_ended(reason: Reason, ends: Sequence[str]) -> tuple[str, str]:
    """The most common unusual end among trajectories with one reason, and the advice against it.

    The advice is empty unless more than half of the trajectories ended so. At temperature 0 all answers of a group are
    the same, so a finer score does not help. If all pass, being ended early is not the cause.

    Args:
        reason: why they do not train.
        ends: how each ended.

    Returns:
        A text to append to that of the reason, and the advice.
    """
    odd = {Reason.ALL_PASSED: {"greedy"}}.get(reason, _ENDS.keys()) if reason in _EQUAL else ()
    for end, n in Counter(end for end in ends if end in odd).most_common(1):
        what, fix = _ENDS[end]
        score = "%%reward {collection} with a finer score, or " if reason is Reason.EQUAL_REWARDS else ""
        fix = score * (end != "greedy") + fix
        return f"; {n:,} of these {what}", fix if 2 * n > len(ends) else ""
    return "", ""


def explained(reason: str, collection: str) -> tuple[str, str]:
    """Why a trajectory does not train, and a hint, for a reason by its name on the wire.

    The events of a job do not tell how answers ended. If the advice depends on that, the hint is to run `--dry-run`,
    which knows.
    """
    try:
        known = Reason(reason)
    except ValueError:  # of a newer service
        return reason, ""
    fix = "%%train {collection} --dry-run" if known in _EQUAL else _FIX[known]
    return WHY[known], fix.format(collection=collection)


def preflight(
    groups: Sequence[Sequence[Member]], options: Options, unscored: Iterable[str] = (), warnings: Iterable[str] = ()
) -> Preflight:
    """Check a job before it is sent, with the trainer's own functions."""
    ignored = [f"unknown option {name!r} has no effect here" for name in options.unknown]
    weights, scale = job_weights(groups, options)
    return Preflight(weights, tuple(unscored), (*ignored, *warnings), scale)


def member(name: str, trajectory: Trajectory) -> Member:
    """The Member of a trajectory whose histories have not been tokenized, so too long ones are not known yet."""
    choices = [item for item in trajectory.messages_and_choices if isinstance(item, Choice)]
    turns_K = turns(trajectory.reward, trajectory.metrics, [len(choice.trained_tokens()) for choice in choices])
    tokens_H = tuple(map(sampled_tokens, trajectory.histories()))
    return Member(name, trajectory.reward, tokens_H, turns=turns_K, truncated=is_truncated(choices))


def is_truncated(choices: Sequence[Choice]) -> bool:
    """Whether the last answer of the main history ended at the token limit. choices: those of that history."""
    return bool(choices) and choices[-1].finish_reason == "length"


def first_non_text_part(histories: Sequence[History]) -> str:
    """The path of the first part of the histories that is not text, and what it is; empty if all is text.

    Only the service can check which messages the policy's chat template renders, and whether it has the tokens.
    """
    for h, history in enumerate(histories):
        items = history.messages_and_choices
        sampled = [i for i, item in enumerate(items) if isinstance(item, Choice) and item.sampled_tokens()]
        for i, item in enumerate(items[: max(sampled, default=0)]):  # later items are not rendered
            if not isinstance(item, Choice) and (problem := _non_text_part(item)):
                return f"{f'additional_histories.{h - 1}.' if h else ''}messages_and_choices.{i}.{problem}"
    return ""


def _non_text_part(message: Any) -> str:
    content = getattr(message, "content", None)
    for j, part in enumerate(content if isinstance(content, list) else ()):
        if part.type not in {"text", "refusal"}:
            return f"content.{j}: the policy reads text, not {part.type}"
    audio = getattr(message, "audio", None)
    transcript = (audio.model_extra or {}).get("transcript") if audio is not None else None
    if audio is None or (isinstance(transcript, str) and transcript):
        return ""
    return "audio: the policy reads text, and this audio has no transcript"


def sampled_tokens(history: History) -> int:
    """Trainable tokens of a history: the sampled tokens of its Choices that have logprobs."""
    return sum(len(item.trained_tokens()) for item in history.messages_and_choices if isinstance(item, Choice))


def sampling_warnings(trajectories: Iterable[Trajectory]) -> list[str]:
    """Warnings about how the completions were sampled.

    Logprobs, recorded or recomputed, are of the unscaled distribution over the whole vocabulary. With a temperature or
    top_p other than 1, the sampler drew from another distribution.
    """
    return setting_warnings(Counter(setting for trajectory in trajectories for setting in odd_settings(trajectory)))


def odd_settings(trajectory: Trajectory) -> list[str]:
    """Settings with which a trajectory was not sampled from the distribution of its logprobs: `temperature 0.7`."""
    values = {name: trajectory.metadata.get(name) for name in ("temperature", "top_p")}
    return [f"{name} {value}" for name, value in values.items() if value not in (None, 1)]


def setting_warnings(odd: Mapping[str, int]) -> list[str]:
    """As `sampling_warnings`, from the number of trajectories per setting."""
    advice = "importance ratios assume 1, kl_base leaves them out -> sample at 1"
    return [f"{count(n, 'trajectory')} sampled at {setting}: {advice}" for setting, n in odd.items()]


_LENGTH_RATIO = 4
"""A warning names a group whose longest answer is at least so many times as long as its shortest: a rule of thumb."""


def length_warnings(shares: Iterable[Sequence[TokenWeight]], options: Options) -> list[str]:
    """A warning about the group of a job whose answers have the most different lengths.

    With `loss_aggregation: sequence_mean` each answer counts alike, so a token of a short answer weighs more than a
    token of a long one.
    """
    if options.loss_aggregation != "sequence_mean" or options.custom_loss:
        return []
    trained = [[share.tokens for share in group if share.reason is None] for group in shares]
    ends = [(min(tokens), max(tokens)) for tokens in trained if tokens]
    least, most = max(ends, key=lambda pair: pair[1] / pair[0], default=(1, 1))
    if most < _LENGTH_RATIO * least:
        return []
    times = f"{most / least:.2g}" if most < 10 * least else f"{most / least:,.0f}"  # the weight is 1 / tokens
    lengths = f"answers of {least:,} and {most:,} tokens"
    return [f"{lengths}: a token of the first counts {times} times -> loss_aggregation: token_mean"]


def lag_warnings(sampled: Mapping[int, int], begins: int, collection: str, *, recomputes: bool = False) -> list[str]:
    """Warnings about off-policy completions, sampled from older checkpoints than the one that a job trains from.

    sampled: number of trajectories by the step of their oldest answer. begins: the step that the job starts from.
    recomputes: whether the job recomputes old logprobs without truncated importance sampling, so that every importance
    ratio begins at 1 and nothing corrects for the lag.

    No option is advised. None bounds the ratio in every job, and measured jobs with a bounded ratio were no better.
    """
    if not (older := {step: n for step, n in sampled.items() if step < begins}):
        return []
    first, last, number = min(older), max(older), sum(older.values())
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    lines = [
        f"{count(number, 'trajectory')} sampled at {steps}, {'trains' if number == 1 else 'train'} from step {begins}: "
        f"{lag_of(older, begins)} -> sample {collection} anew"
    ]
    if recomputes:
        removed = "precalculate_logprobs removes the correction for this lag: every ratio begins at 1"
        lines.append(f"{removed} -> precalculate_logprobs: false")
    return lines


def lag_of(steps: Collection[int], begins: int) -> str:
    """`lag 6` for completions from step 3 in a job that starts from step 9; `lag up to 6` if some are newer."""
    return f"{'lag' if len(set(steps)) == 1 else 'lag up to'} {begins - min(steps)}"


def count(n: int, noun: str) -> str:
    """`1 trajectory`, `2,304 trajectories`."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{n:,} {noun if n == 1 else plural}"


def _some(names: Sequence[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
