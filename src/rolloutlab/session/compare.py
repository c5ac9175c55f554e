"""Two checkpoints on the same prompts and seeds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolloutlab.comparison import Comparison, pairs_of
from rolloutlab.errors import InputError
from rolloutlab.model import SelectedModel
from rolloutlab.sampling.tools import Tools
from rolloutlab.sampling.work import sampled_again
from rolloutlab.scoring import Functions
from rolloutlab.session.chat import CONCURRENT, ChatCalls
from rolloutlab.session.reward import RewardCalls
from rolloutlab.session.train import TrainCalls
from rolloutlab.training.jobs import UNKNOWN, UNREACHABLE, refreshed, trained_models


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
        bounds: tuple[float, float] | None = None,
        model: str | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        concurrency: int = CONCURRENT,
        variables: Mapping[str, Any] | None = None,
    ) -> Comparison:
        """Sample the prompts of a collection again, with the same seeds, from two checkpoints, and score both.

        reward: what scores them; by default what last scored the collection in this notebook. before, after: steps of
        checkpoints; None is the newest. over: other rows for the collection's prompt, such as held-out ones; on prompts
        that a job of this lab trained on in between there is no verdict. anytime: an interval that holds however often
        one looks, on more and more rows, and is wider for it. bounds: the least and the largest reward there can be,
        where they are not 0 and 1: without bounds the interval assumes roughly normal differences.
        n: completions per prompt, if others than the collection has. tools: the functions it was sampled with.

        What is sampled stays in the lab, as the collections `compare.NAME.step0` and so on.

        Raises:
            NotFoundError: no such collection or checkpoint. InputError: there is no reward function, or a reward is
            outside the bounds; and as `chat` and `reward`.
        """
        summary = self.store.collection(name)
        scorer = (reward, None) if reward else self._scorer_of(summary)
        if scorer is None:
            hint = f"%%compare {name}, with the reward function as its body"
            raise InputError(f"nothing scored {name} in this notebook yet", hint=hint)
        selected = self._existing(model or self._selected)
        steps = selected.checked(before), selected.newest if after is None else selected.checked(after)
        if after is None and steps[0] == steps[1]:
            raise InputError(f"{selected.name} has no checkpoint after {before} yet", hint=f"%%train {name}")
        sides = []
        for step in steps:
            target, kept = f"{selected.name}@{step}", f"compare.{summary.name}.step{step}"
            work = sampled_again(self.store, name, kept, target, over, variables or {}, n, Tools(tools))
            sides.append((target, self.reward(self._sample(work, concurrency).label, *scorer)))
        (old, was), (new, became) = sides
        pairs = pairs_of(was, became, self._trained(selected, *steps))
        return Comparison(name, old, new, pairs, anytime=anytime, bounds=bounds)

    def _trained(self, model: SelectedModel, *steps: int) -> set[str]:
        """The prompts of the jobs of this lab that made the checkpoints between two steps.

        A model and a service have several names: the service is asked which model each job trained. A job that it does
        not know is one of this model by the names it was submitted under, may have made a checkpoint, and counts.
        """
        between = range(min(steps) + 1, max(steps) + 1)
        address = self._running_service()
        remembered = refreshed(self.store.jobs, self._http, address, self._service)
        known = self._http.run(trained_models(self._http, address, remembered)) if address else {}
        labels: list[str] = []
        for job in remembered:
            if answer := known.get(job.id):
                step, lost, same = answer.final_step, False, str(answer.model_id) == model.id
            else:
                step, lost = job.step, job.status in {UNKNOWN, UNREACHABLE, None}
                same = job.service == self._service and job.model in {model.name, model.id}
            labels += job.collections if same and (step in between or lost) else ()
        return self.store.prompts(labels)
