"""Results of collections: mean rewards, groups that train, truncated answers, and the sampled checkpoint."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from rolloutlab.objective.advantages import Reason, RewardRange, rewards_differ, why_equal
from rolloutlab.store.sqlite import Database

ModelStep = tuple[str, int | None]
"""A model, and the number of its checkpoint if known."""
# Rewards are divided by 1024 before their mean: the sum of rewards near the largest float would be infinite. A power
# of two changes no digits.
_OF_EACH_GROUP = """
    SELECT g.collection_id, count(t.group_id), count(t.reward), avg(t.reward / 1024.0) * 1024, min(t.reward),
        max(t.reward), max(t.reward IS NOT NULL AND coalesce(o.tokens GLOB '*[1-9]*', 1))
    FROM groups g LEFT JOIN trajectories t INDEXED BY trajectories_without_items
        ON t.group_id = g.id AND t.pending = 0
    LEFT JOIN outlines o INDEXED BY outlines_without_text ON o.trajectory_id = t.id
    GROUP BY g.collection_id, g.id
"""
_CUT_OFF = """
    SELECT g.collection_id, count(*) FROM groups g
    CROSS JOIN trajectories t ON t.group_id = g.id AND t.pending = 0
    CROSS JOIN outlines o INDEXED BY outlines_without_text ON o.trajectory_id = t.id
    WHERE o.finish_reason = 'length' GROUP BY g.collection_id
"""
_CHECKPOINTS = """
    SELECT g.collection_id, t.model, t.step FROM groups g
    CROSS JOIN trajectories t INDEXED BY trajectories_without_items ON t.group_id = g.id AND t.pending = 0
    WHERE t.model IS NOT NULL AND t.model <> '' AND (?1 IS NULL OR g.collection_id = ?1)
    GROUP BY g.collection_id, t.model, t.step
    ORDER BY g.collection_id, t.step DESC NULLS LAST, max(t.id) DESC
"""


@dataclass(frozen=True)
class CollectionResult:
    """The outcome of a generation.

    n: completions of the largest group.
    scored: answers with a reward.
    trains: groups whose rewards differ, and that have tokens to train on.
    all_pass, all_fail: groups whose rewards are equal, all passes or all failures.
    cut_off: answers that the token limit cut off.
    model, step: the checkpoint that sampled the generation. Of several it is the one with the largest step, and of
        equal steps the one that sampled last.
    others: the number of other checkpoints that sampled answers.
    """

    groups: int
    n: int
    answers: int
    scored: int
    mean: float | None
    trains: int
    all_pass: int
    all_fail: int
    cut_off: int
    model: str
    step: int | None
    others: int = 0

    @property
    def cut_off_share(self) -> float:
        """The share of answers that the token limit cut off."""
        return self.cut_off / self.answers if self.answers else 0.0


class CollectionResults:
    """The results of all collections of a lab. Three queries compute them, which read no conversation."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def by_id(self) -> dict[int, CollectionResult]:
        """Compute the result of each collection that has groups, by its id."""
        cut_off = dict(map(tuple, self._database.read(_CUT_OFF)))
        sampled = self._checkpoints(None)
        rows = map(tuple, self._database.read(_OF_EACH_GROUP))
        return {
            number: _make_result(
                [_GroupResult(*row[1:]) for row in groups], cut_off.get(number, 0), sampled.get(number, ())
            )
            for number, groups in groupby(rows, key=lambda row: row[0])
        }

    def checkpoints(self, collection: int) -> Sequence[ModelStep]:
        """List the checkpoints that sampled a collection, as far as is known, the newest first."""
        return self._checkpoints(collection).get(collection, ())

    def _checkpoints(self, collection: int | None) -> dict[int, Sequence[ModelStep]]:
        """Find the checkpoints that sampled a collection, by its id. collection: None for each one."""
        rows = map(tuple, self._database.read(_CHECKPOINTS, collection))
        return {
            number: [(model, step) for _, model, step in some] for number, some in groupby(rows, key=lambda row: row[0])
        }


class _GroupResult(NamedTuple):
    answers: int
    scored: int
    mean: float | None
    low: float | None
    high: float | None
    has_tokens: int
    """Whether any answer with a reward has tokens to train on."""

    @property
    def differs(self) -> bool:
        """Whether its rewards differ by more than rounding, as jobs see it."""
        return self.low is not None and self.high is not None and rewards_differ(self.low, self.high)


def _make_result(groups: Sequence[_GroupResult], cut_off: int, sampled: Sequence[ModelStep]) -> CollectionResult:
    scored = [group for group in groups if group.scored]
    answers = sum(group.scored for group in scored)
    means = [group.mean for group in scored if group.mean is not None]
    mean = math.fsum(m * (group.scored / answers) for m, group in zip(means, scored, strict=True)) if scored else None
    reasons = list(_reasons_of_equal(scored))
    model, step = sampled[0] if sampled else ("", None)
    return CollectionResult(
        groups=len(groups),
        n=max((group.answers for group in groups), default=0),
        answers=sum(group.answers for group in groups),
        scored=answers,
        mean=mean,
        trains=sum(bool(group.has_tokens) and group.differs for group in scored),
        all_pass=reasons.count(Reason.ALL_PASSED),
        all_fail=reasons.count(Reason.ALL_FAILED),
        cut_off=cut_off,
        model=model,
        step=step,
        others=len(sampled[1:]),
    )


def _reasons_of_equal(scored: Sequence[_GroupResult]) -> Iterable[Reason]:
    """Return why groups with equal rewards do not train, a reason for each."""
    lows, highs = [g.low for g in scored if g.low is not None], [g.high for g in scored if g.high is not None]
    if not lows:
        return
    of_all = RewardRange(min(lows), max(highs))
    for group, low in zip(scored, lows, strict=True):
        if not group.differs:
            yield why_equal(low, group.scored, of_all)
