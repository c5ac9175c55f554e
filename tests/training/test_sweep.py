"""Loops with several seeds or settings: each has a model of its own, and the same call goes on."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rolloutlab.errors import InputError
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.store.origins import Origin
from rolloutlab.training.variants import plan_variants
from tests.training.test_loop_interrupted import (
    PROMPT,
    ROWS,
    by_length,
    during_sampling,
    killed,
    outcome,
)


@pytest.fixture
def service(service):
    """The module's, emptied after each test: these train."""
    yield service
    service.empty()


@pytest.fixture
def kernel(service, tmp_path) -> Iterator[Callable[..., Session]]:
    """Makes the session of a new kernel on a lab of this test."""
    sessions: list[Session] = []

    def begin(name: str = "lab") -> Session:
        sessions.append(Session(Settings(home=tmp_path / name, service=service.address), http=service.http))
        return sessions[-1]

    yield begin
    for session in sessions:
        session.close()


GIVEN = {"over": ROWS, "n": 2, "max_tokens": 4, "every": 2, "held_out": ROWS[:2], "concurrency": 1}


def seeds(session: Session, number: int = 2, jobs: int = 2, lines: list[str] | None = None, **options: Any):
    say = ([] if lines is None else lines).append
    given = {**GIVEN, **options}
    return session.loop("capitals", PROMPT, given.pop("reward", by_length), jobs=jobs, seeds=number, say=say, **given)


def sweep(session: Session, settings: Any, jobs: int = 1, lines: list[str] | None = None, **options: Any):
    say = ([] if lines is None else lines).append
    given = {**GIVEN, **options}
    return session.sweep(settings, "capitals", PROMPT, given.pop("reward", by_length), jobs=jobs, say=say, **given)


def test_each_seed_is_a_loop_on_a_new_model_and_the_selected_model_stays_selected(session):
    lines: list[str] = []
    made = seeds(session, lines=lines)
    assert [one.name for one in made] == ["capitals.seed0", "capitals.seed1"]
    assert [one.model for one in made] == ["lab/practice.capitals.seed0", "lab/practice.capitals.seed1"]
    assert session.models.selected == "lab/practice"
    assert lines == ["1 of 2: capitals, seed 0", "2 of 2: capitals, seed 1"]
    newest = session.models.list()["newest"]
    assert newest[[one.model for one in made]].tolist() == [2, 2]
    assert newest["lab/practice"] == 0
    origins = {("http://127.0.0.1", f"lab/practice.capitals.seed{i}"): Origin(None, "capitals", {}, i) for i in (0, 1)}
    assert session.store.origins.all() == origins


def test_seeds_of_sampling_differ_and_held_out_rows_and_their_seeds_do_not(session):
    seeds(session, jobs=1)
    first, second = (session.collection(f"capitals.seed{i}").trajectories for i in (0, 1))
    assert [t.sampling["seed"] for t in first] == [1_000_000] * 6
    assert [t.sampling["seed"] for t in second] == [1_001_000_000] * 6
    held = [session.collection(f"held_out.capitals.seed{i}:1").trajectories for i in (0, 1)]
    assert [t.answer for t in held[0]] == [t.answer for t in held[1]]  # of one base
    assert {t.sampling["seed"] for each in held for t in each} == {0}


def test_jobs_are_the_rounds_that_each_has_in_the_end(session):
    seeds(session, jobs=1)
    jobs = len(session.jobs())
    before = len(session.store.collections())
    lines: list[str] = []
    seeds(session, jobs=1, lines=lines)
    assert len(session.jobs()) == jobs == 2
    assert len(session.store.collections()) == before
    made = seeds(session, number=3, jobs=2)
    assert made.frame["rounds"].tolist() == [2, 2, 2]
    assert len(session.jobs()) == 6


