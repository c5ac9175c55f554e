"""Prediction of the importance ratios of a job on old completions, by logprobs at its starting checkpoint.

The first gradient step of the job measures these ratios on its own trajectories, as `ratio_mean` and `ratio_max`.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from rolloutlab.api.inference import score_histories
from rolloutlab.api.wire.chat import Choice, TokenLogprob
from rolloutlab.api.wire.levels import ImportanceSamplingLevel
from rolloutlab.api.wire.trajectories import History, ScoredHistory
from rolloutlab.connection import Connector
from rolloutlab.errors import RefusedError, RolloutlabError
from rolloutlab.objective.options import settle
from rolloutlab.objective.preflight import count, lag_of
from rolloutlab.objective.splits import turns_of
from rolloutlab.settings import Address
from rolloutlab.store.models import StoredTrajectory
from rolloutlab.training.submission import Submission

_MAX_LOG_RATIO = 80.0


def importance_ratios(delta_T: Sequence[float], level: ImportanceSamplingLevel) -> list[float]:
    """Compute the ratio of each trained token of a sequence before any bound (PPO, arXiv 1707.06347; GSPO, 2507.18071).

    delta_T: logprobs under the present weights minus those when sampled, in nats.
    """
    if not delta_T:
        return []
    mean = min(math.fsum(delta_T) / len(delta_T), _MAX_LOG_RATIO)
    clamped_T = [min(delta, _MAX_LOG_RATIO) for delta in delta_T]
    if level == "sequence":
        return [math.exp(mean)] * len(delta_T)
    if level == "average":
        return [(math.exp(delta) + math.exp(mean)) / 2 for delta in clamped_T]
    if level == "geometric_average":
        return [math.exp((delta + mean) / 2) for delta in clamped_T]
    return [math.exp(delta) for delta in clamped_T]


SAMPLE = 8
"""The most trajectories that are scored for a prediction."""
SECONDS = 10.0
"""The longest time for a prediction. Afterwards it uses what was scored so far."""
_MAX_TOKENS = 16_384
"""About how many sampled tokens are scored. At least one trajectory is scored, however long it is."""


def add_prediction(submission: Submission, connector: Connector, tick: Callable[[], None] | None = None) -> Submission:
    """Add a warning about the predicted ratio to a submission, if some trajectories that would train are stale.

    There is no warning if no service runs, or if it has no endpoint for logprobs, cannot be reached or takes too long.

    tick: called again and again while the service computes.
    """
    stale = submission.stale_names()
    if not stale or settle(submission.config).precalculate_logprobs:  # with that option every ratio begins at 1
        return submission
    with suppress(RolloutlabError):
        if address := connector.running():
            model = f"{submission.model}@{submission.first_step}"
            chosen = _choose_affordable(submission.read(_choose_spread(stale)))
            gaps = connector.http.run(_score(connector, address, model, chosen), tick)
            return submission.with_warnings(_describe_prediction(gaps, submission, stale))
    return submission


def _choose_spread(names: Sequence[str]) -> list[str]:
    """Choose some of the names, evenly spread over all."""
    chosen = min(SAMPLE, len(names))
    return [names[i * len(names) // chosen] for i in range(chosen)]


def _choose_affordable(trajectories: Sequence[StoredTrajectory]) -> list[StoredTrajectory]:
    """Choose the first trajectories that have `_MAX_TOKENS` together, at least one."""
    chosen: list[StoredTrajectory] = []
    tokens = 0
    for trajectory in trajectories:
        tokens += trajectory.tokens
        if chosen and tokens > _MAX_TOKENS:
            break
        chosen.append(trajectory)
    return chosen


async def _score(
    connector: Connector, address: Address, model: str, trajectories: Sequence[StoredTrajectory]
) -> list[list[list[float]]]:
    """Score trajectories as long as there is time; return the changes of logprobs by trajectory, sequence, token."""
    gaps: list[list[list[float]]] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            for trajectory in trajectories:
                histories = trajectory.histories()
                with suppress(RefusedError):  # such as one that is too long
                    scored = await score_histories(connector.http, address, model, histories, retry=False)
                    gaps.append(
                        [each for pair in zip(histories, scored.data, strict=True) for each in _compare_history(*pair)]
                    )
    return gaps


def _compare_history(history: History, scored: ScoredHistory) -> Iterator[list[float]]:
    """Yield the change of the logprob of each trained token, by sequence of the history."""
    now = {turn.index: turn.logprobs.content or [] for turn in scored.turns}
    changes = {
        id(item): _compare_choice(item, now.get(i, ()))
        for i, item in enumerate(history.messages_and_choices)
        if isinstance(item, Choice)
    }
    for sequence in turns_of(history):
        yield [change for choice in sequence for change in changes[id(choice)]]


def _compare_choice(choice: Choice, now: Sequence[TokenLogprob]) -> list[float]:
    """Return the changes of the logprobs of a choice; none if it was scored with another number of tokens."""
    sampled = choice.sampled_tokens()
    if len(now) != len(sampled):
        return []
    return [new.logprob - old.logprob for new, old in zip(now, sampled, strict=True) if not old.forced]


def _describe_prediction(
    gaps: Sequence[Sequence[Sequence[float]]], submission: Submission, stale: Sequence[str]
) -> list[str]:
    """Write the prediction as a line; none if no token was scored."""
    level = settle(submission.config).importance_sampling_level
    ratios = [ratio for each in gaps for delta_T in each for ratio in importance_ratios(delta_T, level)]
    if not ratios:
        return []
    mean, largest = math.fsum(ratios) / len(ratios), max(ratios)
    sample = f"{len(gaps):,} of {count(len(stale), 'trajectory')}"
    lag = lag_of([submission.origins[name].step for name in stale], submission.first_step)
    return [f"{lag}: importance ratio {mean:.3g} on average, {largest:.3g} at most, predicted from {sample}"]
