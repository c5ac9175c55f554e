"""Grants are kept where nobody else reads them, and come back as they were."""

import asyncio
import json
import stat
from dataclasses import replace

import pytest

from rolloutlab.auth import token_store as rooms
from rolloutlab.auth.registration import RegisteredClient
from rolloutlab.auth.token_store import FileStore, KeyringStore, MemoryStore, TieredStore, open_store
from rolloutlab.auth.tokens import Grant
from rolloutlab.errors import LabError
from rolloutlab.fsutil import Lock

GRANT = Grant(
    server="https://tools.example/mcp",
    resource="https://tools.example/mcp",
    issuer="https://login.example",
    token_endpoint="https://login.example/token",
    revocation_endpoint=None,
    client=RegisteredClient("me", "s3cret-client"),
    access_token="s3cret-access",
    refresh_token="s3cret-refresh",
    scopes=("lab:read",),
    expires_at=1000.0,
    lifetime=600.0,
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "lab" / "sign-in"


@pytest.mark.parametrize("kind", [MemoryStore, FileStore])
def test_a_grant_comes_back_until_it_is_forgotten(kind, folder):
    place = kind(folder) if kind is FileStore else kind()
    assert place.read(GRANT.server) is None
    place.write(GRANT)
    assert place.read(GRANT.server) == GRANT
    assert place.read("https://other.example/mcp") is None
    place.forget(GRANT.server)
    place.forget(GRANT.server)
    assert place.read(GRANT.server) is None


def test_files_are_readable_by_their_owner_alone(folder):
    folder.mkdir(parents=True)  # with the usual mode
    FileStore(folder).write(GRANT)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {0o600}


def test_a_kernel_that_hangs_with_the_grants_of_a_server_is_told_with_what_to_type(folder, monkeypatch):
    monkeypatch.setattr(rooms, "_LOCK_TIMEOUT", 0.0)

    async def taken():
        async with FileStore(folder).lock(GRANT.server):
            return sorted(path.name for path in folder.iterdir())

    [name] = asyncio.run(taken())
    path = folder / name
    with Lock(path), pytest.raises(LabError, match=f"another process has held {path} for 0 s") as refused:
        asyncio.run(taken())
    assert refused.value.hint == f"!lsof {path} says which; end it, and run the cell again"
    assert asyncio.run(taken()) == [name]
    path.unlink()
    path.mkdir()
    with pytest.raises(LabError, match=f"{path} cannot be locked: Is a directory"):
        asyncio.run(taken())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_may_read_is_refused(folder, mode):
    place = FileStore(folder)
    place.write(GRANT)
    [path] = folder.glob("*.json")
    path.chmod(mode)
    with pytest.raises(LabError, match="other users can read"):
        place.read(GRANT.server)


def test_a_keyring_that_does_not_open_is_told_with_what_to_type(folder, ring, monkeypatch):
    from keyring.errors import KeyringLocked

    def locked(*_asked):
        raise KeyringLocked("it is locked")

    open_store(folder).write(GRANT)
    for name in ("get_password", "set_password", "delete_password"):
        monkeypatch.setattr(f"keyring.{name}", locked)
    for call in (
        lambda: open_store(folder).read(GRANT.server),
        lambda: open_store(folder).write(GRANT),
        lambda: open_store(folder).forget(GRANT.server),
    ):
        with pytest.raises(LabError, match="does not open: it is locked") as error:
            call()
        assert error.value.hint.startswith("!rm '")


@pytest.mark.parametrize(
    "change",
    [
        {"server": "https://evil.example/mcp"},
        {"resource": "https://evil.example/mcp"},
        {"resource": "https://tools.example/mcp?x=1"},
        {"token_endpoint": "http://evil.example/token"},
        {"scopes": None},
        {"client": None},
        {"more": 1},
    ],
)
def test_a_file_that_was_changed_into_something_else_is_no_grant(folder, change):
    place = FileStore(folder)
    place.write(GRANT)
    [path] = folder.glob("*.json")
    path.write_text(json.dumps(GRANT.to_json() | change))
    assert place.read(GRANT.server) is None


def test_a_damaged_file_is_no_grant(folder):
    place = FileStore(folder)
    place.write(GRANT)
    [path] = folder.glob("*.json")
    for damaged in (b"{", b"\xff"):
        path.write_bytes(damaged)
        assert place.read(GRANT.server) is None


def test_one_at_a_time_changes_a_grant(folder):
    async def story():
        order = []

        async def change(name):
            async with FileStore(folder).lock(GRANT.server):
                order.append(name)
                await asyncio.sleep(0)
                order.append(name)

        await asyncio.gather(change("a"), change("b"))
        return order

    order = asyncio.run(story())
    assert order[0] == order[1]
    assert order[2] == order[3]


def test_a_kernel_that_has_not_looked_yet_waits_for_one_that_changes_what_is_kept(folder):
    async def story():
        order = []

        async def signs_in(keep):
            async with TieredStore(folder).lock(GRANT.server, keep):
                order.append("signs in")

        async with FileStore(folder).lock(GRANT.server):
            FileStore(folder).write(GRANT)
            waits = [asyncio.ensure_future(signs_in(keep)) for keep in (None, True)]
            await asyncio.sleep(0.1)
            order.append("renewed")
        await asyncio.gather(*waits)
        return order

    assert asyncio.run(story()) == ["renewed", "signs in", "signs in"]


def test_without_a_real_keyring_it_is_a_file(folder, monkeypatch):
    monkeypatch.setattr(rooms, "has_keyring", lambda: False)
    assert type(open_store(folder)) is FileStore
    monkeypatch.setattr(rooms, "has_keyring", lambda: True)
    assert type(open_store(folder)) is KeyringStore


def test_the_keyring_holds_what_a_file_would(folder, ring):
    place = open_store(folder)
    place.write(GRANT)
    assert place.read(GRANT.server) == GRANT
    assert list(ring) == [("rolloutlab", GRANT.server)]
    place.forget(GRANT.server)
    place.forget(GRANT.server)
    assert place.read(GRANT.server) is None
    assert not ring
    assert not list(folder.glob("*.json"))


def test_a_grant_of_before_there_was_a_keyring_is_used_until_the_next_write_moves_it(folder, ring):
    FileStore(folder).write(GRANT)
    place = KeyringStore(folder)
    assert place.read(GRANT.server) == GRANT
    place.write(GRANT)
    assert FileStore(folder).read(GRANT.server) is None
    assert place.read(GRANT.server) == GRANT


def test_a_keyring_that_does_not_open_costs_no_grant_of_before_there_was_one(folder, ring, monkeypatch):
    from keyring.errors import KeyringLocked

    def locked(*_):
        raise KeyringLocked("locked")

    FileStore(folder).write(GRANT)
    monkeypatch.setattr("keyring.set_password", locked)
    with pytest.raises(LabError, match="does not open"):
        KeyringStore(folder).write(GRANT)
    assert FileStore(folder).read(GRANT.server) == GRANT


def test_a_grant_shows_nothing_secret():
    assert "s3cret" not in repr(GRANT)
    assert GRANT.is_fresh(now=960)
    assert not GRANT.is_fresh(now=975)
    assert replace(GRANT, expires_at=None).is_fresh(now=10**10)
