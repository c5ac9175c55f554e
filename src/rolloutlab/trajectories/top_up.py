"""Top-up of a scored collection: further completions for the groups that have nothing to learn."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.objective.advantages import Reason, TokenWeight
from rolloutlab.objective.options import Options
from rolloutlab.objective.preflight import WHY_NOT, count, preflight
from rolloutlab.sampling.config import SamplingConfig, read_config
from rolloutlab.sampling.programs.program import sessions_hint
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Group, StoredCollection, StoredTrajectory, TrajectorySummary
from rolloutlab.trajectories.members import members_of

FACTOR = 2.0
"""By default a group may grow to this many times its first number of completions."""
_MENDED = {
    Reason.ALL_FAILED,
    Reason.ALL_PASSED,
    Reason.EQUAL_REWARDS,
    Reason.MEAN_REWARD,
    Reason.NO_TURN_ADVANTAGE,
    Reason.TRUNCATED,
}
"""The reasons for a group to have nothing to learn that further completions can change."""
_NAMED = 3
"""The most groups that a line names."""
_MOST = 10_000
"""The largest factor, far above what anyone would pay for."""


@dataclass(frozen=True)
class _Standing:
    """The state of the groups of a collection.

    groups: all groups.
    plan: the settings that they were sampled with.
    dead: the reasons of groups that have nothing to learn now, but may have after further completions, by position.
    waiting: the positions of groups with completions that are not scored yet.
    unscored: the number of these completions.
    scored: the number of trajectories with a reward.
    other: the number of groups that do not train for other reasons.
    """

    groups: Sequence[Group]
    plan: SamplingConfig
    dead: Mapping[int, Reason]
    waiting: Sequence[int]
    unscored: int
    scored: int
    other: int

    @property
    def completions(self) -> int:
        return sum(len(group.trajectories) for group in self.groups)

    @property
    def tokens(self) -> int:
        return sum(trajectory.tokens for group in self.groups for trajectory in group.trajectories)

    def sizes(self, factor: float) -> dict[int, int]:
        """Return the next number of completions of each dead group: `n` more, up to `factor` times `n`."""
        sizes = {place: min(self.plan.size_of(place) + self.plan.n, most(factor, self.plan.n)) for place in self.dead}
        return {place: size for place, size in sizes.items() if size > self.plan.size_of(place)}

    def names(self, places: Sequence[int]) -> str:
        names = [self.groups[place].name for place in places]
        return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def check_factor(factor: Any, n: int | None = None) -> None:
    """Raise InputError unless the factor is a number that makes a group of `n` completions larger."""
    is_number = isinstance(factor, int | float) and not isinstance(factor, bool) and factor <= _MOST
    if not is_number or factor <= 1:
        what = f"a factor of the first sampling is a number above 1, up to {_MOST:,}, not {factor!r}"
        raise InputError(what, hint="--top-up 2")
    if n is not None and most(factor, n) <= n:
        what = f"{factor:g} times {count(n, 'completion')} of a group are no further one"
        least = math.ceil(round(100 + 100 / n, 6)) / 100
        raise InputError(what, hint=f"--top-up {least:g} or more")


def most(factor: float, n: int) -> int:
    """Return the most completions that a group of `n` may grow to."""
    return math.floor(factor * n + 1e-9)  # 1.1 * 10 is 11.000000000000002, and 1.15 * 20 is 22.999999999999996


def check_top_up(stored: StoredCollection, factor: Any) -> None:
    """Raise InputError unless further completions can be sampled for a collection, and may differ from its own."""
    label, plan = stored.label, stored.plan
    if not plan:
        raise InputError(f"{label} was not sampled here: it cannot be topped up", hint=f"%%chat {stored.name}")
    if plan.get("sessions"):
        message = f"{label} holds sessions of a program, which nothing here plays once more for one row"
        raise InputError(message, hint=sessions_hint(label))
    if continues := plan.get("continues"):
        message = f"{label} goes on with the conversations of {continues}, and no further ones begin there"
        raise InputError(message, hint=f"%%chat {continues} --top-up, then --continue")
    config = read_config(plan)
    if config is None:
        message = f"{label} was sampled with settings of another version, which cannot be repeated here"
        raise InputError(message, hint=f"%%chat {stored.name}")
    if config.temperature == 0 and not config.env and not config.program:
        message = f"{label} was sampled at temperature 0: every further completion would be the same"
        raise InputError(message, hint=f"%%chat {stored.name} --temperature 1")
    check_factor(factor, config.n)


def top_up_cell(stored: StoredCollection) -> str:
    """Return the cell that tops up a collection; empty if that is not possible, or was done already.

    It is also empty if the cell would have to name an environment, functions or a program, because the lab does not
    store how a notebook calls these.
    """
    try:
        check_top_up(stored, FACTOR)
    except InputError:
        return ""
    config = SamplingConfig.model_validate(stored.plan)
    if config.topped_up or config.env or config.tools or config.program:
        return ""
    return config.cell_again(stored.label, "--top-up")


def top_up_groups(
    lab: Lab,
    stored: StoredCollection,
    factor: float,
    options: Options,
    sample: Callable[[Mapping[int, int]], object],
    score: Callable[[], str],
    say: Callable[[str], None],
) -> None:
    """Sample and score further completions for groups with nothing to learn, until all of these groups train.

    In each round such a group gets as many new completions as it had at first, until it has `factor` times as many.
    New completions are added to the group, so nothing is lost. If an earlier top-up was interrupted, its rest is
    sampled first.

    Args:
        lab: The lab.
        stored: The collection.
        factor: The largest size of a group, as a multiple of its first size.
        options: The options of a job, which decide what trains.
        sample: Called with the new sizes of some groups; samples what the collection then lacks.
        score: Scores what has no reward. If nothing here can score it, returns what to type, else an empty text.
        say: Called with lines about what is sampled, and with what result.

    Raises:
        InputError: nothing of the collection is scored.
    """
    look = partial(_read_standing, lab, stored, options)
    if missing := lab.collection(f"{stored.name}:{stored.generation}").missing:
        say(f"first, {count(missing, 'completion')} that {stored.label} lacks")
        sample({})
    begun = now = look()
    to_score = score() if now.waiting else ""
    now = look() if now.waiting else now
    if not now.scored:
        message = f"nothing of {stored.label} is scored yet: which of its groups have nothing to learn is not known"
        raise InputError(message, hint=f"%%reward {stored.label}")
    dead, sampled = now.dead, False
    while not (sampled and to_score) and (sizes := now.sizes(factor)):
        more = sum(sizes.values()) - sum(now.plan.size_of(place) for place in sizes)
        say(f"{_describe_dead(now, now.dead)}: {count(more, 'completion')} more for {_name_places(now, sizes)}")
        sample(sizes)
        sampled, to_score, now = True, score(), look()
    for line in _report(begun, now, dead, stored.label, to_score):
        say(line)


def plan_first_sizes(lab: Lab, stored: StoredCollection, factor: float) -> dict[int, int]:
    """Return the sizes that the first round of a top-up would give to groups, by position.

    Empty if an earlier sampling was interrupted, because a top-up begins with the rest of that.

    Raises:
        InputError: some completions have no reward yet. The top-up would score them first, and the sizes depend on
            these rewards.
    """
    if lab.collection(f"{stored.name}:{stored.generation}").missing:
        return {}
    now, last = _read_standing(lab, stored, Options()), lab.scorings.last(stored)
    if now.waiting:
        by_hand, by_function = f"%rewards {stored.label}", f"%%reward {stored.label} --resume"
        hint = f"%%reward {stored.label}" if last is None else by_function if last.source == "function" else by_hand
        message = f"{count(now.unscored, 'completion')} of {stored.label} {'has' if now.unscored == 1 else 'have'} no"
        raise InputError(f"{message} reward yet: what a top-up samples depends on them", hint=hint)
    return now.sizes(factor)


def can_top_up(lab: Lab, stored: StoredCollection, factor: float, options: Options) -> bool:
    """Whether a top-up would sample further completions for some group that has nothing to learn."""
    return bool(_read_standing(lab, stored, options).sizes(factor))


def count_unscored(lab: Lab, stored: StoredCollection) -> int:
    """Count the completions of a collection that wait for a reward. Those that a function failed on do not count."""
    waits = _make_waits(lab, stored, SamplingConfig.model_validate(stored.plan))
    return sum(map(waits, lab.outlines.of(stored)))


def _read_standing(lab: Lab, stored: StoredCollection, options: Options) -> _Standing:
    stored = lab.by_id(stored.id)
    plan, groups = SamplingConfig.model_validate(stored.plan), lab.groups(stored)
    waits = _make_waits(lab, stored, plan)
    waiting = [place for place, group in enumerate(groups) if any(map(waits, group.trajectories))]
    shares = preflight(members_of(groups), options).shares
    untrained = {place: share for place, share in enumerate(shares) if share and _reason_of(share)}
    reasons = {place: _reason_of(share) for place, share in untrained.items() if place not in waiting}
    dead = {place: reason for place, reason in reasons.items() if reason in _MENDED}
    scored = sum(map(len, shares))
    unscored = sum(waits(t) for group in groups for t in group.trajectories)
    return _Standing(groups, plan, dead, waiting, unscored, scored, len(reasons) - len(dead))


def _make_waits(
    lab: Lab, stored: StoredCollection, plan: SamplingConfig
) -> Callable[[StoredTrajectory | TrajectorySummary], bool]:
    """Make a function that tells whether a trajectory waits for a reward.

    If functions score a collection, a reward that only the environment or the program gave does not count as scored.
    """
    last = lab.scorings.last(stored)
    by_functions = last is not None and last.source == "function"
    settled = lab.scorings.settled(stored, last.first, 0) if last and by_functions else frozenset()
    failed = {failure.trajectory.id for failure in lab.scorings.failures(stored)}
    gives = last is None and bool(plan.env or plan.program)

    def waits(trajectory: StoredTrajectory | TrajectorySummary) -> bool:
        if gives or trajectory.id in failed:
            return False
        return trajectory.id not in settled if by_functions else trajectory.reward is None

    return waits


def _reason_of(share: Sequence[TokenWeight]) -> Reason | None:
    """Return why a group does not train; None if it trains.

    It is the most frequent reason of the group's trajectories. Reasons that no further completion can change come
    first.
    """
    if any(each.reason is None for each in share):
        return None
    reasons = Counter(each.reason for each in share if each.reason)
    others = Counter({reason: n for reason, n in reasons.items() if reason not in _MENDED})
    return (others or reasons).most_common(1)[0][0]


def _describe_dead(standing: _Standing, dead: Mapping[int, Reason]) -> str:
    """Say how many groups are dead, and why: `5 of 16 groups have nothing to learn (3 all fail, 2 all pass)`."""
    reasons = ", ".join(f"{n:,} {WHY_NOT[reason]}" for reason, n in Counter(dead.values()).most_common())
    have = "has" if len(dead) == 1 else "have"
    return f"{len(dead):,} of {count(len(standing.groups), 'group')} {have} nothing to learn ({reasons})"


def _name_places(standing: _Standing, sizes: Mapping[int, int]) -> str:
    some = standing.dead.keys() - sizes.keys()
    return f"{len(sizes):,} of them" if some else "it" if len(sizes) == 1 else "them"


def _report(begun: _Standing, now: _Standing, dead: Mapping[int, Reason], label: str, to_score: str) -> list[str]:
    """Describe in lines what a top-up cost, which groups train now, and what remains to be done.

    Args:
        begun: The state before the top-up.
        now: The state after it.
        dead: The groups that were dead once everything was scored, before the first round.
        label: The label of the collection.
        to_score: What to type to score the rest; empty if everything can be scored here.
    """
    lines = []
    if more := now.completions - begun.completions:
        cost = f"{count(more, 'completion')} ({count(now.tokens - begun.tokens, 'token')})"
        beside = f"{begun.completions:,} ({count(begun.tokens, 'token')}) before"
        known = sum(place not in now.dead and place not in now.waiting for place in dead)
        train = f"{'trains' if known == 1 else 'train'} now: "
        brought = "" if now.waiting else f"{known:,} of {count(len(dead), 'group')} {train}"
        lines.append(f"{brought}{cost} beside the {beside}")
    if now.waiting:
        waiting = f"{count(now.unscored, 'completion')} of {count(len(now.waiting), 'group')}"
        have = f"{waiting} {'has' if now.unscored == 1 else 'have'} no reward yet"
        again = now.plan.cell_again(label, "--top-up")
        lines.append(f"{have} -> {to_score or f'%%reward {label} --resume'}, then {again} again")
    if now.dead:
        what = f"{_describe_dead(now, now.dead)}: {now.names([*now.dead])}"
        times = (
            min(now.plan.size_of(place) for place in now.dead) / now.plan.n
        )  # an earlier factor may have been larger
        further = now.plan.cell_again(label, f"--top-up {2 * times:.3g}")
        lines.append(f"{what}, with {times:.3g} times as many completions as at first -> {further}, or other rows")
    elif not (more or now.waiting or now.other):
        lines.append(f"none of the {count(len(now.groups), 'group')} of {label} lacks something to learn")
    if now.other:
        train = "trains" if now.other == 1 else "train"
        what = f"{count(now.other, 'group')} of {label} {train} nothing for reasons that no further completion mends"
        lines.append(f"{what} -> %%train {label} --dry-run names these")
    steps = [place for place in now.plan.topped_up if len({t.step for t in now.groups[place].trajectories}) > 1]
    if steps:
        what = f"{count(len(steps), 'group')} with completions of several checkpoints: {now.names(steps)}"
        lines.append(f"{what}; their importance ratios are of each one's own")
    return lines
