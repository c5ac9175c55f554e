"""A lab whose file is taken away under a running kernel, or that a fork of the kernel uses too."""

import os
import shutil
import sqlite3
from collections.abc import Callable

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import LabError, RolloutlabError
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings

CHOICE = {"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop"}
COMPLETION = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [CHOICE]}


@pytest.fixture
def session(tmp_path):
    """A notebook of a lab folder, beside a service that always says the same."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=COMPLETION))
    address = Address("http://127.0.0.1:9", "http://127.0.0.1:9", None)
    session = Session(Settings(home=tmp_path / "lab", service=address), http=HttpClient(transport))
    session.chat("capitals", "Capital of France?", model="m")
    yield session
    session.close()


def delete_the_file(session: Session) -> None:
    session.settings.database.unlink()


def delete_the_folder(session: Session) -> None:
    shutil.rmtree(session.settings.home)


def replace_the_file(session: Session) -> None:
    """As who brings a backup back does."""
    there = session.settings.database
    shutil.copy(there, there.with_name("backup.db"))
    there.with_name("backup.db").replace(there)


@pytest.mark.parametrize("take_away", [delete_the_file, delete_the_folder, replace_the_file])
@pytest.mark.parametrize(
    "write",
    [
        lambda session: session.chat("capitals", "Capital of France?", model="m"),
        lambda session: session.reward("capitals", lambda *_: 1.0),
    ],
)
def test_nothing_is_shown_as_stored_once_the_file_is_gone(session, take_away, write: Callable[[Session], object]):
    take_away(session)
    with pytest.raises(LabError, match=r"lab\.db was deleted or replaced while it was open") as gone:
        write(session)
    assert "put it back" in gone.value.hint
    assert len(gone.value._render_traceback_()) == 2
    assert len(session.collection("capitals").trajectories) == 1  # what there was can still be read, and exported


def test_a_file_that_was_put_back_goes_on(session):
    there = session.settings.database
    there.rename(there.with_name("away.db"))
    with pytest.raises(LabError):
        session.reward("capitals", lambda *_: 1.0)
    there.with_name("away.db").rename(there)
    session.reward("capitals", lambda *_: 2.0)
    assert [t.reward for t in session.collection("capitals").trajectories] == [2.0]


def in_a_fork(work: Callable[[], object]) -> int:
    """The exit status of a child that did `work`: 0 when it could, 1 for an error of ours, 2 for any other."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            work()
            status = 0
        except RolloutlabError:
            status = 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that it has threads is what is tested
def test_a_fork_of_a_kernel_reads_and_writes_the_lab_by_a_connection_of_its_own(session):
    def score() -> None:
        assert len(session.collection("capitals").trajectories) == 1
        session.store.jobs.set_status("none", "queued")
        session.reward("capitals", lambda *_: 3.0)
        session.store.close()

    assert in_a_fork(score) == 0
    assert [t.reward for t in session.collection("capitals").trajectories] == [3.0]
    session.reward("capitals", lambda *_: 4.0)
    with sqlite3.connect(session.settings.database) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert other.execute("SELECT reward FROM trajectories").fetchone() == (4.0,)
    other.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_that_cannot_open_the_lab_at_first_does_not_use_its_parents_connection(session, monkeypatch):
    def fails_first() -> None:
        database = session.store._database
        before = database._connection
        with monkeypatch.context() as patched:
            patched.setattr(
                sqlite3, "connect", lambda *_, **__: (_ for _ in ()).throw(sqlite3.OperationalError("full"))
            )
            with pytest.raises(LabError, match="full"):
                session.collection("capitals")
        assert len(session.collection("capitals").trajectories) == 1
        assert database._connection is not before

    assert in_a_fork(fails_first) == 0