def test_the_frame_has_a_row_for_each_loop_and_the_best_is_measured_again(session):
    made = sweep(session, {"learning_rate": [1e-3, 2e-3], "epsilon": [0.1]}, seeds=2, jobs=1)
    frame = made.frame
    assert frame.index.tolist() == [
        f"capitals.learning_rate-{rate}.epsilon-0.1.seed{seed}" for rate in ("0.001", "0.002") for seed in (0, 1)
    ]
    assert frame["learning_rate"].tolist() == [1e-3, 1e-3, 2e-3, 2e-3]
    assert frame["seed"].tolist() == [0, 1, 0, 1]
    assert frame["before"].nunique() == 1
    assert made.best_loop.best == made.best
    assert frame["best"].max() == made.best_loop.measured[made.best_loop.best_step]
    assert made.best_mean == made.best_loop.best_mean
    assert made.best_mean is not None
    sent = {job.model: job.options["learning_rate"] for job in session.store.jobs.newest_first()}
    assert sent["lab/practice.capitals.learning_rate-0.002.epsilon-0.1.seed0"] == 2e-3
    assert repr(made).splitlines()[0].startswith(f"loops capitals: 4 of 4 loops, best {made.best}: held-out ")
    assert f"{made.best}" in made._repr_html_()
    assert made._repr_html_().count("<tr") == 1 + 4
    again = sweep(session, {"learning_rate": [1e-3, 2e-3], "epsilon": [0.1]}, seeds=2, jobs=0)
    assert again.frame.equals(frame)
    assert again.best == made.best


def test_settings_of_the_sampling_are_of_the_rounds_and_held_out_rows_are_measured_alike(session):
    made = sweep(session, {"temperature": [0.5, 1.5], "n": [2, 3]}, jobs=1)
    assert [one.name for one in made][1] == "capitals.temperature-0.5.n-3.seed0"
    plans = [session.collection(one.name).stored.plan for one in made]
    assert [(plan["temperature"], plan["n"]) for plan in plans] == [(0.5, 2), (0.5, 3), (1.5, 2), (1.5, 3)]
    held = [session.collection(f"held_out.{one.name}").stored.plan for one in made]
    assert {(plan.get("temperature", 1.0), plan["n"]) for plan in held} == {(1.0, 2)}
    assert made.frame["before"].nunique() == 1
    assert made.best is not None
    assert sweep(session, {"temperature": [0.5, 1.5], "n": [2, 3]}, jobs=0).frame.equals(made.frame)


def test_means_of_rounds_that_were_sampled_otherwise_choose_no_best(session):
    made = sweep(session, {"temperature": [0.5, 1.5]}, jobs=1, held_out=None)
    assert made.best is None
    assert sweep(session, {"epochs": [1, 2]}, jobs=1, held_out=None).best is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "are a dict of lists"),
        ([1e-3], "are a dict of lists"),
        ({"learning_rat": [1e-3]}, "a sweep has no setting 'learning_rat'"),
        ({"seed": [1, 2]}, "a sweep has no setting 'seed'"),
        ({"learning_rate": 1e-3}, "0.001 is not a list of values"),
        ({"learning_rate": []}, "is not a list of values"),
        ({"learning_rate": [1e-3, 0.001]}, "two of the values"),
        ({"epsilon": [1, 1.0]}, "two of the values"),
        ({"learning_rate": [1e-3, -1.0]}, "learning_rate: -1.0"),
        ({"temperature": [1.0, 9.0]}, "temperature: 9.0 is outside 0 to 2"),
        ({"n": [2, 0]}, "n: 0"),
        ({"stop": [len]}, "is neither a number nor a text"),
        ({"max_tokens": [4, 5]}, "max_tokens is in the grid, and is given once more"),
    ],
)
def test_every_value_of_a_grid_is_checked_before_anything_is_sampled(session, settings, message):
    with pytest.raises(InputError, match=message):
        sweep(session, settings)
    assert session.collections().empty
    assert session.store.origins.all() == {}


def test_loops_begin_where_the_selected_model_was_when_the_first_was_made(session):
    session.loop("first", PROMPT, by_length, jobs=1, say=[].append, over=ROWS, n=2, max_tokens=4, seed=1)
    made = seeds(session)
    assert {session.model(each.model).made_from[0].step for each in made} == {1}
    assert {origin.made_from for origin in session.store.origins.all().values()} == {"lab/practice@1"}
    assert [each.rounds[0].step for each in made] == [1] * len(made)


def test_a_loop_that_is_added_later_begins_where_the_others_did(session):
    session.loop("first", PROMPT, by_length, jobs=1, say=[].append, over=ROWS, n=2, max_tokens=4, seed=1)
    seeds(session, 1)
    session.model("lab/practice")
    session.loop("first", PROMPT, by_length, jobs=1, say=[].append, over=ROWS, n=2, max_tokens=4, seed=1)
    made = seeds(session, 2)
    assert [each.rounds[0].step for each in made] == [1, 1]


