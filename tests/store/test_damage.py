"""Damaged files are errors in words, which point at what says more and what to do."""

import os
import sqlite3
from pathlib import Path

import pytest

from rolloutlab.api.wire.chat import AssistantMessage, UserMessage
from rolloutlab.errors import LabError, PolicyError
from rolloutlab.service.database import open_service_database
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Recorded
from tests.forked import fork_embedded

TO_MEND = "%service check says what is damaged, and what to do"


@pytest.fixture
def session(tmp_path):
    session = Session(Settings(home=tmp_path, service=Address("http://127.0.0.1:9", "http://127.0.0.1:9", None)))
    with session.store.draft() as draft:
        draft.add(recorded(i) for i in range(300))
        draft.publish()
    session.close()  # which writes everything into the one file
    yield session
    session.close()


def recorded(position: int) -> Recorded:
    prompt, answer = UserMessage(role="user", content="?"), AssistantMessage(role="assistant", content="yes " * 50)
    return Recorded(f"line {position}", "capitals", 0, [prompt], [answer], position=position)


def damage(session: Session) -> None:
    """Zeros over the second half of the file."""
    path = session.settings.database
    half = path.stat().st_size // 8192 * 4096
    with path.open("r+b") as file:
        file.seek(half)
        file.write(b"\0" * half)


def test_a_sound_lab_is_said_to_be_sound(session):
    first, second, third = session.service("check").splitlines()
    assert first == f"{session.settings.database}: sound"
    assert second.endswith("search.db: not there")
    assert third.endswith("service.db: not there")


def test_damage_is_an_error_that_points_at_the_check_which_says_what_to_do(session):
    damage(session)
    with pytest.raises(LabError, match=r"lab\.db cannot be") as broken:
        session.reward("capitals", lambda *_: 1.0)
    assert broken.value.hint.startswith("%service check")
    line = session.service("check").splitlines()[0]
    assert "lab.db: damaged: " in line
    assert "%export NAME FILE" in line


def cut_short(path: Path) -> None:
    os.truncate(path, 30_000)


def overwritten(path: Path) -> None:
    path.write_bytes(b"no database" * 5_000)


@pytest.mark.parametrize("broken", [cut_short, overwritten])
def test_a_lab_that_does_not_open_points_at_the_check_which_says_what_to_do(session, broken):
    broken(session.settings.database)
    with pytest.raises(LabError, match=r"lab\.db cannot be used: ") as refused:
        session.collection("capitals")
    assert refused.value.hint == TO_MEND
    line = session.service("check").splitlines()[0]
    assert "lab.db: damaged: " in line
    assert line.endswith("move it away, with its -wal and -shm, to begin an empty lab")


@pytest.mark.process
@pytest.mark.parametrize("broken", [cut_short, overwritten])
def test_a_service_whose_database_does_not_open_ends_with_an_error_that_points_at_the_check(
    tmp_path, broken, monkeypatch
):
    fork_embedded(monkeypatch)
    folder = Settings(home=tmp_path).service_folder
    folder.mkdir()
    open_service_database(folder).close()
    broken(folder / "service.db")
    embedded = Session(Settings(home=tmp_path))
    with pytest.raises(PolicyError, match=r"ended at its start: .*service\.db cannot be used: ") as refused:
        embedded.models.list()
    line = embedded.service("check").splitlines()[2]
    embedded.close()
    assert refused.value.hint == TO_MEND
    assert "service.db: damaged: " in line
    assert "%models --recover" in line


def test_a_file_that_is_no_database_at_all_is_said_to_be_damaged(session):
    session.settings.search_database.write_bytes(b"no database" * 1000)
    assert "search.db: damaged: file is not a database -> %search --reindex" in session.service("check")


def test_a_text_that_is_none_is_an_error_in_words_though_python_gives_it_no_code(session):
    with sqlite3.connect(session.settings.database) as other:
        other.execute("UPDATE collections SET plan = CAST(x'ff' AS TEXT)")
    other.close()
    with pytest.raises(LabError, match=r"lab\.db cannot be read: Could not decode") as broken:
        session.collection("capitals")
    assert broken.value.hint.startswith("%service check")


def test_a_draft_whose_process_lives_stays_whatever_the_clock_says(session):
    other = Lab(session.settings.database)
    with session.store.draft() as draft:
        draft.add([recorded(0)])
        other._database.execute("UPDATE collections SET deleted_at = '2026-01-01' WHERE name LIKE 'draft %'")
        with other.draft():
            pass
        assert draft.publish() == ["capitals:2"]
    other.close()
    assert len(session.collection("capitals").trajectories) == 1
