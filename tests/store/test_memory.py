"""Scoring and training read a collection some groups at a time: what is in memory does not grow with the collection."""

import gc
from collections import Counter
from collections.abc import Iterator
from threading import Lock

import pytest

from rolloutlab.api.wire import trajectories as wire
from rolloutlab.api.wire.chat import Choice, UserMessage
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
from rolloutlab.store.models import Arrival, NewGroup, StoredTrajectory
from rolloutlab.training.submission import prepare
from rolloutlab.trajectories.collection import select

AT_ONCE = 300
"""More trajectories than are read at a time, far fewer than there are."""


@pytest.fixture
def session(tmp_path):
    """A notebook of a lab with 400 groups of two."""
    session = Session(Settings(home=tmp_path, service=Address("http://127.0.0.1:9", "http://127.0.0.1:9", None)))
    groups = [NewGroup([UserMessage(role="user", content=f"{i}?")], {}) for i in range(400)]
    tokens = [{"token": "yes", "token_id": 1, "logprob": -0.5, "top_logprobs": []}]
    message = {"role": "assistant", "content": "yes"}
    choice = {"finish_reason": "stop", "index": 0, "message": message, "logprobs": {"content": tokens}}
    answers = [Arrival(i, [Choice.model_validate(choice)]) for i in range(2)]

    def put() -> None:
        for group in session.store.add_groups(session.store.open_collection("many"), groups):
            session.store.put(group, answers, model="m", step=0, sampling={})

    session.store.at_once(put)
    yield session
    session.close()


def alive() -> int:
    gc.collect()
    # in one call, so that no other thread runs while the list holds a tuple that it is still filling
    types = Counter(map(type, gc.get_objects()))
    return types[StoredTrajectory] + types[wire.Trajectory]


class Watch:
    """Counts, every hundred calls, how many trajectories are alive that were not there at first."""

    def __init__(self) -> None:
        self.calls = 0
        self.most = 0
        self._one = Lock()  # slow calls run side by side

    def __call__(self) -> None:
        with self._one:
            self.calls += 1
            if self.calls % 100 == 0:
                self.most = max(self.most, alive())


@pytest.fixture
def watch(session) -> Iterator[Watch]:
    gc.freeze()  # the collector then neither visits nor lists the millions of objects that other tests have made
    yield Watch()
    gc.unfreeze()


def test_a_reward_function_sees_every_trajectory_and_few_are_in_memory(session, watch):
    session.reward("many", lambda trajectory: (watch(), float(trajectory.name.endswith("/0")))[1])
    assert watch.calls == 800
    assert 0 < watch.most <= AT_ONCE
    assert [t.reward for t in session.collection("many/399").trajectories] == [1.0, 0.0]


def test_the_mean_reward_and_the_size_of_a_collection_need_no_conversation(session, monkeypatch):
    session.reward("many", lambda *_: 0.5)
    monkeypatch.setattr(session.store, "_read_page", None)
    many = session.collection("many")
    assert (many.mean_reward, len(many)) == (0.5, 800)


def test_a_job_is_checked_and_sent_with_few_trajectories_in_memory(session, watch, monkeypatch):
    session.reward("many", lambda trajectory, *_: float(trajectory.id % 2))
    to_wire = StoredTrajectory.to_wire
    monkeypatch.setattr(StoredTrajectory, "to_wire", lambda self: (watch(), to_wire(self))[1])
    submission = prepare(select(session.store, "many"), {}, "m")
    assert submission.check.trainable_trajectories == 800
    assert sum(len(group.trajectories) for group in submission.groups) == 800
    assert watch.calls == 1600
    assert 0 < watch.most <= AT_ONCE


@pytest.mark.long
def test_what_is_sent_is_what_was_checked_though_rewards_change_meanwhile(session):
    session.reward("many", lambda trajectory, *_: float(trajectory.id % 2))
    submission = prepare(select(session.store, "many"), {}, "m")
    before = [group.to_json() for group in submission.groups]
    session.reward("many", lambda *_: {"other": 0.25})
    assert [group.to_json() for group in submission.groups] == before
