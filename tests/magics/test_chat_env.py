"""`%%chat --env`: what an environment does with answers, what is stored of it, and how episodes end."""

import pytest

from tests.environments.conftest import notebook, policy  # noqa: F401  # fixtures
from tests.magics.conftest import bare  # noqa: F401

GUESS = """
class GuessNumber:
    def __init__(self, row):
        self.target = row["target"]
    def reset(self, seed):
        return "Guess a number from 1 to 20."
    def step(self, answer):
        guess = int(answer)
        if guess == self.target:
            return Step("right", 1.0, done=True)
        return Step("higher" if guess < self.target else "lower", -0.1)
"""
CHAT = "%%chat guess -n 2 --over targets --env GuessNumber --max-turns 4\nsystem: Answer with one number."


def bisect(messages):
    """A policy that halves what is left."""
    low, high = 1, 20
    guesses = [(int(a["content"]), o["content"]) for a, o in zip(messages[2::2], messages[3::2], strict=True)]
    for guess, hint in guesses:
        low, high = (guess + 1, high) if hint == "higher" else (low, guess - 1)
    return str((low + high) // 2)


@pytest.fixture
def guessing(notebook, policy):  # noqa: F811
    policy.answer = bisect
    notebook.run(GUESS)
    notebook.run('targets = [{"target": 7}, {"target": 10}, {"target": 20}]')
    return notebook


def test_an_environment_answers_each_turn_until_it_is_done(guessing):
    collection = guessing.run(CHAT)
    first = collection.groups[0].trajectories[0]
    assert [message["content"] for message in first.messages] == [
        "Answer with one number.", "Guess a number from 1 to 20.", "10", "lower", "5", "higher", "7", "right",
    ]  # fmt: skip
    assert [len(t.choices) for t in collection.trajectories] == [3, 3, 1, 1, 4, 4]


def test_each_turns_reward_is_stored_and_their_sum_is_the_reward(guessing):
    first, _, second, *_ = guessing.run(CHAT).trajectories
    assert first.extra["metrics"] == {"turn_reward/0": -0.1, "turn_reward/1": -0.1, "turn_reward/2": 1.0, "env": 0.8}
    assert (first.reward, first.components, first.source) == (0.8, {"env": 0.8}, "environment")
    assert (second.reward, second.components) == (1.0, {"env": 1.0})


def test_an_episode_ends_when_it_is_done_or_after_max_turns(guessing):
    trajectories = guessing.run(CHAT).trajectories
    assert [t.extra["metadata"]["episode_end"] for t in trajectories] == ["done"] * 4 + ["max_turns"] * 2
    assert trajectories[-1].reward == pytest.approx(-0.4)
