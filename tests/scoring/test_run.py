"""Scores are stored as they come: failures, interrupts, resumed and remembered calls, at once and in time."""

import asyncio
import math
import multiprocessing
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from rolloutlab.errors import InputError, RewardError, ServiceError
from rolloutlab.scoring.estimate import MeasuredCalls, time_line
from rolloutlab.store.models import Score

PATIENCE = 30.0
"""Seconds after which a test that waits for something is a test that fails."""


class Called:
    """A reward function of answer, capital and country that counts its calls; `fails` are countries it fails for."""

    def __init__(self, *fails: int, error: type[Exception] = ValueError) -> None:
        self.fails, self.error = set(fails), error
        self.times: Counter[tuple[int, str]] = Counter()

    def __call__(self, answer: str, capital: str, country: int) -> float:
        self.times[country, answer] += 1
        if country in self.fails:
            raise self.error(f"no score for {country}")
        return float(answer == capital)


def say_to(lines):
    return lines.append


def test_a_failure_leaves_its_trajectory_unscored_and_is_counted(lab, collect, rewards):
    collect(5, 4)
    lines: list[str] = []
    assert lab.reward("capitals", Called(1), say=say_to(lines)).mean_reward == 0.5
    assert rewards() == [1, 0, 1, 0, *[None] * 4, *[1, 0] * 6]
    assert lines == ["16 scored, 4 failed: ValueError \N{MULTIPLICATION SIGN}4 -> %%reward capitals --resume"]
    failures = lab.store.scorings.failures(lab.store.find("capitals"))
    assert [f.trajectory.name for f in failures] == [f"capitals/1/{i}" for i in range(4)]
    assert {(f.error, f.message) for f in failures} == {("ValueError", "no score for 1")}
    assert all("raise self.error" in f.line for f in failures)


def test_eight_failing_of_four_hundred_leave_the_others_stored_as_one_change(lab, collect, rewards):
    collect(50, 8)
    lab.reward("capitals", Called(7, error=TimeoutError), say=lambda _: None)
    assert sum(reward is not None for reward in rewards()) == 392
    assert set(lab.collection("capitals").reward_history().index) == {1}
    lab.collection("capitals").undo_rewards(say=lambda _: None)
    assert set(rewards()) == {None}
    assert lab.store.scorings.failures(lab.store.find("capitals")) == []


def test_resume_scores_only_what_failed_with_the_same_function_and_is_undone_alone(lab, collect, rewards):
    collect(5, 4)
    function = Called(1)
    lab.reward("capitals", function, say=lambda _: None)
    function.fails.clear()
    lab.reward("capitals", resume=True, say=lambda _: None)
    assert rewards() == [1, 0] * 10
    assert {country: n for (country, _), n in function.times.items() if country != 1} == dict.fromkeys((0, 2, 3, 4), 2)
    assert function.times[1, "a1"] == 4  # two of its trajectories have this answer, called twice
    lab.collection("capitals").undo_rewards(say=lambda _: None)
    assert rewards() == [1, 0, 1, 0, *[None] * 4, *[1, 0] * 6]
    lab.collection("capitals").undo_rewards(say=lambda _: None)
    assert set(rewards()) == {None}


def test_a_failed_trajectory_loses_the_reward_that_an_earlier_function_gave(lab, collect, rewards):
    collect(5, 4)
    lab.reward("capitals", lambda answer: 7.0)
    lab.reward("capitals", Called(1), say=lambda _: None)
    assert rewards()[4:8] == [None] * 4
    lab.collection("capitals").undo_rewards(say=lambda _: None)
    assert set(rewards()) == {7.0}


def test_a_failure_is_gone_once_its_trajectory_has_a_reward_by_any_source(lab, collect):
    collect(5, 4)
    lab.reward("capitals", Called(1), say=lambda _: None)
    stored = lab.store.find("capitals")
    lab.collection("capitals/1").rank([0, 1, 2, 3])
    assert lab.store.scorings.failures(stored) == []
    lab.collection("capitals").undo_rewards(say=lambda _: None)
    with pytest.raises(RewardError, match="failed on capitals/1/0: ValueError: no score for 1"):
        lab.reward("capitals", resume=True)


def test_where_all_fail_the_error_is_that_of_the_first_and_nothing_is_changed(lab, collect, rewards):
    collect(5, 8)
    lab.reward("capitals", lambda answer: 1.0)
    function = Called(*range(5))
    with pytest.raises(RewardError) as error:
        lab.reward("capitals", function)
    assert error.value.message.startswith(
        "the reward function failed on capitals/0/0: ValueError: no score for 0 (line "
    )
    assert error.value.hint == "%group capitals/0 shows it; no reward was changed"
    assert set(rewards()) == {1.0}
    assert set(lab.collection("capitals").reward_history().index) == {1}
    assert function.times.total() < 5 * 8 + 1


