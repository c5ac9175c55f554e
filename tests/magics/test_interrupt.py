"""An interrupted `%%chat` on a slow disk: what it says is what the lab holds, and a resume samples exactly the rest."""

import asyncio
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from typing import Any

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import LabError
from rolloutlab.magics import register
from rolloutlab.sampling.writer import WHAT_IS_STORED, TrajectoryWriter
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings

PATIENCE = 240.0
"""Seconds after which a test that waits for something is a test that fails."""

ROWS, ARRIVED = 8, 6
CHAT = "%%chat c --over rows --model m --concurrency 1\n{{i}}"
RESUME = "%%chat c:1 --resume"


class Lab:
    """A session on a lab whose disk takes its time: the `slow`-th batch of answers is written once `go_on` is set.

    It is interrupted as soon as the seventh prompt is asked, which gets no answer before `well`. One answer is stored
    or under way by then, and five more have arrived. `asked` counts the requests for each prompt.

    at_the_end: it is interrupted once the last prompt has its answer, or with `refused` a refusal, instead, when
    nothing is left to do but to store.
    """

    def __init__(self, home: Any) -> None:
        url = "http://127.0.0.1:9"
        http = HttpClient(httpx.MockTransport(self._answer), backoff=0)
        self.session = Session(Settings(home=home, service=Address(url, url, None)), http=http)
        self.asked: Counter[str] = Counter()
        self.well = self.at_the_end = self.refused = False
        self.slow, self._batches = 1, 0
        self.go_on, self._first = threading.Event(), threading.Event()

    def slowly(self, store: Callable[[], None]) -> None:
        """Store a batch of answers when its time has come."""
        self._batches += 1
        if self._batches == self.slow:
            self._first.set()
            assert self.go_on.wait(PATIENCE)
        store()
        self._first.set()

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        prompt = json.loads(request.content)["messages"][-1]["content"]
        self.asked[prompt] += 1
        if not self.well:
            if prompt == "1":
                await asyncio.to_thread(self._first.wait, PATIENCE)
            if self.at_the_end:
                return self._last(prompt) if prompt == str(ROWS - 1) else _answer_to(prompt)
            if prompt == str(ARRIVED):
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.Event().wait()
        return _answer_to(prompt)

    def _last(self, prompt: str) -> httpx.Response:
        """The answer to the last prompt; the interrupt comes when the one worker ends, as there is nothing to ask."""
        worker = asyncio.current_task()
        assert worker
        worker.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGINT))
        return httpx.Response(400, json={"error": {"message": "no"}}) if self.refused else _answer_to(prompt)

    def stored(self) -> int:
        return self.session.store.collection("c").trajectories

    def all_ended(self) -> None:
        """Wait until nothing goes on in the background."""

        async def others() -> None:
            if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(tasks, timeout=PATIENCE)

        self.session._connector.http.run(others())


