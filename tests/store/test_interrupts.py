"""An interrupt at any instruction of a write leaves no transaction open and no lock held."""

import dis
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Container
from functools import cache, partial
from itertools import pairwise
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import pytest

from rolloutlab.api.wire.chat import AssistantMessage, UserMessage
from rolloutlab.search.engine import records as records_module
from rolloutlab.search.engine.backend import Snapshot
from rolloutlab.search.engine.records import Record, Records
from rolloutlab.search.where import Compare
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
from rolloutlab.store import file_thread as uninterrupted
from rolloutlab.store import rewards, sqlite
from rolloutlab.store.models import Arrival, NewGroup, Score

PATIENCE = 240.0
"""Seconds after which a test that waits for something is a test that fails."""
WRITES = {module.__file__ for module in (rewards, sqlite, uninterrupted)}


def anywhere(_: FrameType) -> bool:
    return True


def after_a_call(frame: FrameType) -> bool:
    """Where Python looks for signals, besides the end of a loop's body: as a function begins, and after a call."""
    return frame.f_lasti in offsets_after_a_call(frame.f_code)


@cache  # disassembling a function anew at each of its instructions took most of the time
def offsets_after_a_call(code: CodeType) -> set[int]:
    instructions = [i for i in dis.get_instructions(code) if i.opname != "CACHE"]
    return {after.offset for i, after in pairwise(instructions) if i.opname.startswith(("CALL", "RESUME"))}


def interrupted_at(
    step: int,
    work: Callable[[], object],
    files: Container[str] = WRITES,
    looks: Callable[[FrameType], bool] = anywhere,
) -> bool:
    """Do `work` with a KeyboardInterrupt at that instruction of what writes; whether there were so many."""
    left = step

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        left -= event in {"opcode", "return"} and looks(frame)
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
    (trajectory,) = session.store.groups(session.store.find("capitals"))[0].trajectories
    session.store.rewards.give([Score(trajectory, reward)], "function")


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


def test_an_interrupt_at_any_call_of_a_search_leaves_no_reader_and_the_next_search_finds_what_came(tmp_path):
    records = Records(tmp_path / "search.db")
    other = sqlite3.connect(tmp_path / "search.db", timeout=10, isolation_level=None)
    files, step = WRITES | {records_module.__file__}, 1
    while interrupted_at(step, records.fields, files, after_a_call):
        records.upsert([Record(str(step), "a cat", {f"x{step}": 1})])
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0  # 1 where another reads older pages
        assert f"x{step}" in records.fields()
        step += 1
    assert step > 30
    records.close()
    other.close()


def test_an_interrupt_anywhere_in_a_search_leaves_the_index_to_other_threads(tmp_path):
    records = Records(tmp_path / "search.db")
    here = records_module.__file__

    def looks(frame: FrameType) -> bool:
        return frame.f_code.co_filename == here or after_a_call(frame)

    def search() -> None:
        counted.append(records.count)

    step = 1
    while interrupted_at(step, records.fields, WRITES | {here}, looks):
        counted: list[int] = []
        other = threading.Thread(target=search, daemon=True)
        other.start()
        other.join(PATIENCE)
        assert counted == [0], f"another thread waits for ever after an interrupt at step {step}"
        step += 1
    assert step > 60
    records.close()


def test_a_search_inside_a_search_does_not_wait_for_itself(tmp_path):
    records = Records(tmp_path / "search.db")
    records.upsert([Record("a", "a cat")])
    assert records.within(lambda _: records.within(lambda _: 7) if records.count else 0) == 7
    records.close()


def test_what_is_read_at_one_moment_is_not_changed_by_others(tmp_path):
    records, other = Records(tmp_path / "search.db"), Records(tmp_path / "search.db")

    def work(snapshot: Snapshot) -> int:
        other.upsert([Record("a", "a cat")])
        return len(snapshot.filter(Compare("#id", "$eq", "a")))

    assert (records.within(work), records.within(work)) == (0, 1)
    records.close()
    other.close()


def test_a_piece_that_comes_while_another_thread_ends_the_thread_is_done_all_the_same():
    thread = uninterrupted.Uninterrupted("of-this-test")
    put = thread._pieces.put

    def late(piece: object) -> None:
        if thread.end.alive:
            thread.end()
            while any(each.name == "of-this-test" for each in threading.enumerate()):
                pass
        put(piece)

    thread._pieces = SimpleNamespace(put=late, get=thread._pieces.get)
    assert thread.do(lambda _: 7) == 7


def test_an_exception_that_is_false_as_a_truth_value_is_raised_by_the_caller():
    class EmptyError(Exception):
        def __len__(self) -> int:
            return 0

    def fail(_: object) -> None:
        raise EmptyError

    thread = uninterrupted.Uninterrupted("of-this-test")
    with pytest.raises(EmptyError):
        thread.do(fail)
    thread.end()


def test_work_after_the_end_is_done_by_the_caller_itself():
    """A closed lab says so instead of waiting for a thread that has ended."""
    thread = uninterrupted.Uninterrupted("of-this-test")
    assert thread.do(lambda _: threading.current_thread().name) == "of-this-test"
    thread.end()
    assert thread.do(lambda _: threading.current_thread()) is threading.main_thread()
