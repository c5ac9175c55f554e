"""One SQLite file, from any thread and any number of processes at once: what happened in `write` is there whole."""

import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rolloutlab.errors import LabError
from rolloutlab.store.sqlite import Database

FIRST = "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL); INSERT INTO counters VALUES ('a', 0)"
SECOND = "ALTER TABLE counters ADD COLUMN unit TEXT NOT NULL DEFAULT 'm'"


@pytest.fixture
def opened(tmp_path):
    """Opens the file of this test; every connection is closed at the end."""
    databases: list[Database] = []

    def connect(*migrations: str, path: Path = tmp_path / "lab" / "lab.db") -> Database:
        databases.append(Database(path, migrations or (FIRST,)))
        return databases[-1]

    yield connect
    for database in databases:
        database.close()


def value(database: Database) -> int:
    (row,) = database.read("SELECT value FROM counters WHERE name = ?", "a")
    return row["value"]


def version(database: Database) -> int:
    return database.read("PRAGMA user_version")[0][0]


@contextmanager
def in_time() -> Iterator[None]:
    """What waits for itself fails the test instead of keeping it for ever."""
    guard = threading.Timer(20.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    guard.start()
    try:
        yield
    except KeyboardInterrupt:
        pytest.fail("it waits for ever")
    finally:
        guard.cancel()


def together(*works, finish=lambda: None) -> None:
    """Does all of it at once, each in a thread, and `finish` while those go on that cannot end without it."""
    start = threading.Barrier(len(works) + 1)
    failed: list[BaseException] = []

    def begin(work) -> None:
        start.wait()
        try:
            work()
        except LabError as error:
            failed.append(error)

    threads = [threading.Thread(target=begin, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    start.wait()
    threads[0].join(timeout=0.1)
    finish()
    for thread in threads:
        thread.join()
    assert failed == []


def fail_half_way(database: Database, error: BaseException) -> None:
    with database.write() as connection:
        connection.execute("UPDATE counters SET value = 9")
        raise error


def fill_up(database: Database) -> None:
    with database.write() as connection:
        connection.execute("UPDATE counters SET value = 9")
        connection.execute("INSERT INTO counters VALUES ('b', zeroblob(100000))")


def add_one(database: Database) -> None:
    with database.write() as connection:
        (now,) = connection.execute("SELECT value FROM counters").fetchone()
        connection.execute("UPDATE counters SET value = ?", (now + 1,))


def test_a_new_file_and_its_folder_are_made(opened, tmp_path):
    database = opened()
    assert database.path == tmp_path / "lab" / "lab.db"
    assert database.path.exists()
    assert (tmp_path / "lab").stat().st_mode & 0o077 == 0


def test_every_migration_is_applied_once(opened):
    first = opened(FIRST)
    add_one(first)
    assert version(first) == 1
    second = opened(FIRST, SECOND)
    assert (version(second), value(second)) == (2, 1)
    third = opened(FIRST, SECOND)
    assert [tuple(row) for row in third.read("SELECT * FROM counters")] == [("a", 1, "m")]


def test_a_new_file_has_all_migrations_in_their_order(opened):
    database = opened(FIRST, SECOND)
    assert (version(database), value(database)) == (2, 0)


def test_a_migration_that_fails_leaves_the_file_as_it_was(opened):
    opened(FIRST)
    with pytest.raises(LabError, match="no such table: absent"):
        opened(FIRST, f"{SECOND}; INSERT INTO absent VALUES (1)")
    database = opened(FIRST)
    assert version(database) == 1
    assert "unit" not in database.read("SELECT * FROM counters")[0].keys()  # noqa: SIM118 - a Row's `in` looks at values


def test_a_file_of_a_newer_version_is_refused_and_left_alone(opened):
    opened(FIRST, SECOND)
    with pytest.raises(LabError, match="written by a newer rolloutlab") as refused:
        opened(FIRST)
    assert refused.value.hint == "pip install --upgrade rolloutlab"
    assert version(opened(FIRST, SECOND)) == 2


def test_a_new_file_may_be_opened_by_many_at_once(opened):
    together(*[opened] * 6)


def test_who_opens_a_file_waits_for_whoever_is_making_it(opened, tmp_path):
    (tmp_path / "lab").mkdir()
    first = sqlite3.connect(tmp_path / "lab" / "lab.db", isolation_level=None)
    first.execute("BEGIN IMMEDIATE")

    def finish() -> None:
        first.execute("COMMIT")
        first.close()

    together(opened, finish=finish)


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt()])
def test_what_fails_half_way_is_undone_whole(opened, error):
    database = opened()
    with pytest.raises(type(error)):
        fail_half_way(database, error)
    assert value(database) == 0
    add_one(database)
    assert value(database) == 1


def test_a_commit_that_fails_leaves_nothing_half_done_behind(opened):
    references = "CREATE TABLE marks (counter TEXT REFERENCES counters (name) DEFERRABLE INITIALLY DEFERRED)"
    database = opened(FIRST, references)
    with pytest.raises((sqlite3.IntegrityError, LabError)), database.write() as connection:
        connection.execute("INSERT INTO marks VALUES ('nobody')")
    add_one(database)
    assert (value(database), database.read("SELECT * FROM marks")) == (1, [])


def test_a_full_disk_is_told_as_what_it_is_and_undone(opened):
    database = opened()
    database.read("PRAGMA max_page_count = 4")
    with pytest.raises(LabError, match="full"):
        fill_up(database)
    assert value(database) == 0
    add_one(database)
    assert value(database) == 1


def test_a_damaged_file_is_told_as_what_it_is(opened, tmp_path):
    database = opened(FIRST, "INSERT INTO counters VALUES ('b', zeroblob(100000))")
    database.close()
    with (tmp_path / "lab" / "lab.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"#" * 8192)
    with pytest.raises(LabError, match=r"lab\.db cannot be read: .*malformed"):
        value(opened(FIRST, "never run again"))


@pytest.mark.parametrize("sql", ["SELECT * FROM absent", "BEGIN IMMEDIATE"])
def test_what_cannot_be_read_is_told(opened, sql):
    database = opened()
    other = sqlite3.connect(database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    database.read("PRAGMA busy_timeout = 0")
    with pytest.raises(LabError, match="cannot be read"):
        database.read(sql)
    other.close()


def test_foreign_keys_are_kept(opened):
    database = opened(FIRST, "CREATE TABLE marks (counter TEXT REFERENCES counters (name))")
    with pytest.raises((sqlite3.IntegrityError, LabError)), database.write() as connection:
        connection.execute("INSERT INTO marks VALUES ('nobody')")


def test_another_connection_sees_only_what_is_committed(opened):
    ours, theirs = opened(), opened()
    with ours.write() as connection:
        connection.execute("UPDATE counters SET value = 9")
        assert value(theirs) == 0
    assert value(theirs) == 9


def test_who_writes_has_the_file_to_itself_from_the_beginning(opened):
    database = opened()
    other = sqlite3.connect(database.path, timeout=0, isolation_level=None)
    with database.write(), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    other.close()


def test_writes_of_two_connections_and_several_threads_never_mix(opened):
    databases = [opened(), opened()]

    def count(database: Database) -> None:
        for _ in range(25):
            add_one(database)

    together(*(lambda database=database: count(database) for database in databases * 2))
    assert [value(database) for database in databases] == [100, 100]


def test_a_connection_may_be_used_from_another_thread(opened):
    database = opened()
    thread = threading.Thread(target=add_one, args=(database,))
    thread.start()
    thread.join()
    assert value(database) == 1


def test_the_file_is_in_wal_mode(opened):
    assert opened().read("PRAGMA journal_mode")[0][0] == "wal"


def test_where_wal_fails_another_mode_is_used_with_a_warning(opened):
    with pytest.warns(UserWarning, match="without WAL: using journal mode memory"):
        database = opened(path=Path(":memory:"))
    add_one(database)
    assert value(database) == 1


def test_a_folder_that_cannot_be_made_is_told_with_what_to_type(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(LabError, match=r"taken/lab\.db cannot be used") as refused:
        Database(tmp_path / "taken" / "lab.db", [FIRST])
    assert "ROLLOUTLAB_HOME" in refused.value.hint


def test_a_file_that_cannot_be_opened_is_told(tmp_path):
    (tmp_path / "lab.db").mkdir()
    with pytest.raises(LabError, match="unable to open"):
        Database(tmp_path / "lab.db", [FIRST])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_told(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(LabError, match="unable to open"):
        Database(tmp_path / "lab.db", [FIRST])


def test_a_file_that_is_no_database_is_told_and_left_alone(tmp_path):
    path = tmp_path / "lab.db"
    path.write_bytes(b"not a database, but long enough to be looked at " * 100)
    before = path.read_bytes()
    with pytest.raises(LabError, match="not a database"):
        Database(path, [FIRST])
    assert path.read_bytes() == before


def test_a_write_inside_one_moment_is_refused_instead_of_being_undone_with_it(opened):
    database = opened()

    def write() -> None:
        with pytest.raises(RuntimeError, match="would be undone"):
            database.execute("UPDATE counters SET value = 1")
        with pytest.raises(RuntimeError, match="would be undone"), database.write():
            pass

    database.at_one_moment(write)
    database.execute("UPDATE counters SET value = value + 2")
    assert value(opened()) == 2


def test_a_write_of_another_thread_inside_one_moment_is_refused_or_there_afterwards(opened):
    database, refused = opened(), []

    def write() -> None:
        try:
            database.execute("UPDATE counters SET value = value + 1")
        except RuntimeError as error:
            refused.append(error)

    def meanwhile() -> None:
        writer = threading.Thread(target=write)
        writer.start()
        writer.join()

    database.at_one_moment(meanwhile)
    assert value(opened()) == 1 - len(refused)


def test_a_moment_that_sqlite_has_ended_itself_keeps_its_error_and_no_later_write_out(opened):
    database = opened()

    def read() -> None:
        database.read("ROLLBACK")  # as SQLite does after an I/O error
        raise LabError("the file cannot be read")

    with pytest.raises(LabError, match="cannot be read"):
        database.at_one_moment(read)
    database.execute("UPDATE counters SET value = 1")
    assert value(opened()) == 1


def test_what_is_read_inside_a_write_of_the_main_thread_is_as_it_was_written(opened):
    database = opened()
    with in_time(), database.write() as connection:
        connection.execute("UPDATE counters SET value = 3")
        assert value(database) == 3
        assert database.changes() == database.changes()
        with pytest.raises(RuntimeError, match="is being written"):
            database.at_one_moment(lambda: None)
    assert value(opened()) == 3
