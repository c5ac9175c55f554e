"""A job outlives an outage of its Tinker server: it waits, says why, and takes no row twice."""

import math
import threading

import pytest

pytest.importorskip("tinker")

from rolloutlab import errors
from rolloutlab.integrations.tinker import client as tinker_client
from rolloutlab.integrations.tinker import trainer as tinker_trainer
from rolloutlab.integrations.tinker.trainer import SavedProgress
from rolloutlab.policy.task import Callbacks
from tests.integrations.tinker.test_tinker import filled, place, task_of, trained
from tests.integrations.tinker.tinker_server import PATIENCE, Server, engine_of, serving


@pytest.fixture
def server(policy, monkeypatch):
    """A server, of which the state is saved after every row, and asked for without a pause."""
    monkeypatch.setattr(SavedProgress, "due", lambda self: True)
    monkeypatch.setattr(tinker_trainer, "_PAUSE", 0.0)
    with serving(Server(policy, "tiny")) as server:
        yield server


@pytest.fixture
def engine(server):
    with engine_of(server) as engine:
        yield engine


@pytest.fixture
def whole(engine, tmp_path):
    """A job without an outage: source, task, place and steps."""
    source, task = filled(tmp_path / "0", engine.create_initial), task_of(3)
    target, steps = trained(engine, source, tmp_path / "whole", task)
    return source, task, place(target), steps


def outlive(engine, server, tmp_path, whole, on_event):
    """Give the job again, with the server started again once it is waited for; the types of events."""
    source, task, expected, steps = whole
    events, target = [], tmp_path / "job"
    target.mkdir()

    def report(kind, data):
        events.append((kind, data))
        if kind == "waiting":
            server.start()
        on_event(kind, len([each for each in events if each[0] == "gradient_step"]))

    engine.train(source, target, task, Callbacks(report))
    assert [data for kind, data in events if kind == "gradient_step"] == steps
    first, second = (server.saved[each["state"]][0] for each in (expected, place(target)))
    assert all(first[name].equal(second[name]) for name in first)
    return events


@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_waits_for_a_server_that_is_away_and_goes_on_from_its_last_saved_state(
    engine, server, tmp_path, whole, restarted
):
    client, taken, models = engine._client, server.calls["optim_step"], len(server.models)

    def on_event(kind, steps):
        if kind == "gradient_step" and steps == 2:
            server.stop()
            client._timeout = 0.2  # the SDK asks for minutes
            if restarted:
                server.lose()
        if kind == "waiting":
            client._timeout = PATIENCE

    events = outlive(engine, server, tmp_path, whole, on_event)
    assert [kind for kind, _ in events] == ["gradient_step"] * 2 + ["waiting", "resumed", "gradient_step"]
    assert f"nothing answers at {server.url}" in events[2][1]["reason"]
    assert server.calls["optim_step"] == taken + 4  # the state after the second step was not saved
    assert len(server.models) <= models + 1


@pytest.mark.parametrize("call", ["logprobs", "step", "save", "finish"])
def test_a_row_whose_answer_an_outage_took_is_not_applied_twice(engine, server, tmp_path, whole, monkeypatch, call):
    original, models, calls = getattr(engine._client, call), len(server.models), []

    def without_answer(*given):
        calls.append(original(*given))
        if len(calls) == (1 if call == "finish" else 2):
            server.stop()
            raise errors.BrokenOffError("the answer was lost")
        return calls[-1]

    monkeypatch.setattr(engine._client, call, without_answer)
    kinds = [kind for kind, _ in outlive(engine, server, tmp_path, whole, lambda kind, steps: None)]
    assert kinds.count("waiting") == kinds.count("resumed") == 1
    assert len(server.models) <= models + 1


def test_a_server_that_answers_but_not_the_job_is_asked_three_times(engine, whole, tmp_path, monkeypatch):
    source, task, *_ = whole
    calls, events = [], []

    def never(*given):
        calls.append(given)
        raise errors.BrokenOffError("has not answered")

    monkeypatch.setattr(engine._client, "step", never)
    (tmp_path / "job").mkdir()
    with pytest.raises(errors.BrokenOffError, match="has not answered"):
        engine.train(
            source, tmp_path / "job", task, Callbacks(lambda kind, data: events.append(kind), progress_seconds=math.inf)
        )
    assert (len(calls), events) == (3, [])


def test_a_job_that_waits_can_be_cancelled(engine, server, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(tinker_client, "_CLOSING_SECONDS", 0.01)
    source, task, *_ = whole
    cancelled = threading.Event()

    def report(kind, data):
        if kind == "gradient_step":
            server.stop()
            engine._client._timeout = 0.2
        if kind == "waiting":
            cancelled.set()

    (tmp_path / "job").mkdir()
    with pytest.raises(errors.Cancelled):
        engine.train(source, tmp_path / "job", task, Callbacks(report, cancelled.is_set))
    assert cancelled.is_set()
    server.start()
