"""Sample, score, train, and again."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from rolloutlab.collection import Collection
from rolloutlab.errors import InputError
from rolloutlab.judge import Judge, hearings
from rolloutlab.objective.options import settle
from rolloutlab.scoring import Functions, check_functions
from rolloutlab.session.chat import ChatCalls
from rolloutlab.session.reward import RewardCalls
from rolloutlab.session.train import TrainCalls
from rolloutlab.training.job import Job
from rolloutlab.training.loop import (
    SEEDS_PER_ROUND,
    Loop,
    Plan,
    again_name,
    check_counts,
    check_sampling,
    play,
    so_far,
)
from rolloutlab.training.submission import checked_config
from rolloutlab.widgets.live import Live


class LoopCalls(ChatCalls, RewardCalls, TrainCalls):
    """Rounds of `chat`, `reward` and `train`."""

    def loop(
        self,
        name: str,
        prompt: str | Sequence[Mapping[str, Any]],
        reward: Functions | Judge,
        *,
        over: Any,
        jobs: int = 10,
        n: int = 8,
        options: Mapping[str, Any] | None = None,
        held_out: Any = None,
        every: int = 5,
        patience: int = 3,
        seed: int | None = None,
        say: Callable[[str], None] = print,
        **sampling: Any,
    ) -> Loop:
        """Sample, score and train `jobs` times; round N is the generation `name:N`, and the same call goes on later.

        reward: functions, or a `Judge`, whose scores compare completions of one group only: with one there is no `best`
        and nothing held out. over: rows, as of `chat`, or a function from the number of a round to its rows.
        held_out: rows that are measured before every `every` rounds and after the last, and never trained on; at the
        end the best checkpoint is measured on them again, with other seeds. patience: the loop ends when nothing has
        trained in so many rounds in a row. seed: of the first round; the others' follow from it. sampling: further
        settings of `chat`. say: gets a line per round where no chart can be shown.

        Whatever stops it, what was sampled and trained is kept; `jobs=0` only tells what there is.

        Raises:
            InputError: an argument is wrong; nothing was sampled.
            RewardError, ServiceError, JobFailedError: as `chat`, `reward` and `train` do.
        """
        settled = settle(checked_config(options or {}))
        check_counts(jobs=jobs, every=every, patience=patience)
        check_sampling(sampling, signature(self.chat).parameters)
        _check_reward(reward, held_out)
        for rows in (None if callable(over) else over, held_out) if jobs else ():
            if rows is not None:
                self.preview(name, prompt, over=rows, n=n, seed=seed, **sampling)
        self.store.check_name(name)

        def quiet(_line: str) -> None:
            """The loop tells its rounds."""

        def sample(label: str, rows: Any, number: int | None) -> Collection:
            first = (seed or 0) if number is None else None if seed is None else seed + SEEDS_PER_ROUND * number
            chosen = self.chat(label, prompt, n=n, over=rows, seed=first, **sampling)
            return self._scored(chosen.label, reward, quiet)

        def again(step: int) -> Collection:
            best, seeds = f"{self._selected}@{step}", (seed or 0) - SEEDS_PER_ROUND
            label = self.chat(again_name(name), prompt, n=n, over=held_out, seed=seeds, model=best, **sampling).label
            return self._scored(label, reward, quiet)

        def train(label: str) -> Job:
            return self.train(label, options, wait=False, say=quiet).wait(progress=False)

        plan = Plan(sample, over if callable(over) else lambda _: over, train, again, held_out, every, patience)
        known = so_far(self.store, name, self._selected, settled, judged=isinstance(reward, Judge))
        return play(known, plan, jobs, settled, Live(say))


def _check_reward(reward: Functions | Judge, held_out: Any) -> None:
    """InputError or RewardError unless these can score what a loop samples; none is called."""
    if not isinstance(reward, Judge):
        check_functions(reward)
        return
    hearings((), "", {}, model=reward.model, samples=reward.samples, seed=reward.seed)
    if held_out is not None:
        raise InputError(
            "a judge compares completions of one group: its mean over held-out rows says nothing about a checkpoint",
            hint="held_out=None, or a reward function",
        )