def test_loops_that_have_begun_go_on_also_after_the_selected_model_was_trained(session):
    seeds(session, number=1, jobs=1)
    session.loop("first", PROMPT, by_length, jobs=1, say=[].append, over=ROWS, n=2, max_tokens=4, seed=1)
    assert seeds(session, number=1, jobs=2).frame["rounds"].tolist() == [2]
    made = seeds(session, number=2, jobs=2)
    assert [each.rounds[0].step for each in made] == [0, 0]  # the second begins where the first did


def test_what_single_loops_go_on_with_is_a_line_and_in_the_view(kernel):
    with killed(lambda patch: during_sampling(patch, "capitals.seed0", 2)):
        seeds(kernel())
    lines: list[str] = []
    made = seeds(kernel(), lines=lines)
    assert lines[:2] == ["1 of 2: capitals, seed 0", "round 2 goes on: 2 of 6 completions were sampled"]
    assert "round 2 goes on: 2 of 6 completions were sampled" in made._repr_html_()


@pytest.mark.parametrize("taken", ["a collection", "a model"])
def test_what_another_call_has_made_is_not_gone_on_with(session, taken):
    if taken == "a model":
        session.model("lab/practice.capitals.seed1")
        session.model("lab/practice")
    else:
        session.chat("capitals.seed1", "user: hi", max_tokens=2)
    with pytest.raises(InputError, match=f"there is already {taken} .*capitals.seed1, which this sweep has not made"):
        seeds(session)


def test_an_error_ends_all_and_keeps_what_is_done_and_the_selected_model(session):
    def broken(answer, trajectory):
        if trajectory.model.endswith("seed1"):
            raise KeyboardInterrupt
        return by_length(answer, trajectory)

    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        seeds(session, reward=broken, jobs=1, lines=lines)
    assert session.models.selected == "lab/practice"
    assert lines[-1].startswith("stopped by KeyboardInterrupt; the same call goes on, in round 1")
    assert seeds(session, jobs=0).frame["rounds"].tolist() == [1, 0]


def test_a_loop_that_ended_because_nothing_trained_stays_ended(session):
    lines: list[str] = []
    seeds(session, number=1, jobs=5, patience=2, reward=lambda answer: 1.0)
    made = seeds(session, number=1, jobs=5, patience=2, reward=lambda answer: 1.0, lines=lines)
    assert made.frame["rounds"].tolist() == [2]
    assert lines[-1] == "capitals.seed0 stays ended: nothing trained in 2 rounds in a row"


@pytest.mark.parametrize(
    ("name", "generation"), [("capitals.seed0", 1), ("capitals.seed1", 2), ("held_out.capitals.seed1", 1),
                             ("held_out.capitals.seed0", 2), ("best.capitals.seed1", 1)]
)  # fmt: skip
def test_a_killed_call_goes_on_with_all_its_loops_and_equals_one_that_was_not(kernel, service, name, generation):
    session = kernel("whole")
    seeds(session)
    whole = outcome(session, service)
    service.empty()
    with killed(lambda patch: during_sampling(patch, name, generation)):
        seeds(kernel())
    again = kernel()
    seeds(again)
    assert outcome(again, service) == whole


def test_names_are_readable_and_no_longer_than_a_service_takes():
    grid = {"stop": [["a b"]], "algorithm": ["dapo"], "ppo": [True], "top_p": [None], "learning_rate": [1e-05]}
    (variant,) = plan_variants("x", "lab/m", grid, 1)
    assert variant.collection.startswith("x.stop-_a_b_-")
    assert variant.collection.endswith(".algorithm-dapo.ppo-true.top_p-none.learning_rate-1e-05.seed0")
    (odd,) = plan_variants("x", "lab/m", {"algorithm": ["a\ud800b"]}, 1)
    assert odd.collection.startswith("x.algorithm-a_b-")
    long = plan_variants("x" * 300, "lab/m", {"epochs": [1, 2]}, 2)
    assert {len(each.model.partition("/")[2]) for each in long} == {255}
    assert len({each.collection for each in long}) == 4