def _answer_to(prompt: str) -> httpx.Response:
    message = {"role": "assistant", "content": f"{prompt}!"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    return httpx.Response(200, json=body)


@pytest.fixture
def lab(tmp_path, monkeypatch) -> Iterator[Lab]:
    lab, take = Lab(tmp_path), TrajectoryWriter.take
    monkeypatch.setattr(TrajectoryWriter, "take", lambda *arguments: lab.slowly(lambda: take(*arguments)))
    yield lab
    lab.go_on.set()
    lab.session.close()


@pytest.fixture
def cells(bare, lab):
    """Runs a cell: the lines that it shows instead of a value, or none."""
    register(bare, lab.session)
    bare.user_ns["rows"] = [{"i": str(i)} for i in range(ROWS)]

    def run(cell: str) -> list[str]:
        error = bare.run_cell(cell, store_history=False).error_in_exec
        return error._render_traceback_() if error else []

    return run


@pytest.fixture
def no_end_in_time(monkeypatch) -> Callable[[Callable[[], None]], None]:
    """Has every wait with a limit end without an outcome at once, and calls what is given in one without a limit."""

    def patch(meanwhile: Callable[[], None]) -> None:
        def waited(futures, timeout=None):
            if timeout is not None:
                return wait(futures, 0)
            meanwhile()
            return wait(futures, PATIENCE)

        monkeypatch.setattr("rolloutlab.runtime.wait", waited)

    return patch


def resumes_the_rest(lab: Lab, cells: Callable[[str], list[str]], arrived: int = ARRIVED) -> None:
    lab.well = True
    lab.asked.clear()
    assert cells(RESUME) == []
    assert lab.asked == {str(i): 1 for i in range(arrived, ROWS)}
    assert lab.stored() == ROWS


def test_an_interrupt_counts_what_is_on_disk_once_all_that_arrived_is(lab, cells, no_end_in_time):
    no_end_in_time(lab.go_on.set)
    lines = cells(CHAT)
    lab.go_on.set()
    assert lines == [
        f"KeyboardInterrupt: {ARRIVED} of {ROWS} completions had arrived and are kept",
        f"  -> {RESUME} samples the other {ROWS - ARRIVED}",
    ]
    assert lab.stored() == ARRIVED
    resumes_the_rest(lab, cells)


def test_a_second_interrupt_leaves_at_once_and_the_collection_is_held_until_all_is_stored(lab, cells, no_end_in_time):
    def again() -> None:
        raise KeyboardInterrupt

    no_end_in_time(again)
    lab.slow = 2
    before, hint = cells(CHAT)
    assert before.endswith(f"of {ROWS} completions had arrived and are kept; others are still being stored")
    assert hint == f"  -> {RESUME} samples the rest"
    assert lab.stored() == 1
    [refused, _] = cells(RESUME)
    assert refused == "ConflictError: c is being sampled by another kernel or cell"
    lab.go_on.set()
    lab.all_ended()
    assert lab.stored() == ARRIVED
    resumes_the_rest(lab, cells)


def test_a_second_interrupt_before_anything_is_stored_names_no_cell_that_may_mean_an_older_generation(
    lab, cells, no_end_in_time
):
    def again() -> None:
        raise KeyboardInterrupt

    no_end_in_time(again)
    before, hint = cells(CHAT)
    assert (
        before == f"KeyboardInterrupt: 0 of {ROWS} completions had arrived and are kept; others are still being stored"
    )
    assert hint == f"  -> {WHAT_IS_STORED}"
    lab.go_on.set()
    lab.all_ended()
    resumes_the_rest(lab, cells)


@pytest.mark.parametrize("refused", [False, True])
def test_an_interrupt_after_the_last_answer_waits_until_all_that_arrived_is_stored(
    lab, cells, no_end_in_time, tmp_path, refused
):
    lab.at_the_end, lab.refused = True, refused
    arrived = ROWS - refused
    no_end_in_time(lab.go_on.set)
    assert cells(CHAT) == [
        f"KeyboardInterrupt: {arrived} of {ROWS} completions had arrived and are kept",
        f"  -> {RESUME} samples the other 1" if refused else f"  -> {RESUME} shows them",
    ]
    assert lab.stored() == arrived
    assert [path.name for path in (tmp_path / "sampling").iterdir()] == ["lock"]
    resumes_the_rest(lab, cells, arrived)


def test_a_second_interrupt_after_the_last_answer_leaves_at_once_and_nothing_is_lost(lab, cells, no_end_in_time):
    def again() -> None:
        raise KeyboardInterrupt

    no_end_in_time(again)
    lab.at_the_end, lab.slow = True, 2
    before, hint = cells(CHAT)
    assert before.endswith("others are still being stored")
    assert hint == f"  -> {RESUME} samples the rest"
    [refused, _] = cells(RESUME)
    assert refused == "ConflictError: c is being sampled by another kernel or cell"
    lab.go_on.set()
    lab.all_ended()
    resumes_the_rest(lab, cells, ROWS)


def test_what_another_kernel_stores_after_a_resume_has_counted_is_not_sampled_again(lab, cells, tmp_path, monkeypatch):
    lab.go_on.set()
    cells(CHAT)
    lab.well = True
    other = Session(lab.session.settings, http=HttpClient(httpx.MockTransport(lab._answer), backoff=0))
    lock_for_sampling = lab.session.store.lock_for_sampling

    def late(collection: Any) -> Any:
        other.resume("c:1")
        return lock_for_sampling(collection)

    with monkeypatch.context() as patched:
        patched.setattr(lab.session.store, "lock_for_sampling", late)
        lab.asked.clear()
        [refused, hint] = cells(RESUME)
    other.close()
    assert refused == "ConflictError: another kernel has just stored completions of c:1"
    assert hint == "  -> run the cell again"
    assert lab.asked == {str(i): 1 for i in range(ARRIVED, ROWS)}
    assert [path.name for path in (tmp_path / "sampling").iterdir()] == ["lock"]


@pytest.mark.parametrize("refused", ["add_groups", "put_all"])
def test_a_generation_whose_first_answers_cannot_be_stored_does_not_come_to_be(lab, cells, monkeypatch, refused):
    def refuse(*_: Any) -> None:
        raise LabError("the disk is full")

    lab.go_on.set()
    lab.well = True
    with monkeypatch.context() as patched:
        patched.setattr(lab.session.store, refused, refuse)
        assert cells(CHAT) == ["LabError: the disk is full"]
    assert lab.session.store.collections() == []
    assert cells(CHAT) == []
    assert [each.label for each in lab.session.store.collections()] == ["c"]
