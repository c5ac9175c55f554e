"""The loop and the comparison of checkpoints on episodes of an environment, with a policy that trains."""

import pytest

from rolloutlab import Step
from rolloutlab.errors import InputError


class Letters:
    """Two turns; a reward for each letter of the row in an answer."""

    def __init__(self, row):
        self.letter, self.turns = row["letter"], 0

    def reset(self, seed):
        return "say"

    def step(self, answer):
        self.turns += 1
        return Step("more", answer.count(self.letter), self.turns == 2)


ROWS = [{"letter": "e"}, {"letter": "o"}]
SETTINGS = {"n": 4, "seed": 1, "env": Letters, "max_tokens": 6}


def test_a_loop_trains_on_the_rewards_of_an_environment(session):
    loop = session.loop("letters", over=ROWS, held_out=ROWS, jobs=2, every=1, **SETTINGS)
    made = [each for each in session.store.collections() if each.name == "letters"]
    assert [each.scored for each in made] == [8, 8]
    assert all(one.held_out is not None for one in loop.rounds)
    first = session.collection("letters:1").trajectories[0]
    assert (first.reward, first.source) == (sum(first.turn_rewards), "environment")
    assert [each.step for each in loop.rounds] == [0, 1, 2]


def test_a_loop_adds_a_reward_function_to_it(session):
    session.loop("letters", "", {"brief": lambda answer: -10.0}, over=ROWS, jobs=1, **SETTINGS)
    first = session.collection("letters:1").trajectories[0]
    assert first.reward == sum(first.turn_rewards) - 10.0


def test_a_loop_needs_a_reward_or_an_environment(session):
    with pytest.raises(InputError, match="needs a reward function"):
        session.loop("letters", "user: say", over=ROWS, jobs=1)


def test_a_loop_goes_on_with_the_environment_that_it_began_with(session):
    session.loop("letters", over=ROWS, jobs=1, **SETTINGS)
    others = {**SETTINGS, "env": type("Others", (Letters,), {})}
    with pytest.raises(InputError, match="letters was sampled with the environment Letters"):
        session.loop("letters", over=ROWS, jobs=1, **others)
    with pytest.raises(InputError, match="letters was sampled with the environment Letters"):
        session.loop("letters", "user: say", len, over=ROWS, jobs=1)
    assert len(session.loop("letters", jobs=0, **SETTINGS).rounds) == 1


def test_two_checkpoints_are_compared_by_the_rewards_of_the_environment(session):
    session.loop("letters", over=ROWS, jobs=1, **SETTINGS)
    others = [{"letter": letter} for letter in "ae"]
    comparison = session.compare("letters", env=Letters, over=[*others, *others])
    names = [name.replace("/", ".").replace("@", ".step") for name in (comparison.before, comparison.after)]
    sides = [session.collection(f"compare.letters.{name}") for name in names]
    assert [each.stored.plan["env"] for each in sides] == ["Letters"] * 2
    assert all(t.reward == sum(t.turn_rewards) for each in sides for t in each.trajectories)
    assert [(pair.prompt, pair.trained, pair.rows) for pair in comparison.pairs] == [
        ("say", False, 2),
        ("say", True, 2),
    ]
    with pytest.raises(InputError, match="sampled with the environment Letters"):
        session.compare("letters", over=ROWS)


def test_a_loop_tops_up_with_further_episodes(session):
    worthless = [{"letter": "é"}, {"letter": "ß"}]
    loop = session.loop("letters", over=worthless, jobs=1, top_up=2, patience=1, **SETTINGS)
    assert loop.history["topped_up"].tolist() == [8]
    assert {t.source for t in session.collection("letters").trajectories} == {"environment"}
