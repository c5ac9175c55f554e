"""Labs with runs: generations with rewards, and the jobs that trained on them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.api.wire.training import Event
from rolloutlab.sampling.config import SamplingConfig
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, NewGroup, Score, StoredCollection, SubmittedJob
from rolloutlab.store.scorings import NewScoring
from tests.labs import completion

Rewards = Sequence[Sequence[float]]
SERVICE = "embedded"


class Trainer:
    """Puts into a lab what cells would: `sample` a generation with rewards, and `train` on it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._jobs, self.service = 0, SERVICE

    def sample(
        self,
        name: str,
        rewards: Rewards,
        *,
        step: int = 0,
        model: str = "lab/practice",
        code: str = "v1",
        components: Callable[[float], Mapping[str, float]] = lambda _: {},
        answers: Callable[[int, int], str] = lambda i, j: f"answer {i}.{j}",
        rows: str = "row",
        **plan: Any,
    ) -> StoredCollection:
        """A generation: a group for each list of rewards. code: of the function that gave them."""
        total = sum(map(len, rewards))
        made = SamplingConfig.model_validate(
            {"model": model, "step": step, "n": max(map(len, rewards)), "total": total, "seed": 0, **plan}
        )
        collection = self.lab.open_collection(name, made.model_dump(mode="json", exclude_defaults=True))
        prompts = [
            NewGroup([UserMessage(role="user", content=f"Question {i}?")], {rows: i}) for i in range(len(rewards))
        ]
        for i, (group, given) in enumerate(zip(self.lab.add_groups(collection, prompts), rewards, strict=True)):
            arrivals = [Arrival(j, [completion(answers(i, j))]) for j in range(len(given))]
            self.lab.put(group, arrivals, model=model, step=step, sampling={})
        change = self.lab.scorings.begin(collection, NewScoring("function", ["reward"], code, {}))
        trajectories = [t for group in self.lab.groups(collection) for t in group.trajectories]
        flat = [reward for given in rewards for reward in given]
        scores = [Score(t, r, components(r)) for t, r in zip(trajectories, flat, strict=True)]
        self.lab.scorings.store(change, "function", scores, keep_hand=False)
        return collection

    def train(
        self,
        *collections: StoredCollection,
        step: int | None,
        model: str = "lab/practice",
        options: Mapping[str, Any] | None = None,
        steps: Sequence[Mapping[str, float]] = (),
        status: str = "succeeded",
    ) -> SubmittedJob:
        """A job that made checkpoint `step`. steps: the numbers of its gradient steps."""
        self._jobs += 1
        at = f"2026-01-01T{self._jobs // 3600:02}:{self._jobs // 60 % 60:02}:{self._jobs % 60:02}+00:00"
        labels = tuple(f"{each.name}:{each.generation}" for each in collections)
        job = SubmittedJob(f"{self._jobs:08x}-job", self.service, model, labels, options or {}, at)
        self.lab.jobs.add(job)
        self.lab.jobs.set_status(job.id, status, step)
        data = [("gradient_step", dict(each)) for each in steps] + [
            ("checkpoint_saved", {"step": step, "seconds": 2.5})
        ]
        events = [Event(id=str(i), type=kind, data=each) for i, (kind, each) in enumerate(data)]
        self.lab.jobs.keep_events(job.id, events)
        return job


@pytest.fixture
def trainer(session) -> Trainer:
    return Trainer(session.store)
