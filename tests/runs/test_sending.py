"""A loop with `report_to` sends its run after each round, whatever a tracker does."""

import pytest

from rolloutlab.errors import LabError
from rolloutlab.store.models import SubmittedJob
from tests.labs import lab_with


class Kept:
    """A tracker that keeps the newest table of each run, and fails as often as it is told."""

    def __init__(self, failures=0):
        self.tables, self.failures = {}, failures

    def log(self, run):
        if self.failures:
            self.failures -= 1
            raise ValueError("no")
        self.tables[run.name] = dict(zip(run.steps, run.numbers["reward"], strict=True))
        return f"{run.name} is kept"


@pytest.fixture
def service(service):
    """The module's, emptied after each test: these train."""
    yield service
    service.empty()


@pytest.fixture
def loop(session, monkeypatch):
    """Makes a loop of some rounds that reports to a tracker; returns the lines that it said."""

    def run(tracker, reward=lambda answer: float(len(answer)), **options):
        monkeypatch.setattr("rolloutlab.runs.tracker.open_trackers", lambda report_to, home: [tracker])
        lines = []
        given = {"over": [{"i": i} for i in range(2)], "n": 2, "max_tokens": 3, "jobs": 1, "seed": 1} | options
        session.loop("letters", "user: {{i}}", reward, report_to=["kept"], say=lines.append, **given)
        return lines

    return run


def test_every_round_is_sent_and_the_last_line_says_where(loop, session):
    tracker = Kept()
    assert loop(tracker, jobs=2)[-1] == "lab/practice is kept"
    assert tracker.tables == {"lab/practice": session.runs()[0].history["reward"].to_dict()}


def test_a_run_with_another_reward_is_beside_the_earlier_one(loop):
    tracker = Kept()
    loop(tracker)
    first = dict(tracker.tables)
    loop(tracker, lambda answer: 100.0 + len(answer))
    assert tracker.tables["lab/practice"] == first["lab/practice"]
    assert list(tracker.tables["lab/practice:2"]) == [1]


def test_a_run_that_cannot_be_read_ends_no_loop_and_is_said_once(loop, monkeypatch):
    def fail(lab, models):
        raise LabError("lab.db cannot be read")

    monkeypatch.setattr("rolloutlab.runs.sending.load_runs", fail)
    lines = loop(Kept(), jobs=2)
    assert lines.count("no run was sent: LabError: lab.db cannot be read") == 1


def test_a_tracker_that_fails_ends_no_loop_and_gets_the_run_later(loop):
    tracker = Kept(failures=2)
    lines = loop(tracker, jobs=3)
    assert lines.count("lab/practice was not sent: ValueError: no") == 1
    assert list(tracker.tables["lab/practice"]) == [0, 1, 2]


def test_the_runs_of_another_service_are_not_sent(loop, session):
    made = lab_with(session.store, ["a", "b"], name="other", rewards=[7.0, 8.0])
    labels = (f"other:{made.generation}",)
    session.store.jobs.add(SubmittedJob("f" * 8, "https://other.example", "lab/practice", labels, {}, "2099-01-01"))
    session.store.jobs.set_status("f" * 8, "succeeded", 1)
    tracker = Kept()
    loop(tracker)
    assert [max(each.values()) < 7 for each in tracker.tables.values()] == [True]
