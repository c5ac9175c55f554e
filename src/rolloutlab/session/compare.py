"""Two checkpoints on the same prompts and seeds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolloutlab.comparison import Comparison, pairs_of
from rolloutlab.errors import InputError
from rolloutlab.sampling.tools import Tools
from rolloutlab.sampling.work import sampled_again
from rolloutlab.scoring import Functions
from rolloutlab.session.chat import CONCURRENT, ChatCalls
from rolloutlab.session.reward import RewardCalls
from rolloutlab.session.train import TrainCalls
from rolloutlab.training.jobs import UNKNOWN, UNREACHABLE, refreshed


class CompareCalls(ChatCalls, RewardCalls, TrainCalls):
    """Collections sampled again, to compare."""

    def compare(
        self,
        name: str,
        reward: Functions | None = None,
        *,
        before: int = 0,
        after: int | None = None,
        n: int | None = None,
        over: Any = None,
        anytime: bool = False,
        model: str | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        concurrency: int = CONCURRENT,
        variables: Mapping[str, Any] | None = None,
    ) -> Comparison:
        """Sample the prompts of a collection again, with the same seeds, from two checkpoints, and score both.

        reward: what scores them; by default what last scored the collection in this notebook. before, after: steps of
        checkpoints; None is the newest. over: other rows for the collection's prompt, such as held-out ones; on prompts
        that a job of this lab trained on in between there is no verdict. anytime: an interval that holds however often
        one looks, on more and more rows, and is wider for it.
        n: completions per prompt, if others than the collection has. tools: the functions it was sampled with.

        What is sampled stays in the lab, as the collections `compare.NAME.step0` and so on.

        Raises:
            NotFoundError: no such collection or checkpoint. InputError: there is no reward function; and as `chat` and
            `reward`.
        """
        summary = self.store.collection(name)
        scorer = (reward, None) if reward else self._scorer_of(summary)
        if scorer is None:
            hint = f"%%compare {name}, with the reward function as its body"
            raise InputError(f"nothing scored {name} in this notebook yet", hint=hint)
        found = self._existing(model or self._selected)
        steps = found.checked(before), found.newest if after is None else found.checked(after)
        if after is None and steps[0] == steps[1]:
            raise InputError(f"{found.name} has no checkpoint after {before} yet", hint=f"%%train {name}")
        sides = []
        for step in steps:
            target, kept = f"{found.name}@{step}", f"compare.{summary.name}.step{step}"
            work = sampled_again(self.store, name, kept, target, over, variables or {}, n, Tools(tools))
            sides.append((target, self.reward(self._sample(work, concurrency).label, *scorer)))
        (old, was), (new, became) = sides
        return Comparison(name, old, new, pairs_of(was, became, self._trained(found.name, *steps)), anytime=anytime)

    def _trained(self, model: str, *steps: int) -> set[str]:
        """The prompts of the jobs of this lab that made the checkpoints between two steps.

        A job whose service does not know what became of it may have made one, and counts.
        """
        jobs = refreshed(self.store.jobs, self._http, self._running_service(), self._service)
        between = range(min(steps) + 1, max(steps) + 1)
        made = [job for job in jobs if (job.model, job.service) == (model, self._service)]
        lost = {UNKNOWN, UNREACHABLE, None}
        labels = [label for job in made if job.step in between or job.status in lost for label in job.collections]
        return self.store.prompts(labels)
