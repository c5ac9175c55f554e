"""A lab with collections whose rewards are looked at."""

from collections.abc import Iterator
from typing import Any

import pytest

from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import NewGroup, Score
from rolloutlab.trajectories.rewards_view import RewardsView
from tests.labs import completion, lab_with

ANSWERS = {"France": ["Paris", "Lyon", "Paris", "It is " + "very " * 60 + "Paris"], "Peru": ["Lima", "Cusco"]}


@pytest.fixture
def lab(tmp_path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


@pytest.fixture
def sample(lab):
    """Puts a collection into the lab, one group per country; the nth answer of each has n tokens."""

    def put(name: str = "capitals", answers: dict[str, list[str]] = ANSWERS, **overrides: Any) -> None:
        prompts = [NewGroup([UserMessage(role="user", content=f"Capital of {c}?")], {"country": c}) for c in answers]
        groups = [
            [completion(answer, "a" * i, **overrides) for i, answer in enumerate(texts, 1)]
            for texts in answers.values()
        ]
        lab_with(lab, *groups, name=name, prompts=prompts, step=3, sampling={"temperature": 1.0})

    return put


@pytest.fixture
def give(lab):
    """Gives rewards to the first trajectories of a collection."""

    def give(*rewards: float, name: str = "capitals", source: str = "function", **components: float) -> None:
        trajectories = [t for group in lab.groups(lab.find(name)) for t in group.trajectories]
        scores = [Score(t, r, components) for t, r in zip(trajectories, rewards, strict=False)]
        lab.rewards.give(scores, source)

    return give


@pytest.fixture
def view(lab, sample) -> RewardsView:
    """The rewards of a collection of two groups, none given yet."""
    sample()
    return RewardsView(lab, [lab.find("capitals")])
