"""A learning rate far above the default of the policy is named wherever options of a job are given, on every policy."""

from dataclasses import replace

import pytest

from rolloutlab.objective.option_docs import rate_warnings
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.store.models import NewGroup
from tests.labs import completion, lab_with

DEFAULTS = {"small": 2e-3, "large": 5e-6}


@pytest.fixture(params=DEFAULTS)
def default(request) -> float:
    return DEFAULTS[request.param]


@pytest.fixture
def service(start, policy, default):
    """One with the default learning rate of a small or of a large policy."""
    return start(replace(policy, learning_rate=default))


@pytest.fixture
def scored(session):
    session.chat("capitals", "Capital of Peru?", n=4, max_tokens=4, seed=1)
    session.reward("capitals", lambda trajectory, answer, messages, row: int(trajectory.name[-1]))
    return session


@pytest.mark.parametrize("times", [5, 500])
def test_dry_run_form_report_and_job_name_the_times_of_the_policys_own_default(scored, default, times):
    rate, printed = times * default, []
    line = f"learning_rate {rate:g} is {times} times the default of this policy"
    assert f"{line} -> learning_rate: {default:g}" in repr(scored.check("capitals", {"learning_rate": rate}))
    outlook = scored.train_form("capitals").look({"learning_rate": f"{rate!r}"})
    assert f"['{line}']" in str(outlook["hints"])
    assert f"→ learning_rate: {default:g}" in str(outlook["hints"])
    job = scored.train("capitals", {"learning_rate": rate}, say=printed.append)
    assert f"{line} -> learning_rate: {default:g}" in printed
    assert line in repr(job)


def test_the_advised_rate_is_named_nowhere(scored, default):
    for options in ({"learning_rate": default}, {"learning_rate": 4 * default}, {}):
        assert "times the default" not in repr(scored.check("capitals", options))
        assert "times the default" not in repr(scored.train_form("capitals", options))


@pytest.mark.parametrize("of_steps", [False, True])
def test_fine_tuning_names_it_by_its_own_default(scored, default, of_steps):
    own = max(default, 5e-5)
    rate, printed = 500 * own, []
    options = {"learning_rate": [own, rate, own, own] if of_steps else rate, "batch_size": 1}
    line = f"learning_rate {rate:g} is 500 times the default of this policy"
    assert f"{line} -> learning_rate: {own:g}" in repr(scored.check("capitals", options, sft=True))
    assert line in repr(scored.train("capitals", options, sft=True, say=printed.append))
    assert f"{line} -> learning_rate: {own:g}" in printed
    assert "times the default" not in repr(scored.check("capitals", {**options, "learning_rate": own}, sft=True))


def test_a_loop_names_it_before_its_first_round_and_above_its_chart(session, default):
    printed, rate = [], 500 * default
    made = session.loop(
        "capitals", "Capital of Peru?", lambda trajectory: float(trajectory.name[-1]), over=[{"a": 1}], n=2, jobs=1,
        max_tokens=2, options={"learning_rate": rate}, say=printed.append,
    )  # fmt: skip
    line = f"learning_rate {rate:g} is 500 times the default of this policy -> learning_rate: {default:g}"
    assert printed[0] == line
    assert line in repr(made)


@pytest.mark.parametrize(
    ("policy", "rate", "named"),
    [
        ("/nowhere/large", 2e-3, "learning_rate 0.002 is 400 times the default of policies over 20M parameters, 5e-06"),
        ("/nowhere/large", 2e-5, ""),
        ("practice", 2e-3, ""),
        ("practice-games", 1.0, "learning_rate 1 is 500 times the default of this policy -> learning_rate: 0.002"),
    ],
)
def test_where_no_service_runs_it_is_compared_with_what_is_known_of_the_policy(tmp_path, policy, rate, named):
    session = Session(Settings(home=tmp_path, policy=policy))
    answers = [completion("Paris", "a"), completion("Lima", "b")]
    lab_with(session.store, answers, prompts=[NewGroup([], {})], rewards=[0, 1])
    shown = repr(session.check("capitals", {"learning_rate": rate}))
    session.close()
    assert named in shown
    assert bool(named) == ("times the default" in shown)


@pytest.mark.parametrize("rate", [1e-3, 1.0, 1e308])
def test_a_default_of_0_and_an_endless_rate_are_named_in_finite_words(rate):
    (line,) = rate_warnings(rate, 0.0)
    assert line == f"learning_rate {rate:g} is above the default of 0 -> learning_rate: 0"
    assert "1e+300 times" in rate_warnings(1e308, 2e-3)[0]
