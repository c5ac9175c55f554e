"""Storage of sampled completions in the lab as they arrive, with their token counts."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from rolloutlab.api.wire.chat import ChatCompletion
from rolloutlab.errors import SamplingError, ServiceError
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.generation import Generation
from rolloutlab.sampling.plan import SamplingRun
from rolloutlab.sampling.rollout import Rollout
from rolloutlab.store.arrivals import DumpedArrival, Placed, dump_arrival
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, Group, StoredCollection


class PreparedAnswer(NamedTuple):
    """The record that is stored for conversations of one group after one completion.

    The conversations are kept as serialized texts, because a thousand records wait for the disk while 512 requests are
    under way. An object per token took 80 MB more memory, and an eighth more time, because of cache misses.
    """

    place: int
    arrivals: Sequence[DumpedArrival]
    step: int | None = None
    usage: tuple[int, int] = (0, 0)
    unscored: int = 0
    """Episodes that ended without a reward."""


class TrajectoryWriter:
    """Writes completions into a generation of a collection, which is created with the first one.

    Attributes, all of the run so far:
        total: the trajectories that the plan samples.
        begun: completions that were stored.
        done: finished trajectories.
        failed: trajectories whose request failed.
        tokens: sampled tokens.
        text: the text of a single streamed completion.
    """

    def __init__(self, lab: Lab, work: SamplingRun) -> None:
        self._lab = lab
        self._work = work
        self._generation = Generation(lab, work.name, work.plan, work.groups, work.begun, "completions")
        self.total = sum(len(rollout.positions) for rollout in work.rollouts)
        self.done = 0
        self.begun = 0
        self.failed = 0
        self._unscored = 0
        self.tokens = 0
        self.text = ""
        self._first_error: ServiceError | None = None
        self._since = time.monotonic()
        self._under_way = False

    @property
    def collection(self) -> StoredCollection | None:
        """The generation, once it is stored."""
        return self._generation.collection

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Make a context in which completions are stored; it unlocks the collection at its end."""
        self._under_way = True
        try:
            yield
        finally:
            self._under_way = False
            self.close()

    def close(self) -> None:
        """Unlock the collection; inside `under_way` that is left to its end."""
        if not self._under_way:
            self._generation.close()

    def prepare(self, rollouts: Sequence[Rollout], completion: ChatCompletion | None) -> PreparedAnswer:
        """Make the record that `take` stores for conversations after a completion.

        completion: None if the service refused it.
        """
        ended = [rollout.episode for rollout in rollouts if not rollout.pending]
        unscored = sum(episode is not None and episode.final_reward is None for episode in ended)
        arrivals = [dump_arrival(self._arrival(rollout)) for rollout in rollouts]
        return PreparedAnswer(rollouts[0].place, arrivals, _step(completion), _usage(completion), unscored)

    def take(self, answers: Sequence[PreparedAnswer]) -> None:
        """Store conversations, then count them; a generation is created with its first completions."""
        begins = not self._generation.groups
        step = next((answer.step for answer in answers if answer.step is not None), None)
        self._generation.store(partial(self._put, answers, self._work.copies if begins else ()), step)
        if begins:
            # unlocks only if `under_way` has ended, which may happen while this thread waits for the disk
            self.close()
        self.tokens += sum(answer.usage[1] for answer in answers)
        self.begun += sum(len(answer.arrivals) for answer in answers)
        self.done += sum(not arrival.pending for answer in answers for arrival in answer.arrivals)
        self._unscored += sum(answer.unscored for answer in answers)

    def unscored(self) -> str:
        """Warn if episodes ended without a reward because nothing in their environment gives one, else return ""."""
        if not self._unscored:
            return ""
        what = f"{count(self._unscored, 'episode')} of {self._work.plan.env} ended without a reward"
        hint = "def get_reward(self): return self.reward, or lab.environment(CLASS, reward_funcs=f)"
        return f"{what}, as nothing gave one -> {hint}"

    def fail(self, rollout: Rollout, error: ServiceError) -> None:
        """Count conversations whose request failed."""
        self.failed += len(rollout.positions)
        self._first_error = self._first_error or error

    def say(self, text: str) -> None:
        """Show the text so far of a streamed completion."""
        self.text = text

    def kept(self) -> str:
        """Tell what is stored after an error, and what to type to continue."""
        if not self.begun:
            return ""
        return f"{self._so_far()}; what was sampled is kept -> {self._rest()}"

    def interrupted(self) -> tuple[str, str]:
        """Message and hint after an interrupt."""
        if self._under_way:  # after a second interrupt, which did not wait for the disk
            return f"{self._so_far()} and are kept; others are still being stored", f"{self._rest()} samples the rest"
        if not self.begun:
            return "nothing had arrived yet, and no collection was made", "run the cell again"
        missing = self.total - self.done
        what = f"samples the other {missing:,}" if missing else "shows them"
        return f"{self._so_far()} and are kept", f"{self._rest()} {what}"

    def unfinished(self) -> tuple[str, str | None]:
        """Tell what is stored and what is missing after a budget ran out.

        Returns:
            The text, and the cell that samples the rest; None for the same cell again.
        """
        if not self.begun:
            return "nothing was sampled", None
        return f"{self._so_far()} and are kept, {self.total - self.done:,} are not sampled yet", self._rest()

    def _so_far(self) -> str:
        return f"{self.done:,} of {count(self.total, 'completion')} had arrived"

    def check(self) -> None:
        """SamplingError when some requests failed; their service's own error when all did."""
        if self._first_error is None:
            return
        if not self._generation.groups:
            raise self._first_error
        failed = f"{self.failed:,} of {count(self.total, 'completion')} of {self._generation.label} failed"
        message = f"{failed}, the others are kept: {self._first_error.message}"
        raise SamplingError(message, hint=self._rest()) from self._first_error

    def _rest(self) -> str:
        return self._work.plan.cell_again(self._generation.label, "--resume")

    def note(self, waits: bool = False) -> str:
        """Failures, speed and remaining time; waits: the service is unreachable."""
        if waits:
            return "the service is unreachable; retrying for some minutes"
        seconds = time.monotonic() - self._since
        left = self.total - self.done
        parts = [f"{self.failed:,} failed"] if self.failed else []
        if self.done:
            parts += [f"{self.tokens / seconds:,.0f} tokens/s", f"{_duration(seconds / self.done * left)} left"]
        return ", ".join(parts)

    def _put(self, answers: Sequence[PreparedAnswer], copies: Sequence[Rollout], groups: Sequence[Group]) -> None:
        plan, all_answers = self._work.plan, [*(self.prepare([copy], None) for copy in copies), *answers]
        sampling = plan.sampling()
        self._lab.put_all(
            [
                Placed(groups[each.place], each.arrivals, plan.model, each.step, sampling, each.usage)
                for each in all_answers
            ]
        )

    def _arrival(self, rollout: Rollout) -> Arrival:
        episode = rollout.episode
        offered = [*self._work.plan.tools, *rollout.tools]
        extra = {
            **({"tools": [tool.to_wire() for tool in offered]} if offered else {}),
            **({"logs": rollout.logs} if rollout.logs else {}),
            **(episode.extra() if episode else {}),
        }
        components = episode.components if episode else {}
        return Arrival(rollout.positions[0], rollout.items, rollout.pending, extra, components)


def _step(completion: ChatCompletion | None) -> int | None:
    """The sampled checkpoint, where the service reports it on its choices."""
    if completion is None:
        return None
    steps = {(choice.model_extra or {}).get("policy_version") for choice in completion.choices}
    step = steps.pop() if len(steps) == 1 else None
    return step if isinstance(step, int) else None


def _usage(completion: ChatCompletion | None) -> tuple[int, int]:
    """Prompt and sampled tokens as the service counts them, else sampled ones by their logprobs."""
    if completion is None:
        return 0, 0
    if completion.usage:
        return completion.usage.prompt_tokens, completion.usage.completion_tokens
    return 0, sum(len(choice.sampled_tokens()) for choice in completion.choices)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 60 else f"{minutes / 60:.1f} h"
