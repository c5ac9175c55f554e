"""The background gives way: it works while the process has nothing else to do, and stops for whoever is in a hurry."""

import threading
from itertools import count

import pytest

from rolloutlab.search import background
from rolloutlab.search.background import Background

PATIENCE = 240.0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(background, "QUIET", 0.0)
    monkeypatch.setattr(background, "_BREATH", 0.001)


class Neighbour:
    """What other threads do: a processor's time, or nothing; and how often that was looked at."""

    def __init__(self, busy):
        self.busy, self.looks, self._used = busy, threading.Semaphore(0), count()

    def __call__(self):
        self.looks.release()
        return next(self._used) if self.busy else 0.0

    def wait(self, looks):
        for _ in range(looks):
            assert self.looks.acquire(timeout=PATIENCE)


def test_work_waits_until_the_process_has_nothing_else_to_do():
    neighbour, done = Neighbour(busy=True), threading.Event()
    work = Background("work", lambda give_way: done.set(), neighbour)
    work.begin()
    neighbour.wait(looks=5)
    assert not done.is_set()
    neighbour.busy = False
    assert done.wait(PATIENCE)
    work.close()


def test_work_that_was_begun_pauses_when_a_cell_runs():
    neighbour, pieces = Neighbour(busy=False), []

    def pieces_of(give_way):
        for i in range(2):
            pieces.append(i)
            neighbour.busy = not i
            give_way()

    work = Background("work", pieces_of, neighbour)
    work.begin()
    neighbour.wait(looks=8)
    assert pieces == [0]
    neighbour.busy = False
    work.join()
    assert pieces == [0, 1]


def test_work_that_is_asked_for_while_it_is_done_is_done_once_more_after_that():
    begun, held, now, most = threading.Semaphore(0), threading.Event(), [], []

    def work_of(give_way):
        now.append(1)
        most.append(len(now))
        begun.release()
        assert held.wait(PATIENCE)
        now.pop()

    work = Background("work", work_of, lambda: 0.0)
    work.begin()
    assert begun.acquire(timeout=PATIENCE)
    work.begin()
    work.begin()
    held.set()
    work.join()
    assert most == [1, 1]


def test_work_stops_for_somebody_who_does_it_now_and_can_begin_again():
    pieces, reached = [], threading.Event()

    def forever(give_way):
        while True:
            pieces.append(1)
            reached.set()
            give_way()

    work = Background("work", forever, lambda: 0.0)
    for _ in range(2):
        reached.clear()
        work.begin()
        assert reached.wait(PATIENCE)
        with work.stopped():
            work.join()
    assert work.problem is None
    work.close()


def test_what_is_closed_does_not_begin():
    done = []
    work = Background("work", lambda give_way: done.append(1))
    work.close()
    work.begin()
    work.join()
    assert done == []


def test_what_went_wrong_is_told_until_it_goes_well():
    outcomes = iter([True, False])

    def work_of(give_way):
        if next(outcomes):
            raise RuntimeError("the model is not there")

    work = Background("work", work_of, lambda: 0.0)
    work.begin()
    work.join()
    assert work.problem == "RuntimeError: the model is not there"
    work.begin()
    work.join()
    assert work.problem is None


def test_the_processor_time_of_other_threads_is_measured_without_ones_own():
    def own():
        before = background._measure_other_threads()
        sum(range(2_000_000))
        return background._measure_other_threads() - before

    def neighbours():
        before = background._measure_other_threads()
        other = threading.Thread(target=lambda: sum(range(5_000_000)))
        other.start()
        other.join()
        return background._measure_other_threads() - before

    assert own() < neighbours()


def test_work_that_is_asked_for_while_it_stops_is_done():
    rounds, begun, stopping, asked = [], threading.Event(), threading.Event(), threading.Event()

    def work_of(give_way):
        rounds.append(1)
        begun.set()
        try:
            while len(rounds) == 1:
                give_way()
        finally:
            stopping.set()
            assert asked.wait(PATIENCE)

    work = Background("work", work_of, lambda: 0.0)
    work.begin()
    assert begun.wait(PATIENCE)
    with work.stopped():
        assert stopping.wait(PATIENCE)
    work.begin()
    asked.set()
    work.join()
    assert len(rounds) == 2