def test_more_than_half_failing_stops_early_and_keeps_what_was_scored(lab, collect, rewards):
    collect(50, 8)
    function = Called(*range(1, 50))
    with pytest.raises(RewardError) as error:
        lab.reward("capitals", function, concurrency=4)
    assert error.value.message.startswith("8 scored, ")
    assert "not tried; the first: the reward function failed on capitals/1/0: ValueError" in error.value.message
    assert error.value.hint == "%%reward capitals --resume, once the function is corrected"
    assert rewards()[:8] == [1, 0] * 4
    assert function.times.total() < 40
    function.fails.clear()
    lab.reward("capitals", resume=True, say=lambda _: None)
    assert rewards() == [1, 0] * 200
    assert function.times[0, "a0"] == 4


class Slow(NamedTuple):
    """failed: released by each failure. enough: set after some of them."""

    failed: threading.Semaphore
    enough: threading.Event


def slow_after(failures: int) -> Slow:
    made = Slow(threading.Semaphore(0), threading.Event())

    def watch() -> None:
        if all(made.failed.acquire(timeout=PATIENCE) for _ in range(failures)):
            made.enough.set()

    threading.Thread(target=watch, daemon=True).start()
    return made


def test_failures_that_return_first_do_not_outweigh_calls_that_take_longer(lab, collect, rewards):
    collect(8, 8)
    slow = slow_after(31)  # then 32 that take longer are under way

    def half(answer):
        if answer == "wrong":
            slow.failed.release()
            raise ValueError("wrong")
        slow.enough.wait(PATIENCE)
        return 1.0

    lines: list[str] = []
    lab.reward("capitals", half, concurrency=32, say=say_to(lines))
    assert lines[0].startswith("32 scored, 32 failed: ValueError")
    assert rewards() == [1.0, None] * 32


def test_calls_under_way_are_waited_for_when_too_many_have_failed(lab, collect, rewards):
    collect(4, 8)
    slow = slow_after(24)

    def mostly(country):
        if country:
            slow.failed.release()
            raise ValueError("no")
        slow.enough.wait(PATIENCE)
        return 1.0

    with pytest.raises(RewardError, match="8 scored, 24 failed"):
        lab.reward("capitals", mostly, concurrency=32)
    assert rewards() == [1.0] * 8 + [None] * 24


def test_an_error_of_the_lab_in_a_function_is_raised_as_it_is(lab, collect):
    collect(2, 2)

    def asks(answer):
        raise ServiceError("the grader is away", hint="start it")

    with pytest.raises(ServiceError, match="the grader is away"):
        lab.reward("capitals", asks)


def test_calls_are_made_at_the_same_time(lab, collect):
    collect(4, 8)
    together = threading.Barrier(32)

    def waits(answer):
        together.wait(PATIENCE)
        return 1.0

    assert lab.reward("capitals", waits).mean_reward == 1.0


def test_coroutines_run_at_the_same_time_on_one_loop(lab, collect):
    collect(4, 8)
    loops: Counter[int] = Counter()
    state: dict[str, asyncio.Event] = {}

    async def waits(answer):
        loops[id(asyncio.get_running_loop())] += 1
        event = state.setdefault("all", asyncio.Event())
        if loops.total() == 32:
            event.set()
        await asyncio.wait_for(event.wait(), PATIENCE)
        return 1.0

    assert lab.reward("capitals", waits).mean_reward == 1.0
    assert len(loops) == 1


