"""The captions of a job's curves, on jobs of the practice policy: what they say of the first step and of later ones."""

import pytest

from rolloutlab.widgets.job import curves_of

CHAT = "%%chat capitals -n 48 --over countries --max-tokens 12 --seed 1\nuser: Capital of {{country}}?"
STEPS = "groups_per_step: 1\nepochs: 4"
REWARD = "%%reward capitals\nreturn float(sum(map(ord, answer)) % 7)"


@pytest.fixture
def service(start, practice_policy):
    """An untrained one for each test."""
    return start(practice_policy)


def said(name: str, options: dict[str, bool]) -> str:
    return next(curve.healthy for curve in curves_of(options) if curve.names[0] == name)


@pytest.mark.parametrize("options", ["", "ppo: true", "importance_sampling_level: sequence"])
def test_captions_are_true_of_fresh_answers_on_the_first_step_and_on_later_ones(notebook, options):
    notebook.run(CHAT)
    notebook.run(REWARD)
    job = notebook.run(f"%%train capitals\n{STEPS}\n{options}")
    first, *later = job.metrics().to_dict("records")
    assert later
    assert "0 at step 1 if the answers are fresh, above it later" in said("kl", {})
    assert first["kl"] == pytest.approx(0, abs=1e-6)
    assert all(step["kl"] > 1e-5 for step in later)
    assert "Fresh answers begin at 1" in said("old_new_correlation", {})
    assert first["old_new_correlation"] == pytest.approx(1, abs=1e-4)
    assert all(step["old_new_correlation"] < 0.9999 for step in later)
    assert "0 at step 1 if the model began there" in said("kl_base", {})
    assert first.get("kl_base", 0.0) == pytest.approx(0, abs=1e-6)
    assert job.state()["head"]["odd"] == {}


def test_the_gain_of_fine_tuning_is_above_0_once_the_learned_tokens_are_more_probable(notebook):
    notebook.run(CHAT)
    cell = "%%train capitals --sft\nbatch_size: 96"  # all answers in one step: each job learns the same ones
    numbers = [notebook.run(cell).metrics().iloc[0] for _ in range(4)]
    assert "Above 0 as they become more probable" in said("kl_base", {"sft": True})
    assert numbers[0]["kl_base"] == pytest.approx(0, abs=1e-6)
    assert numbers[-1]["loss"] < numbers[0]["loss"]
    assert numbers[-1]["kl_base"] > 0


def test_the_advised_rate_keeps_the_policy_near_and_500_times_of_it_does_not(notebook):
    notebook.run(CHAT)
    notebook.run(REWARD)
    high = notebook.run("%%train capitals\ngroups_per_step: 1\nlearning_rate: 1").metrics()["kl"].iloc[-1]
    assert "learning_rate 1 is 500 times the default of this policy" in repr(notebook.run("%job"))
    notebook.run("%model lab/other")
    advised = notebook.run("%%train capitals\ngroups_per_step: 1\nlearning_rate: 0.002").metrics()["kl"].iloc[-1]
    assert "times the default" not in repr(notebook.run("%job"))
    assert advised < 0.5 < 5 < high
