"""The socket between the Jupyter server and a kernel."""

import asyncio
import os
import socket
import stat

import pytest

from rolloutlab.auth.redirect.ipc import MAX_MESSAGE, folders, listening, name, send

SECRET = "of-this-test"


@pytest.fixture
def place(tmp_path_factory):
    """A short path: that of a socket has at most 104 characters on some systems."""
    return tmp_path_factory.mktemp("s") / "own"


def doubled(message):
    return {"twice": 2 * message["x"]}


def asked(place, message, secret=SECRET, heard=SECRET):
    async def work():
        async with listening(heard, doubled, [place]):
            return await send(secret, message, [place])

    return asyncio.run(work())


def test_a_message_is_answered(place):
    assert asked(place, {"x": 21}) == {"twice": 42}


def test_another_secret_finds_nobody(place):
    assert asked(place, {"x": 21}, secret="of-another") is None


def test_the_socket_is_for_its_owner_alone_and_its_name_tells_nothing(place):
    async def work():
        async with listening(SECRET, doubled, [place]):
            return place.stat(), next(place.iterdir()).stat(), [path.name for path in place.iterdir()]

    folder, socket_, names = asyncio.run(work())
    assert stat.S_IMODE(folder.st_mode) == 0o700
    assert stat.S_IMODE(socket_.st_mode) == 0o600
    assert names == [name(SECRET)]
    assert SECRET not in names[0]


def test_the_socket_is_gone_when_nobody_listens_any_more(place):
    asked(place, {"x": 1})
    assert list(place.iterdir()) == []
    assert asyncio.run(send(SECRET, {"x": 1}, [place])) is None


def test_a_folder_that_others_can_read_is_not_used(place):
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    with pytest.raises(OSError, match="no private folder"):
        asked(place, {"x": 1})


def test_a_folder_that_somebody_else_named_is_not_trusted(place, tmp_path):
    place.symlink_to(tmp_path)
    with pytest.raises(OSError, match="no private folder"):
        asked(place, {"x": 1})


def test_nothing_is_told_to_a_socket_in_a_folder_that_others_can_write(place):
    async def work():
        async with listening(SECRET, doubled, [place]):
            place.chmod(0o777)
            return await send(SECRET, {"x": 1}, [place])

    assert asyncio.run(work()) is None


def test_a_second_place_is_looked_at_when_the_first_cannot_be_used(place, tmp_path):
    async def work():
        async with listening(SECRET, doubled, [tmp_path / "no" / "such", place]):
            return await send(SECRET, {"x": 1}, [tmp_path / "no" / "such", place])

    assert asyncio.run(work()) == {"twice": 2}


@pytest.mark.parametrize("sent", [b"no message\n", b"[1]\n", b"x" * (2 * MAX_MESSAGE) + b"\n", b""])
def test_what_is_no_message_is_not_answered_and_the_next_one_is(place, sent):
    async def work():
        async with listening(SECRET, doubled, [place]):
            reader, writer = await asyncio.open_unix_connection(place / name(SECRET))
            writer.write(sent)
            writer.write_eof()
            try:
                answer = await reader.read()
            except ConnectionResetError:  # it is closed before all was read
                answer = b""
            writer.close()
            return answer, await send(SECRET, {"x": 4}, [place])

    assert asyncio.run(work()) == (b"", {"twice": 8})


def test_what_a_killed_kernel_left_long_ago_is_removed(place):
    place.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place / "left"))
    os.utime(place / "left", (0, 0))
    asked(place, {"x": 1})
    assert list(place.iterdir()) == []


def test_the_folder_of_the_login_is_preferred():
    assert str(folders({"XDG_RUNTIME_DIR": "/run/user/7"})[0]) == "/run/user/7/rolloutlab"
    assert len(folders({})) == 1
