"""Numbers of whole generations for the steps of a run: rewards and their parts, lengths, cut-offs, dead groups."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from rolloutlab.objective.advantages import rewards_differ
from rolloutlab.store.sqlite import Database

# Completions of top-ups are left out, as in the means of a loop: only groups that all failed or all passed have them.
_OF_THESE = """
    FROM json_each(?) chosen JOIN collections c ON c.id = chosen.value
    CROSS JOIN groups g ON g.collection_id = c.id
    CROSS JOIN trajectories t INDEXED BY trajectories_without_items ON t.group_id = g.id AND t.pending = 0
        AND (json_type(c.plan, '$.topped_up') IS NULL OR t.position < json_extract(c.plan, '$.n'))
"""
# Rewards are divided by 1024: the sum of rewards near the largest float would be infinite. It changes no digits.
_GROUPS = f"""
    SELECT c.id, count(*), count(t.reward), sum(t.reward / 1024.0), min(t.reward), max(t.reward),
        sum(t.reward = 1), sum(o.finish_reason = 'length'),
        sum(CASE WHEN instr(o.tokens, ',') THEN (SELECT sum(value) FROM json_each(o.tokens))
            ELSE CAST(substr(o.tokens, 2) AS INTEGER) END)
    {_OF_THESE} LEFT JOIN outlines o INDEXED BY outlines_without_text ON o.trajectory_id = t.id
    GROUP BY c.id, g.id ORDER BY c.id
"""
# A lab of another program may have names that are not UTF-8 and components that are not JSON: the rest is still read.
_COMPONENTS = f"""
    SELECT c.id, CAST(part.key AS BLOB), avg(part.value / 1024.0) * 1024
    {_OF_THESE} AND t.reward IS NOT NULL AND t.components <> '{{}}' AND json_valid(t.components)
    CROSS JOIN json_each(t.components) part ON part.type IN ('integer', 'real')
    GROUP BY c.id, part.key ORDER BY c.id
"""


@dataclass(frozen=True)
class StepNumbers:
    """Numbers of one generation; None for those that it does not have.

    Attributes:
        groups: The number of groups with rewards.
        answers: The number of answers.
        scored: The number of answers with a reward.
        reward: The mean reward.
        error: The standard error of the mean, from the means of the groups; None for fewer than two groups.
        pass_rate: The share of rewards of 1; None if some reward is larger.
        nothing: The share of groups with rewards that have nothing to learn, because their rewards are equal.
        cut_off: The share of answers that the token limit cut off.
        length: Tokens of an answer, on average.
        tokens: Tokens of all answers.
        components: The mean of each part of the rewards, over the answers that have it.
    """

    groups: int
    answers: int
    scored: int
    reward: float | None
    error: float | None
    pass_rate: float | None
    nothing: float | None
    cut_off: float
    length: float | None
    tokens: int
    components: Mapping[str, float] = field(default_factory=dict)


class GenerationNumbers:
    """The numbers of generations. Two queries compute them, which read no conversation."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, collections: Iterable[int]) -> dict[int, StepNumbers]:
        """Compute the numbers of collections, by their ids. Collections without answers are left out."""
        chosen = json.dumps(list(collections))
        parts: dict[int, dict[str, float]] = {}
        for number, name, mean in self._database.read(_COMPONENTS, chosen):
            parts.setdefault(number, {})[name.decode(errors="replace")] = mean
        rows = [(row[0], _GroupNumbers(*tuple(row)[1:])) for row in self._database.read(_GROUPS, chosen)]
        return {
            number: _make_numbers([group for _, group in groups], parts.get(number, {}))
            for number, groups in groupby(rows, key=lambda row: row[0])
        }


class _GroupNumbers(NamedTuple):
    answers: int
    scored: int
    total: float | None
    """The sum of its rewards / 1024."""
    low: float | None
    high: float | None
    passed: int | None
    cut_off: int | None
    tokens: int | None


def _make_numbers(groups: Sequence[_GroupNumbers], components: Mapping[str, float]) -> StepNumbers:
    answers, tokens = sum(group.answers for group in groups), sum(group.tokens or 0 for group in groups)
    scored = [group for group in groups if group.scored]
    rewards = sum(group.scored for group in scored)
    mean = math.fsum((group.total or 0.0) / rewards for group in scored) * 1024 if scored else None
    most = max((group.high for group in scored if group.high is not None), default=None)
    return StepNumbers(
        groups=len(scored),
        answers=answers,
        scored=rewards,
        reward=mean,
        error=_standard_error(scored, mean, rewards),
        pass_rate=sum(group.passed or 0 for group in scored) / rewards if most is not None and most <= 1 else None,
        nothing=sum(not _differs(group) for group in scored) / len(scored) if scored else None,
        cut_off=sum(group.cut_off or 0 for group in groups) / answers,
        length=tokens / answers if tokens else None,
        tokens=tokens,
        components=components,
    )


def _differs(group: _GroupNumbers) -> bool:
    return group.low is not None and group.high is not None and rewards_differ(group.low, group.high)


def _standard_error(groups: Sequence[_GroupNumbers], mean: float | None, rewards: int) -> float | None:
    """Compute the standard error of a mean over groups of different sizes (Cochran 1977, section 6.4).

    The samples are groups and not answers, because answers to one prompt are alike.
    """
    n = len(groups)
    if n < 2 or mean is None:
        return None
    away = [((group.total or 0.0) * 1024 - group.scored * mean) * n / rewards for group in groups]
    return math.hypot(*away) / math.sqrt(n * (n - 1)) if all(map(math.isfinite, away)) else None