@pytest.fixture
def grader_url() -> Iterator[str]:
    """A service that keeps connections open and grades everything with 1."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1")
            self.end_headers()
            self.wfile.write(b"1")

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_client_of_the_notebook_works_in_every_run_and_dry_run(lab, collect, rewards, grader_url):
    collect(1, 4)
    client = httpx.AsyncClient(trust_env=False)

    async def graded(answer):
        return float((await client.get(grader_url, timeout=PATIENCE)).text)

    async def closes(answer):
        await client.aclose()
        return 1.0

    for _ in range(3):
        assert lab.reward("capitals", graded, dry_run=True, say=lambda _: None)["error"].tolist() == [""] * 3
        lab.reward("capitals", graded, concurrency=1, say=pytest.fail)
        lab.reward("capitals", lambda answer: graded(answer), say=pytest.fail)
    lab.reward("capitals", closes)
    assert rewards() == [1.0] * 4


def test_a_coroutine_that_blocks_the_loop_ends_the_run_by_its_name(lab, collect, rewards):
    collect(1, 4)
    done = threading.Event()

    async def helper(answer):
        if answer == "wrong":
            done.wait(PATIENCE)
        return 1.0

    async def blocks(answer):
        return await helper(answer)

    async def other(answer):
        await asyncio.sleep(0)
        return 1.0

    try:
        with pytest.raises(RewardError, match=r"the reward function blocks blocks the event loop.* \(line ") as error:
            lab.reward("capitals", [blocks, other], timeout=0.2)
        assert error.value.hint.startswith("def instead of async def")
        assert not done.is_set()
        assert lab.reward("capitals", other).mean_reward == 1.0
    finally:
        done.set()


def test_what_a_coroutine_was_scored_with_before_it_blocks_is_kept(lab, collect, rewards):
    collect(1, 4)
    done = threading.Event()

    async def blocks(answer):
        if answer == "wrong":
            done.wait(PATIENCE)
        return 1.0

    try:
        with pytest.raises(RewardError, match="blocks the event loop"):
            lab.reward("capitals", blocks, timeout=0.2)
    finally:
        done.set()
    assert rewards() == [1.0, None, None, None]
    assert lab.reward("capitals", resume=True, say=pytest.fail).mean_reward == 1.0


def test_after_an_interrupt_of_a_blocked_loop_the_next_run_has_a_new_one(lab, collect, rewards):
    collect(1, 4)
    done = threading.Event()

    calls: list[str] = []

    async def blocks(answer):
        calls.append(answer)
        interrupt()
        done.wait(PATIENCE)
        return 1.0

    async def other(answer):
        return 2.0

    try:
        with pytest.raises(KeyboardInterrupt):
            lab.reward("capitals", blocks)
        lab.reward("capitals", other)
        assert not done.is_set()
    finally:
        done.set()
    assert rewards() == [2.0] * 4
    assert calls == ["a0"]


def test_an_interrupt_while_the_thread_of_the_run_starts_ends_the_run(lab, collect, rewards, monkeypatch):
    collect(5, 8)
    calls: list[str] = []
    runs: list[threading.Thread] = []
    start = threading.Thread.start

    def start_slowly(thread: threading.Thread) -> None:
        if thread.name == "rolloutlab-scoring":
            runs.append(thread)  # before it runs: it may interrupt at once
        start(thread)
        if thread in runs:
            threading.Event().wait(PATIENCE)

    async def interrupts(trajectory):
        calls.append(trajectory.name)
        if len(calls) > 1:
            await asyncio.Event().wait()  # until it is cancelled
        interrupt()
        return 1.0

    monkeypatch.setattr(threading.Thread, "start", start_slowly)
    with pytest.raises(KeyboardInterrupt):
        lab.reward("capitals", interrupts, concurrency=1)
    runs[0].join(PATIENCE)
    assert not runs[0].is_alive()
    assert rewards() == [1.0] + [None] * 39


def stop() -> None:
    asyncio.get_running_loop().stop()


def leave() -> None:
    raise SystemExit


@pytest.mark.parametrize("ends", [stop, leave])
@pytest.mark.parametrize("concurrency", [1, 32])
def test_a_coroutine_that_stops_the_event_loop_stops_no_other_and_no_later_run(
    lab, collect, rewards, ends, concurrency
):
    collect(2, 4)

    async def stops(answer):
        asyncio.get_running_loop().call_soon(ends)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return 1.0

    async def other(answer):
        return 2.0

    lab.reward("capitals", stops, concurrency=concurrency, timeout=PATIENCE, say=pytest.fail)
    assert rewards() == [1.0] * 8
    lab.reward("capitals", other, timeout=PATIENCE, say=pytest.fail)
    lab.reward("capitals", lambda answer: 3.0, say=pytest.fail)
    assert rewards() == [3.0] * 8


def test_a_session_that_is_closed_cancels_its_coroutines_and_works_again(lab, collect, rewards):
    collect(1, 2)
    cancelled = threading.Event()
    tasks = set()

    async def goes_on():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def leaves_a_task(answer):
        tasks.add(asyncio.create_task(goes_on()))
        await asyncio.sleep(0)
        return 1.0

    for _ in range(2):
        lab.reward("capitals", leaves_a_task)
        assert not cancelled.is_set()
        lab.close()
        assert cancelled.wait(PATIENCE)
        cancelled.clear()
    assert rewards() == [1.0] * 2


def test_a_plain_function_may_return_an_awaitable(lab, collect, rewards):
    collect(1, 2)

    async def graded(answer):
        return float(len(answer))

    lab.reward("capitals", lambda answer: graded(answer))
    assert rewards() == [2.0, 5.0]


def test_one_at_a_time_runs_in_the_main_thread(lab, collect):
    collect(1, 4)
    threads = set()
    lab.reward("capitals", lambda answer: threads.add(threading.current_thread()) or 1.0, concurrency=1)
    assert threads == {threading.main_thread()}


def test_a_call_that_hangs_times_out_and_the_others_go_on(lab, collect, rewards):
    collect(2, 8)
    done = threading.Event()

    def hangs(answer, country):
        if country == 1 and answer == "a1":
            done.wait(PATIENCE)
        return 1.0

    lines: list[str] = []
    lab.reward("capitals", hangs, timeout=0.2, concurrency=2, say=say_to(lines))
    done.set()
    assert rewards() == [1.0] * 8 + [None, 1.0] * 4
    assert lines[0].startswith("12 scored, 4 failed: TimeoutError")


def test_a_coroutine_that_hangs_is_cancelled(lab, collect, rewards):
    collect(1, 4)
    cancelled = threading.Semaphore(0)

    async def hangs(answer):
        if answer == "a0":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.release()
                raise
        return 1.0

    lab.reward("capitals", hangs, timeout=0.2, say=lambda _: None)
    assert rewards() == [None, 1.0, None, 1.0]
    assert cancelled.acquire(timeout=PATIENCE)
    assert cancelled.acquire(timeout=PATIENCE)


def test_a_call_that_failed_is_made_again(lab, collect, rewards):
    collect(1, 4)
    calls: Counter[str] = Counter()

    def flaky(trajectory):
        calls[trajectory.name] += 1
        if calls[trajectory.name] < 3:
            raise ConnectionError("busy")
        return 1.0

    lab.reward("capitals", flaky, retries=2)
    assert rewards() == [1.0] * 4
    assert set(calls.values()) == {3}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_a_function_changes_in_its_row_no_other_call_and_no_retry_sees(lab, collect, rewards, asynchronous):
    collect(1, 2, tests=[1, 2, 3])
    calls: Counter[str] = Counter()

    def take(trajectory, tests):
        left = float(len(tests) + len(trajectory.row["tests"]))
        tests.clear()
        trajectory.row["tests"].clear()
        calls[trajectory.name] += 1
        if calls[trajectory.name] == 1:
            raise ConnectionError("busy")
        return left

    async def take_later(trajectory, tests):
        return take(trajectory, tests)

    def left_of_all(group):
        return [float(len(t.row["tests"])) for t in group]

    functions = {"take": take_later if asynchronous else take, "left": lambda tests: len(tests), "all": left_of_all}
    lab.reward("capitals", functions, retries=1)
    assert [dict(t.components) for t in lab.collection("capitals").trajectories] == [
        {"take": 6, "left": 3, "all": 3}
    ] * 2
    assert set(calls.values()) == {2}


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_keeps_what_is_scored_and_a_resume_calls_nothing_twice(lab, collect, rewards):
    collect(50, 8)
    calls: Counter[str] = Counter()
    lock = threading.Lock()

    def counted(trajectory, answer, capital):
        with lock:
            calls[trajectory.name] += 1
            if calls.total() == 200:
                interrupt()
        return float(answer == capital)

    with pytest.raises(KeyboardInterrupt) as stopped:
        lab.reward("capitals", counted, concurrency=1)
    scored = sum(reward is not None for reward in rewards())
    assert 199 <= scored <= 201
    assert stopped.value.__notes__ == [
        f"{scored} of 400 trajectories are done and stored",
        "  -> %%reward capitals --resume",
    ]
    lab.reward("capitals", resume=True, say=lambda _: None)
    assert rewards() == [1, 0] * 200
    assert len(calls) == 400
    assert calls.total() <= 401  # the call that was under way may not have ended


def test_an_interrupt_waits_for_no_call_that_hangs(lab, collect, rewards):
    collect(5, 8)
    done = threading.Event()
    begun = threading.Semaphore(0)

    def hangs(answer, country):
        if country == 4:
            begun.release()
            done.wait(PATIENCE)
        return 1.0

    def later() -> None:
        for _ in range(8):
            begun.acquire()
        interrupt()

    threading.Thread(target=later, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        lab.reward("capitals", hangs, concurrency=8)
    assert not done.is_set()
    assert rewards() == [1.0] * 32 + [None] * 8
    done.set()


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_interrupt_waits_for_no_retry_and_makes_none(lab, collect, rewards, concurrency):
    collect(1, 4)
    failed = threading.Semaphore(0)

    def fails(trajectory):
        failed.release()
        raise ConnectionError("busy")

    async def fails_later(trajectory):
        fails(trajectory)

    def later() -> None:
        for _ in range(concurrency):
            failed.acquire(timeout=PATIENCE)
        interrupt()

    for function in (fails, fails_later):
        threading.Thread(target=later, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            lab.reward("capitals", function, concurrency=concurrency, retries=1, backoff=1000.0)
        assert not failed.acquire(blocking=False)
    assert rewards() == [None] * 4


def test_rewards_given_by_hand_while_a_function_runs_are_kept(lab, collect, rewards):
    collect(1, 4)
    (group,) = lab.collection("capitals").groups

    def function(trajectory):
        if trajectory.name.endswith("/0"):
            lab.store.rewards.give([Score(group.trajectories[3], 9.0)], "hand")
        return 1.0

    lab.reward("capitals", function, overwrite=True)
    assert rewards()[:3] == [1.0] * 3


def test_an_undo_while_a_function_runs_stops_it(lab, collect, rewards):
    collect(100, 8)
    undone = threading.Event()

    def function(country):
        if country == 99 and not undone.is_set():
            lab.collection("capitals").undo_rewards(say=lambda _: None)
            undone.set()
        return 1.0

    with pytest.raises(Exception, match="was undone while it was made"):
        lab.reward("capitals", function, concurrency=1)
    assert set(rewards()) == {None}


def test_every_call_is_made_unless_a_user_says_that_results_may_be_kept(lab, collect, rewards):
    collect(5, 4)
    function = Called()
    for times in (1, 2):
        lab.reward("capitals", function, say=pytest.fail)
        assert function.times.total() == times * 20
    lab.reward("capitals", function, cache=True, say=pytest.fail)
    lines: list[str] = []
    lab.reward("capitals", function, cache=True, say=say_to(lines))
    assert lines == ["20 results of the same function remembered -> --no-cache calls it again"]
    assert function.times.total() == 60
    for again in ({}, {"cache": False}, {"cache": True, "overwrite": True}):
        lab.reward("capitals", function, say=pytest.fail, **again)
    assert function.times.total() == 120
    assert rewards() == [1, 0] * 10


def test_what_is_kept_is_of_a_name_and_a_source_text(lab, collect, rewards):
    collect(1, 2)
    by = 1.0

    def scaled(answer, capital):
        return by * float(answer == capital)

    def other(answer, capital):
        return 5.0

    lab.reward("capitals", {"a": scaled}, cache=True, say=pytest.fail)
    by = 2.0  # what it reads besides is not compared: that it stays the same is the user's word
    lab.reward("capitals", {"a": scaled}, cache=True, say=(lines := []).append)
    assert rewards() == [1, 0]
    assert len(lines) == 1
    lab.reward("capitals", {"b": scaled}, cache=True, say=pytest.fail)
    assert rewards() == [2, 0]
    lab.reward("capitals", {"a": other}, cache=True, say=pytest.fail)
    assert rewards() == [5, 5]


def test_a_function_that_cannot_be_told_by_its_source_text_is_named_and_called_each_time(lab, collect):
    collect(1, 2)
    calls: list[object] = []

    def of_group(answers):
        calls.append(answers)
        return [1.0 for _ in answers]

    without_source = eval("lambda answer: float(len(answer))")
    for _ in range(2):
        lines: list[str] = []
        functions = {"most": of_group, "here": without_source, "long": by_length}
        lab.reward("capitals", functions, cache=True, say=say_to(lines))
        assert any(line.startswith("results of most, here, long are not kept: functions of a group") for line in lines)
    assert len(calls) == 2


def test_an_unfinished_function_of_several_is_called_again_alone_where_results_are_kept(lab, collect):
    collect(5, 4)
    calls: Counter[str] = Counter()

    def right(answer, capital):
        return float(answer == capital)

    def flaky(answer, country):
        calls["flaky"] += 1
        if country == 1 and calls["flaky"] <= 20:
            raise ValueError
        return 1.0

    lab.reward("capitals", [right, flaky], cache=True, say=lambda _: None)
    lines: list[str] = []
    lab.reward("capitals", resume=True, say=say_to(lines))
    assert "4 results of the same function remembered -> --no-cache calls it again" in lines
    assert calls["flaky"] == 24


def test_a_function_of_answers_gives_a_value_for_each_member(lab, collect, rewards):
    collect(2, 4)

    def majority(answers):
        common, _ = Counter(answers).most_common(1)[0]
        return [float(answer == common) for answer in answers]

    async def longest(group):
        return [{"length": float(len(t.answer))} for t in group]

    lab.reward("capitals", {"most": majority, "long": longest})
    assert rewards() == [3, 5] * 4


@pytest.mark.parametrize(
    ("value", "got"),
    [(1.0, "one value"), ([1.0], "1 value"), ("abcd", "one value"), ({"a": 1}, "one value"), ({1, 2, 3, 4}, "a set")],
)
def test_a_function_of_a_group_must_return_a_value_for_each(lab, collect, value, got):
    collect(1, 4)
    with pytest.raises(RewardError) as error:
        lab.reward("capitals", lambda answers: value)
    assert error.value.message == (
        f"a reward function of a group must return a list of 4 values, not {got}, for capitals/0"
    )


def test_one_member_without_a_number_fails_alone(lab, collect, rewards):
    collect(1, 4)
    lab.reward("capitals", lambda answers: [1.0, math.nan, 2.0, None], say=lambda _: None)
    assert rewards() == [1.0, None, 2.0, None]


def process_of(answer: str) -> dict[str, float]:
    return {"process": float(os.getpid()), "length": float(len(answer))}


def test_functions_of_a_module_run_in_processes(lab, collect):
    collect(2, 4)
    frame = lab.reward("capitals", process_of, processes=2).to_frame()
    assert frame["length"].tolist() == [2, 5] * 4
    assert os.getpid() not in set(frame["process"])


def test_a_decimal_is_a_number_and_one_that_is_not_finite_is_a_failure(lab, collect, rewards):
    collect(6, 2)
    values = {1: "NaN", 2: "-Infinity", 3: "sNaN"}
    lines: list[str] = []
    lab.reward("capitals", lambda country: Decimal(values.get(country, "0.25")), say=say_to(lines), concurrency=1)
    assert rewards() == [0.25, 0.25, *[None] * 6, *[0.25] * 4]
    assert lines[0].startswith("6 scored, 6 failed: RewardError")


LOOPS: list[object] = []


async def loops_so_far(answer: str) -> float:
    LOOPS.append(asyncio.get_running_loop())
    return float(len(set(LOOPS)))


def test_coroutines_of_a_process_share_a_loop(lab, collect, rewards):
    collect(1, 4)
    lab.reward("capitals", loops_so_far, processes=1)
    assert rewards() == [1.0] * 4


def hangs_in_process(folder: str) -> float:
    Path(folder, str(os.getpid())).touch()
    threading.Event().wait(100 * PATIENCE)
    return 1.0


def test_an_interrupt_ends_the_processes(lab, collect, tmp_path):
    begun = tmp_path / "begun"
    begun.mkdir()
    collect(1, 4, folder=str(begun))

    def watch() -> None:
        for _ in range(int(PATIENCE / 0.01)):
            if len(list(begun.iterdir())) == 2:
                break
            threading.Event().wait(0.01)
        interrupt()

    threading.Thread(target=watch, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        lab.reward("capitals", hangs_in_process, processes=2)
    pids = {int(path.name) for path in begun.iterdir()}
    assert len(pids) == 2
    for child in multiprocessing.active_children():
        if child.pid in pids:
            child.join(PATIENCE)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_process_that_cannot_be_started_fails_its_calls_and_the_run_ends(lab, collect, monkeypatch):
    def refuse(process):
        raise OSError("no process can be started")

    collect(1, 2)
    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", refuse)
    with pytest.raises(RewardError, match="OSError: no process can be started"):
        lab.reward("capitals", loops_so_far, processes=1)


def is_interrupted(answer: str) -> float:
    raise KeyboardInterrupt


def test_an_interrupt_that_a_function_raises_in_a_process_ends_the_cell(lab, collect):
    collect(1, 2)
    with pytest.raises(KeyboardInterrupt):
        lab.reward("capitals", is_interrupted, processes=1)


def by_length(completions: list[str]) -> list[float]:
    return [float(len(text)) for text in completions]


def test_a_function_of_another_library_is_not_sent_to_a_process_and_the_hint_says_so(lab, collect):
    collect(1, 2)
    with pytest.raises(InputError, match="by_length cannot be sent to another process") as error:
        lab.reward("capitals", {"by_length": by_length}, processes=1)
    assert error.value.hint == "without --processes, as functions of TRL are called through an adapter"


def test_a_function_that_cannot_be_sent_to_a_process_is_named(lab, collect):
    collect(1, 2)
    with pytest.raises(InputError, match="the reward function here cannot be sent to another process"):
        lab.reward("capitals", {"here": lambda answer: 1.0}, processes=2)


def test_a_dry_run_tries_three_and_stores_nothing(lab, collect, rewards):
    collect(5, 4)
    lines: list[str] = []
    function = Called()
    frame = lab.reward("capitals", {"right": function}, dry_run=True, say=say_to(lines))
    assert frame["right"].tolist() == [1, 0, 1]
    assert list(frame.columns) == ["reward", "right", "seconds", "error"]
    assert function.times.total() == 3
    assert set(rewards()) == {None}
    assert lab.store.scorings.history(lab.store.find("capitals")) == []
    assert lines[0].startswith("3 calls took ")
    assert "; scoring takes 20 calls \N{MULTIPLICATION SIGN} " in lines[0]
    assert " with 32 at a time where they wait, " in lines[0]  # functions that compute take turns in threads
    assert lines[0].endswith(" where they compute (--processes); nothing was stored")


def test_a_dry_run_of_coroutines_estimates_calls_at_a_time(lab, collect):
    collect(5, 4)
    lines: list[str] = []

    async def right(answer):
        return 1.0

    lab.reward("capitals", right, dry_run=True, say=say_to(lines))
    assert lines[0].endswith(" with 32 at a time; nothing was stored")


def test_a_dry_run_says_that_results_are_remembered(lab, collect):
    collect(2, 2)
    lines: list[str] = []
    function = lambda answer: float(len(answer))  # noqa: E731
    lab.reward("capitals", function, cache=True, say=pytest.fail)
    lab.reward("capitals", function, cache=True, dry_run=True, say=say_to(lines))
    assert "some results are remembered, so a run makes fewer calls than that; --overwrite makes all" in lines
    for others in ({"cache": True, "overwrite": True}, {}):
        lab.reward("capitals", function, dry_run=True, say=say_to(again := []), **others)
        assert not any("remembered" in line for line in again)


def test_names_that_are_columns_too_are_reported(lab, collect):
    collect(1, 2)
    lines: list[str] = []
    lab.reward("capitals", lambda t, country, m, r: 1.0, say=say_to(lines))
    assert lines[0] == (
        "country gets the answer, not the column: four parameters with names of their own get"
        " trajectory, answer, messages, row in this order"
    )


def test_a_dry_run_calls_a_function_of_a_group_once_and_estimates_one_call_for_each_group(lab, collect):
    collect(5, 4)
    called: list[int] = []

    def lengths(answers):
        called.append(len(answers))
        return [float(len(each)) for each in answers]

    lines: list[str] = []
    frame = lab.reward("capitals", [lengths, even], dry_run=True, say=say_to(lines))
    assert called == [4]
    assert frame["lengths"].tolist() == [2, 5, 2]
    assert frame["seconds"].nunique() == 1
    assert lines[0].startswith("4 calls took ")
    assert re.search(r"scoring takes 5 calls \S+ \S+ s \+ 20 calls \S+ \S+ s, or \S+ s with 32 at a time", lines[0])


def even(answer):
    return float(len(answer) % 2 == 0)


def test_a_dry_run_shows_which_member_of_a_group_fails_and_counts_what_is_left(lab, collect):
    collect(2, 4)
    lab.store.rewards.give([Score(lab.collection("capitals").trajectories[0], 1.0)], "hand")
    lines: list[str] = []
    frame = lab.reward("capitals", {"f": lambda answers: [1.0, 1.0, None, 1.0]}, dry_run=True, say=say_to(lines))
    assert frame.index.tolist() == ["capitals/0/1", "capitals/0/2", "capitals/0/3"]
    assert frame["f"].isna().tolist() == [False, True, False]
    assert frame["error"].str.contains("no finite number").tolist() == [False, True, False]
    lab.reward("capitals", {"f": lambda answer: 1.0}, dry_run=True, say=say_to(lines))
    assert "scoring takes 7 calls" in lines[1]


def test_a_dry_run_of_one_group_counts_the_trajectories_of_this_group_alone(lab, collect):
    collect(5, 4)
    lines: list[str] = []
    lab.reward("capitals/1", {"f": lambda answers: [1.0] * 4, "g": even}, dry_run=True, say=say_to(lines))
    assert re.search(r"scoring takes 1 call \S+ \S+ s \+ 4 calls ", lines[0])


def test_one_group_is_resumed_and_what_is_left_of_it_is_counted(lab, collect):
    collect(5, 4)
    lab.collection("capitals/0").rank([0, 1, 2, 3])
    lab.reward("capitals", Called(1), say=lambda _: None)
    lines: list[str] = []
    lab.reward("capitals/1", even, resume=True, dry_run=True, say=say_to(lines))
    assert "scoring takes 4 calls" in lines[0]


def test_a_dry_run_shows_the_error_of_each_trajectory_where_all_of_a_group_fail(lab, collect):
    collect(1, 3)

    def fails(trajectory):
        raise ValueError(trajectory.name)

    functions = {"together": lambda answers: [1.0] * 3, "fails": fails}
    frame = lab.reward("capitals", functions, dry_run=True, say=lambda _: None)
    assert frame["error"].tolist() == ["capitals/0/0", "capitals/0/1", "capitals/0/2"]


def test_a_dry_run_of_rewards_that_are_all_by_hand_estimates_nothing(lab, collect):
    collect(1, 1)
    lab.store.rewards.give([Score(lab.collection("capitals").trajectories[0], 1.0)], "hand")
    lines: list[str] = []
    assert lab.reward("capitals", lambda answer: 1.0, dry_run=True, say=say_to(lines)).empty
    assert lines == []


@pytest.mark.parametrize(
    ("functions", "at_once", "line"),
    [
        ([(3, 1.5, 400)], 32, "3 calls took 1.5 s; scoring takes 400 calls x 0.5 s, or 6.5 s with 32 at a time"),
        ([(1, 10.0, 5)], 32, "1 call took 10 s; scoring takes 5 calls x 10 s, or 10 s with 32 at a time"),
        (
            [(1, 4.0, 9), (3, 0.003, 72)],
            8,
            "4 calls took 4 s; scoring takes 9 calls x 4 s + 72 calls x 0.001 s, or 8 s",
        ),
        ([(3, 3e-5, 20)], 1, "3 calls took 3e-05 s; scoring takes 20 calls x 1e-05 s, or 0.0002 s with 1 at a time"),
        ([(3, 600.0, 9000)], 32, "3 calls took 10 min; scoring takes 9,000 calls x 3 min, or 15.7 h with 32"),
        ([(3, 3.0, 8), (0, 0.0, 8)], 4, "3 calls took 3 s; scoring takes 8 calls x 1 s, or 2 s with 4 at a time"),
    ],
)
def test_the_estimate_is_calls_times_their_mean_over_those_at_a_time_and_at_least_the_slowest(functions, at_once, line):
    made = time_line([MeasuredCalls(*each) for each in functions], at_once)
    assert made.replace("\N{MULTIPLICATION SIGN}", "x").startswith(line)


def test_a_dry_run_shows_what_fails(lab, collect):
    collect(5, 4)
    frame = lab.reward("capitals", Called(0), dry_run=True, say=lambda _: None)
    assert frame["reward"].isna().all()
    assert frame["error"].str.contains("no score for 0").all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency must be an integer ≥ 1, not 0"),
        ({"retries": -1}, "retries must be an integer ≥ 0, not -1"),
        ({"timeout": 0}, "timeout must be a number of seconds > 0, not 0"),
        ({"timeout": True}, "timeout must be a number of seconds > 0, not True"),
        ({"timeout": math.nan}, "timeout must be a number of seconds > 0, not nan"),
        ({"backoff": -1}, "backoff must be a number of seconds ≥ 0, not -1"),
        ({"backoff": math.inf}, "backoff must be a number of seconds ≥ 0, not inf"),
        ({"backoff": "1"}, "backoff must be a number of seconds ≥ 0, not '1'"),
        ({"resume": True}, "no function scored capitals: there is nothing to resume"),
    ],
)
def test_wrong_options_are_named(lab, collect, options, message):
    collect(1, 2)
    function = None if "resume" in options else Called()
    with pytest.raises(InputError) as error:
        lab.reward("capitals", function, **options)
    assert error.value.message == message


def test_an_unknown_option_is_named(lab, collect):
    collect(1, 2)
    with pytest.raises(InputError, match="there is no setting 'timeuot'") as caught:
        lab.reward("capitals", Called(), timeuot=3)
    assert caught.value.hint == "timeout=..."


def test_nothing_to_resume_is_an_error(lab, collect):
    collect(1, 2)
    for function in (Called(), None):
        with pytest.raises(InputError, match="no function scored capitals: there is nothing to resume"):
            lab.reward("capitals", function, resume=True)


def test_a_weight_for_a_component_that_only_late_trajectories_have_is_valid(lab, collect, rewards):
    collect(200, 8)

    def late(country):
        return {"right": 1.0} if country < 199 else {"special": 1.0}

    lab.reward("capitals", late, {"special": 3.0}, say=pytest.fail)
    assert rewards()[-1] == 3.0


def test_every_scoring_is_recorded_with_its_source(lab, collect):
    collect(2, 2)
    lab.reward("capitals", process_of, retries=1)
    (scoring,) = lab.store.scorings.history(lab.store.find("capitals"))
    assert scoring.names == ["process_of"]
    assert scoring.code.startswith("def process_of(answer: str)")
    assert (scoring.source, scoring.options["retries"], scoring.undone) == ("function", 1, False)
    lab.collection("capitals").undo_rewards(say=lambda _: None)
    assert lab.store.scorings.history(lab.store.find("capitals"))[0].undone


def test_what_failed_is_seen_in_the_collection_the_table_and_the_search(lab, collect):
    collect(5, 4)
    collection = lab.reward("capitals", Called(1), say=lambda _: None)
    failed = "A reward function failed on 4 answers:"
    assert f"{failed} ValueError \N{MULTIPLICATION SIGN}4. -> %%reward capitals --resume" in repr(collection)
    assert f"<b>{failed}</b> ValueError \N{MULTIPLICATION SIGN}4.</span>" in collection._repr_html_()
    assert failed.lower().removesuffix(" answers:") in repr(lab.collection("capitals/1"))
    view = lab.rewards("capitals")
    assert "failed: ValueError" in repr(view)
    assert '<span title="ValueError: no score for 1\n' in view._repr_html_()
    assert ">failed: ValueError: no score for 1</span>" in view._repr_html_()
    assert view.to_frame()["reward_error"].tolist()[4:8] == ["ValueError: no score for 1"] * 4
    assert view.page()["rows"][4]["why"] == "ValueError: no score for 1"
    hits = lab.search(where="reward_error == 'ValueError: no score for 1'", k=0).hits
    assert sorted(hit.id for hit in hits) == [f"capitals:1/1/{i}" for i in range(4)]
    lab.collection("capitals/1").rank([0, 1, 2, 3])
    assert lab.search(where="reward_error == 'ValueError: no score for 1'", k=0).hits == ()
    assert failed not in repr(lab.collection("capitals"))


def test_a_job_says_what_failed_and_whose_rewards_are_older(lab, collect):
    collect(5, 8)
    lab.reward("capitals", lambda answer: 1.0)

    def later(answer, country):
        if country == 3:
            interrupt()
            raise ValueError("no")
        return 0.5

    with pytest.raises(KeyboardInterrupt):
        lab.reward("capitals", later, concurrency=1)
    notes = lab.collection("capitals").scoring_notes()
    assert notes[-1].endswith(
        "of capitals are older than its last scoring, which ended early -> %%reward capitals --resume"
    )
    assert "older than its last scoring" in repr(lab.check("capitals"))
