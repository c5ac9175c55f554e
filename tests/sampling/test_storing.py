"""Answers are stored in a thread of their own, many at once, and count once they are on disk."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

import pytest

from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.errors import LabError, NotFoundError
from rolloutlab.sampling import rollout
from rolloutlab.sampling.chat_player import PreparedAnswer, make_record
from rolloutlab.sampling.plan import plan_new, plan_resume
from rolloutlab.sampling.rollout import RolloutRunner
from rolloutlab.sampling.run import open_writer
from rolloutlab.sampling.tools import Tools
from rolloutlab.store.lab import Lab

CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Paris"}}
COMPLETION = ChatCompletion.model_validate(
    {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [CHOICE]}
)


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


class Slow:
    """A disk that takes the first answers only once the service was asked so often."""

    def __init__(self, lab: Lab, rows: int, asked: int) -> None:
        self.work = plan_new("capitals", "{{n}}?", [{"n": n} for n in range(rows)], None, {}, {"model": "m"}, Tools(()))
        self.arrivals = open_writer(lab, self.work)
        self.asked = 0
        self.batches: list[int] = []
        self.done: list[int] = []
        self.threads: set[int] = set()
        self._enough, self._wanted = threading.Event(), asked

    async def complete(self, _: ChatRequest) -> ChatCompletion:
        self.asked += 1
        self.done.append(self.arrivals.done)
        if self.asked == self._wanted:
            self._enough.set()
        await asyncio.sleep(0)
        return COMPLETION

    def take(self, answers: Sequence[PreparedAnswer]) -> None:
        assert self._enough.wait(240), "no request was sent while the disk was waited for"
        self.threads.add(threading.get_ident())
        self.batches.append(len(answers))
        self.arrivals.take(answers)

    def play(self, concurrency: int) -> None:
        player = RolloutRunner(
            self.work.plan,
            self.work.groups,
            self.complete,
            self.work.tools,
            partial(make_record, self.work),
            self.take,
            self.arrivals.fail,
        )
        try:
            asyncio.run(player.play(self.work.rollouts, concurrency))
        finally:
            self.arrivals.close()


def test_requests_go_on_while_the_disk_is_waited_for_and_what_came_meanwhile_is_stored_together(lab):
    slow = Slow(lab, rows=40, asked=40)
    slow.play(concurrency=4)
    assert threading.get_ident() not in slow.threads
    assert slow.batches[0] <= 4
    assert len(slow.batches) == 2
    assert lab.collection("capitals").trajectories == 40


def test_a_completion_counts_once_it_is_on_disk(lab):
    slow = Slow(lab, rows=40, asked=40)
    slow.play(concurrency=4)
    assert set(slow.done) == {0}  # none was there before the last was asked for
    assert slow.arrivals.done == 40


def test_no_more_is_asked_for_than_may_wait_for_the_disk(lab, monkeypatch):
    monkeypatch.setattr(rollout, "_MAX_UNSTORED", 4)
    slow = Slow(lab, rows=40, asked=5)
    slow.play(concurrency=1)
    assert max(slow.batches) == 4
    assert lab.collection("capitals").trajectories == 40


def test_a_disk_that_fails_ends_the_sampling_with_its_error(lab):
    slow = Slow(lab, rows=40, asked=1)
    lab._database.path.unlink()
    with pytest.raises(LabError, match="deleted"):
        slow.play(concurrency=4)


def test_a_disk_that_fails_once_loses_nothing_that_had_arrived(lab, monkeypatch):
    put_all, calls = lab.put_all, []

    def fails_once(placed):
        calls.append(len(placed))
        if len(calls) == 2:  # the first has what came before the others
            raise LabError("database is locked")
        put_all(placed)

    monkeypatch.setattr(lab, "put_all", fails_once)
    slow = Slow(lab, rows=40, asked=40)
    with suppress(LabError):  # that it failed is told where it was not the last to be stored
        slow.play(concurrency=4)
    assert len(calls) == 3
    assert lab.collection("capitals").trajectories == slow.arrivals.done == 40


def test_a_collection_that_comes_to_be_after_the_end_of_its_sampling_is_let_go(lab):
    work = plan_new("capitals", "?", None, None, {}, {"model": "m"}, Tools(()))
    arrivals = open_writer(lab, work)
    with arrivals.under_way():
        pass
    [rollout] = work.rollouts
    arrivals.take([make_record(work, [rollout], None)])
    held = lab.lock_for_sampling(lab.collection("capitals"))
    assert held.is_locked
    held.release()


def test_a_collection_that_was_deleted_meanwhile_is_not_kept_locked_by_the_error(lab):
    work = plan_new("capitals", "?", None, None, {}, {"model": "m", "n": 2}, Tools(()))
    with closing(open_writer(lab, work)) as arrivals:
        arrivals.take([make_record(work, [replace(work.rollouts[0], positions=(0,))], None)])
    rest = plan_resume(lab, "capitals", Tools(()))
    lab.lifecycle.delete("capitals")
    with pytest.raises(NotFoundError) as kept:  # as a notebook keeps the last error
        open_writer(lab, rest)
    lab.lifecycle.restore("capitals")
    open_writer(lab, plan_resume(lab, "capitals", Tools(()))).close()
    assert kept.value.message == "there is no collection 'capitals:1'"


def test_many_completions_take_few_statements(lab):
    slow = Slow(lab, rows=60, asked=60)
    said: list[str] = []
    lab._database._connection.set_trace_callback(said.append)
    slow.play(concurrency=60)
    lab._database._connection.set_trace_callback(None)
    assert sum(statement.startswith(("\n    INSERT INTO traj", "\n    INSERT OR REPL")) for statement in said) <= 4
    assert len(lab.outlines.of(lab.find("capitals"))) == 60


def test_a_commit_of_the_lab_is_flushed_to_the_disk(lab):
    assert lab._database.read("PRAGMA synchronous")[0][0] == 2  # FULL: it outlives a loss of power, too
