"""A loop in a thread, which is left behind where it hangs, and calls in threads whose outcomes are values."""

import asyncio
import os
import threading
from concurrent.futures import CancelledError

import pytest

from rolloutlab.runtime import EndedError, LoopThread, ThreadCall, call_in_thread

PATIENCE = 30.0
NAME = "loop-of-a-test"


async def running() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


@pytest.fixture
def loop():
    thread = LoopThread(NAME)
    yield thread
    thread.close()


def test_a_loop_that_a_coroutine_blocks_is_left_at_an_interrupt_and_ended_later():
    go_on, ended, loops = threading.Event(), threading.Event(), []

    async def last() -> None:
        loops.append(asyncio.get_running_loop())
        ended.set()

    async def block() -> None:
        loops.append(asyncio.get_running_loop())
        go_on.wait(PATIENCE)

    def interrupt() -> None:
        if loops:
            raise KeyboardInterrupt

    thread = LoopThread(NAME, last)
    with pytest.raises(KeyboardInterrupt):
        thread.run(block(), interrupt, every=0.001)
    assert thread.run(running()) is not loops[0]
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(PATIENCE)
    assert loops[0] is loops[1]
    thread.close()
    assert len(loops) == 3  # the second loop had an end, too


def test_an_interrupt_as_soon_as_a_coroutine_runs_waits_for_its_end(loop, monkeypatch):
    began, story, event_loop = threading.Event(), [], loop.start()
    hand_over = event_loop.call_soon_threadsafe

    async def work() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            story.append("ended")

    def interrupted(callback) -> None:
        monkeypatch.undo()
        hand_over(callback)
        assert began.wait(PATIENCE)
        raise KeyboardInterrupt

    monkeypatch.setattr(event_loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.run(work(), to_its_end=True)
    assert story == ["ended"]


def test_whoever_waits_while_another_thread_closes_the_loop_is_told(loop):
    began, errors = threading.Event(), []

    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    def wait() -> None:
        with pytest.raises(CancelledError) as caught:
            loop.run(hang())
        errors.append(caught.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert began.wait(PATIENCE)
    loop.close()
    waiting.join(PATIENCE)
    assert len(errors) == 1


def test_a_forked_process_has_a_loop_of_its_own_though_the_lock_of_its_parent_is_held(loop):
    before, held, release = loop.start(), threading.Event(), threading.Event()

    def hold() -> None:
        with loop._lock:
            held.set()
            release.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        another = loop.submit(running()).result(PATIENCE) is not before
        os._exit(0 if another and not loop.is_blocked() else 1)
    release.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loop.run(running()) is before


async def stopped() -> None:
    raise SystemExit


@pytest.mark.parametrize(("work", "error"), [(lambda: next(iter(())), StopIteration), (stopped, SystemExit)])
def test_what_a_call_raises_is_a_value(work, error):
    result, raised = ThreadCall(work, "call").outcome.result(PATIENCE)
    assert result is None
    assert isinstance(raised, error)


def test_a_call_that_hangs_is_interrupted_in_python_and_cancelled_in_a_coroutine():
    began = threading.Event()

    def compute() -> None:
        while True:
            began.set()

    looping = ThreadCall(compute, "call")
    assert began.wait(PATIENCE)
    looping.interrupt()
    assert isinstance(looping.outcome.result(PATIENCE)[1], EndedError)

    async def story() -> BaseException | None:
        waits = threading.Event()

        async def hang() -> None:
            waits.set()
            await asyncio.Event().wait()

        call = ThreadCall(hang, "call")
        assert await asyncio.to_thread(waits.wait, PATIENCE)
        await call.end()
        return call.outcome.result(0)[1]

    assert isinstance(asyncio.run(story()), asyncio.CancelledError)


def test_a_coroutine_that_a_call_returns_while_it_is_ended_is_cancelled():
    go_on = threading.Event()

    async def hang() -> None:
        await asyncio.Event().wait()

    def prepare():
        assert go_on.wait(PATIENCE)
        return hang()

    async def story() -> BaseException | None:
        call = ThreadCall(prepare, "call")
        ending = asyncio.create_task(call.end())
        await asyncio.sleep(0)  # `end` has begun
        go_on.set()
        await ending
        return call.outcome.result(0)[1]

    assert isinstance(asyncio.run(story()), asyncio.CancelledError)


def test_a_loop_that_another_thread_closes_meanwhile_is_not_blocked(loop, monkeypatch):
    closed = asyncio.new_event_loop()
    closed.close()
    loop.start()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_loop", closed)  # as it was read just before `close`
        assert not loop.is_blocked()
    assert not loop.is_blocked()


class FalseError(Exception):
    """An exception that is a container of none, such as one of several problems."""

    def __len__(self) -> int:
        return 0


def test_an_exception_that_is_false_is_raised_as_well(loop):
    async def fail() -> None:
        raise FalseError

    def fail_at_once() -> None:
        raise FalseError

    with pytest.raises(FalseError):
        loop.run(fail())
    with pytest.raises(FalseError):
        asyncio.run(call_in_thread(fail_at_once, "call"))


def test_a_coroutine_waits_for_the_result_of_a_plain_call_or_gets_what_it_raised():
    assert asyncio.run(call_in_thread(lambda: 3, "call")) == 3
    with pytest.raises(ZeroDivisionError):
        asyncio.run(call_in_thread(lambda: 1 // 0, "call"))
