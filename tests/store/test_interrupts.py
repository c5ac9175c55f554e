"""An interrupt at any instruction of a write leaves no transaction open and no lock held."""

import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
from rolloutlab.store import rewards, sqlite, uninterrupted
from rolloutlab.store.records import Arrival, NewGroup, Score
from rolloutlab.wire.chat import AssistantMessage, UserMessage

WRITES = {module.__file__ for module in (rewards, sqlite, uninterrupted)}


def interrupted_at(step: int, work: Callable[[], object]) -> bool:
    """Do `work` with a KeyboardInterrupt at that instruction of what writes; whether there were so many."""
    left = step

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in WRITES:
            return None
        frame.f_trace_opcodes = True
        left -= event in {"opcode", "return"}
        if left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.fixture
def session(tmp_path):
    session = Session(Settings(home=tmp_path, service=Address("http://127.0.0.1:9", "http://127.0.0.1:9", None)))
    collection = session.store.open_collection("capitals")
    (group,) = session.store.add_groups(collection, [NewGroup([UserMessage(role="user", content="?")], {})])
    answer = AssistantMessage(role="assistant", content="Paris")
    session.store.put(group, [Arrival(0, [answer])], model="m", step=0, sampling={})
    yield session
    session.close()


@pytest.fixture
def other(session):
    """Another kernel's connection, which never waits."""
    connection = sqlite3.connect(session.settings.database, timeout=0, isolation_level=None)
    yield connection
    connection.close()


def reward(session: Session, reward: float) -> None:
    session.reward("capitals", lambda *_: reward)


def on_disk(other: sqlite3.Connection) -> float | None:
    return other.execute("SELECT reward FROM trajectories").fetchone()[0]


def test_an_interrupt_at_any_instruction_leaves_no_transaction_open_and_the_next_reward_on_disk(session, other):
    step = 1
    while interrupted_at(step, partial(reward, session, float(step))):
        (found,) = session.collection("capitals").trajectories
        assert found.reward == on_disk(other)
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        session.store.rewards.give([Score(found, step + 0.5)], "function")
        assert on_disk(other) == step + 0.5
        step += 1
    assert step > 100
    assert on_disk(other) == float(step)


@pytest.fixture
def interrupt():
    """Interrupts the main thread once; a signal that comes just before it begins to wait is seen after the wait."""
    came: list[int] = []

    def once(number: int, _: object) -> None:
        came.append(number)
        if len(came) == 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, once)
    yield lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_a_write_whose_caller_is_interrupted_meanwhile_is_undone(session, other, interrupt):
    reward(session, 1.0)
    go_on = threading.Event()

    def slow() -> None:
        reward(session, 2.0)
        while not go_on.wait(0.01):
            interrupt()

    with pytest.raises(KeyboardInterrupt):
        session.store.at_once(slow)
    go_on.set()
    assert [t.reward for t in session.collection("capitals").trajectories] == [1.0]
    assert on_disk(other) == 1.0


def test_work_after_the_end_is_done_by_the_caller_itself():
    """A closed lab says so instead of waiting for a thread that has ended."""
    thread = uninterrupted.Uninterrupted("of-this-test")
    assert thread.do(lambda _: threading.current_thread().name) == "of-this-test"
    thread.end()
    assert thread.do(lambda _: threading.current_thread()) is threading.main_thread()
