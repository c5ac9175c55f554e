"""A line within 0.3 seconds of any cell: what it does now is shown before the step that takes long."""

from collections.abc import Callable
from typing import Any

import pytest

from rolloutlab import connection
from rolloutlab.api.http.client import HttpClient
from rolloutlab.session import Session
from rolloutlab.training import loop, submission
from rolloutlab.training.form import TrainingForm
from rolloutlab.widgets import progress
from rolloutlab.widgets.progress import Progress


@pytest.fixture
def scored(session: Session) -> Session:
    session.chat("capitals", "Capital of Peru?", n=4, max_tokens=4, seed=1)
    session.reward("capitals", by_place, say=lambda _: None)
    return session


def by_place(trajectory: Any, answer: str, messages: Any, row: Any) -> float:
    return float(trajectory.name[-1])


@pytest.fixture
def order(monkeypatch) -> list[str]:
    """Lines as they are shown, from the first moment on, and the slow steps of `slow`, in their order."""
    seen: list[str] = []
    monkeypatch.setattr(progress, "_DELAY", 0)
    monkeypatch.setattr(Progress, "_show", lambda self, line, *_: seen.append(line))
    return seen


@pytest.fixture
def slow(monkeypatch, order) -> Callable[[Any, str], None]:
    """Record when a function is called."""

    def record(where: Any, name: str) -> None:
        original = getattr(where, name)

        def recorded(*arguments: Any, **options: Any) -> Any:
            order.append(f"({name})")
            return original(*arguments, **options)

        monkeypatch.setattr(where, name, recorded)

    return record


def before(order: list[str], step: str) -> list[str]:
    """What was shown before a step."""
    return [line for line in order[: order.index(f"({step})")] if not line.startswith("(")]


READING = "training lab/practice: reading 4 trajectories"
CHECKING = "training lab/practice: checking what would train"


@pytest.mark.parametrize(
    "cell",
    [
        lambda lab: lab.train("capitals", wait=False, say=lambda _: None),
        lambda lab: lab.check("capitals"),
        lambda lab: lab.train_form("capitals"),
    ],
    ids=["train", "dry run", "form"],
)
def test_what_a_job_would_train_is_read_after_a_line_and_checked_after_another(scored, order, slow, cell):
    slow(submission, "members_of")
    slow(submission, "preflight")
    cell(scored)
    assert before(order, "members_of") == [READING]
    assert before(order, "preflight") == [READING, CHECKING]


def test_a_form_that_was_read_is_not_read_again_when_it_is_shown(scored, order, slow):
    slow(submission, "members_of")
    form: TrainingForm = scored.train_form("capitals")
    order.clear()
    form.state()
    assert order == []


def test_what_a_job_has_sent_is_counted(scored):
    groups = submission.SentGroups(submission.gather([scored.collection("capitals")], {}, "lab/practice").groups)
    counts = [groups.sent for _ in groups]
    assert (counts, groups.sent) == ([0], 4)
    assert [groups.sent for _ in groups] == [0]  # it may be sent a second time


@pytest.fixture
def ticking(monkeypatch) -> None:
    """Every wait for a service ticks once before its answer."""
    run = HttpClient.run

    def at_once(self: HttpClient, work: Any, tick: Any = None, *arguments: Any, **options: Any) -> Any:
        if tick:
            tick()
        return run(self, work, tick, *arguments, **options)

    monkeypatch.setattr(HttpClient, "run", at_once)


def test_a_service_is_asked_below_a_line(session, order, ticking):
    url = session.settings.service.base_url
    session.connect()
    assert order[0] == f"rolloutlab: asking {url} what it serves"
    assert connection._PATIENCE <= 0.3


def test_jobs_are_asked_for_below_a_line(scored, order, ticking):
    job = scored.train("capitals", say=lambda _: None)
    scored.store.jobs.set_status(job.id, "running")  # as far as the lab knows
    order.clear()
    scored.jobs()
    assert order[0] == "jobs: asking the service how they go"


def test_the_rounds_of_a_loop_are_read_below_a_line(scored, order, slow):
    slow(loop, "_read_results")
    scored.loop("capitals", "Capital of Peru?", by_place, jobs=0)
    assert before(order, "_read_results") == ["loop capitals: 0 of 1  rounds read"]


def test_a_search_opens_its_index_below_a_line(scored, order, slow):
    slow(type(scored._search), "search")
    scored.search("Peru")
    assert before(order, "search") == ["search: opening the index"]


def test_the_history_of_rewards_is_read_below_a_line(scored, order):
    scored.collection("capitals").reward_history()
    assert order == ["rewards of capitals: reading every change"]


def test_sides_are_compared_below_a_line(scored, order, slow):
    from rolloutlab.trajectories import comparison

    scored.train("capitals", say=lambda _: None)
    slow(comparison, "compare_sides")
    scored.compare("capitals", by_place)
    assert before(order, "compare_sides")[-1] == "comparing capitals: comparing the rewards of each prompt"
