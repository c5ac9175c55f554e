"""The steps of a job and what each answer counts in them, as the report before it is sent says."""

import re

import pytest

from rolloutlab.api import health
from rolloutlab.api.wire.engine import EngineStatus
from rolloutlab.errors import InputError
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.training.submission import gather
from tests.labs import completion, lab_with

GROUPS = 9


def scored(session, lengths=(2, 3), groups=GROUPS):
    """Groups of two answers with so many tokens, of which the first is right."""
    answers = [[completion(f"Paris {n}", "a" * n) for n in lengths] for _ in range(groups)]
    lab_with(session.store, *answers, rewards=[1.0, 0.0] * groups)
    return session


@pytest.fixture
def away(tmp_path):
    """A session whose embedded service does not run, and could not."""
    session = Session(Settings(home=tmp_path / "away", policy="/nowhere/practice"))
    yield session
    session.close()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "3 steps of 3 groups (each 6 completions, 15 tokens)"),
        ({"groups_per_step": 8}, "2 steps of 4 to 5 groups (each 9 completions, ≈ 22 tokens)"),
        ({"groups_per_step": 0}, "1 step of 9 groups (18 completions, 45 tokens)"),
        (
            {"groups_per_step": 5, "epochs": 2},
            "2 epochs of 2 steps of 4 to 5 groups (each 9 completions, ≈ 22 tokens)",
        ),
    ],
)
def test_a_service_that_says_how_many_groups_a_step_has_lets_the_report_count_the_steps(session, options, line):
    scored(session)
    assert repr(session.check("capitals", options)).splitlines()[2] == line
    form = session.train_form("capitals", options)
    assert line in repr(form)
    assert line.partition("(")[2].rstrip(")") in form._repr_html_()
    said = []
    session.train("capitals", options, wait=False, say=said.append)
    assert said[1] == line


def test_before_the_embedded_service_runs_only_what_depends_on_its_policy_is_open(away):
    scored(away)
    line = repr(away.check("capitals")).splitlines()[2]
    assert line == "3 steps of a policy under 20M parameters, 2 above; known once the service runs"
    assert repr(away.check("capitals", {"groups_per_step": 9})).splitlines()[2].startswith("1 step of 9 groups")


def test_a_job_that_is_one_step_for_any_policy_is_known_to_be(away):
    assert repr(scored(away, groups=4).check("capitals")).splitlines()[2].startswith("1 step of 4 groups")


@pytest.mark.parametrize("engine", [None, EngineStatus(name="wandb")])
def test_a_service_that_does_not_say_divides_as_it_does(away, engine):
    submission = gather([scored(away).collection("capitals")], {}, "lab/practice").with_engine(engine)
    assert submission.report()[1] == "steps: as the service divides"


def test_where_nothing_trains_there_are_no_steps(away):
    lab_with(away.store, ["Paris", "Lyon"], rewards=[1.0, 1.0])
    assert "step" not in repr(away.check("capitals"))


def lengths_line(check) -> str:
    return next((line for line in repr(check).splitlines() if line.startswith("answers of")), "")


def test_answers_of_different_lengths_count_as_the_warning_says(away):
    scored(away, (10, 1000))
    check = away.check("capitals")
    assert lengths_line(check) == (
        "answers of 10 and 1,000 tokens: a token of the first counts 100 times -> loss_aggregation: token_mean"
    )
    weights = check.to_frame()["weight"]
    said = float(re.search(r"counts ([\d.,]+) times", lengths_line(check))[1])
    assert weights.iloc[0] / weights.iloc[1] == pytest.approx(said, rel=1e-4)


def test_what_the_warning_advises_ends_it(away):
    scored(away, (10, 1000))
    check = away.check("capitals", {"loss_aggregation": "token_mean"})
    assert lengths_line(check) == ""


@pytest.mark.parametrize(("lengths", "warned"), [((10, 39), False), ((10, 40), True), ((1, 1), False)])
def test_a_fourfold_difference_is_worth_a_line(away, lengths, warned):
    assert bool(lengths_line(scored(away, lengths).check("capitals"))) is warned


def test_groups_of_different_lengths_are_no_reason_as_advantages_are_of_one_group(away):
    answers = [[completion("Paris", "a" * n)] * 2 for n in (10, 1000)]
    lab_with(away.store, *answers, rewards=[1.0, 0.0] * 2)
    assert lengths_line(away.check("capitals")) == ""


def test_nothing_is_advised_that_the_engine_would_refuse(away):
    engine = EngineStatus(name="wandb", unsupported={"loss_aggregation": "its vendor's client does not send it"})
    submission = gather([scored(away, (10, 1000)).collection("capitals")], {}, "lab/practice").with_engine(engine)
    assert "answers of 10 and 1,000 tokens: a token of the first counts 100 times" in submission.report()


@pytest.fixture
def old(session, monkeypatch):
    """A session at a service of before the options of steps: it does not say how many groups a step has."""
    asked = health._once

    async def answer(http, address, method, url, *body):
        response = await asked(http, address, method, url, *body)
        if url.endswith("/engine"):
            del response["groups_per_step"]
        return response

    monkeypatch.setattr(health, "_once", answer)
    return scored(session)


@pytest.mark.parametrize(
    "given",
    [
        {"groups_per_step": 4},
        {"epochs": 2},
        {"mask_truncated": True},
        {"loss_aggregation": "token_mean"},
        {"max_grad_norm": 1.0},  # whose default was another one
        {"weight_decay": 0.1},
    ],
)
def test_a_service_that_is_older_than_an_option_refuses_it_by_name(old, given):
    [name] = given
    why = f"the engine local does not honour {name}: this service is older than the option"
    with pytest.raises(InputError) as refused:
        old.train("capitals", given, say=lambda _: None)
    assert (refused.value.message, refused.value.hint) == (why, "leave it out")
    assert f"no job can begin: {why} -> leave it out" in repr(old.check("capitals", given))
    assert old.train_form("capitals", given).look(given)["problems"] == {name: why}
    assert old.store.jobs.newest_first() == []


def test_a_service_that_is_older_trains_what_it_knows(old):
    assert old.train("capitals", algorithm="grpo", say=lambda _: None).status == "succeeded"
    assert "steps: as the service divides" in repr(old.check("capitals"))
