"""The listener for answers on this machine, asked over real sockets."""

import asyncio
from urllib.parse import urlsplit

import httpx
import pytest

from rolloutlab.auth.redirect.loopback import _MAX_REQUEST, listening

STATES = ("wrong", "right")


def visit(work, takes=lambda query: "state=right" in query):
    """What `work(address, taken)` returns while answers are taken; `taken` is every query that was offered."""
    taken: list[str] = []

    async def listen():
        def take(query: str) -> bool:
            taken.append(query)
            return takes(query)

        async with listening(take) as address:
            return await work(address)

    return asyncio.run(listen()), taken


def get(suffix="", **options):
    async def work(address):
        async with httpx.AsyncClient(trust_env=False, timeout=240) as client:
            return await client.request(options.pop("method", "GET"), f"{address}{suffix}", **options)

    return visit(work)


def raw(text):
    """The answer to bytes sent as they are; {host} and {path} are the listener's."""

    async def work(address):
        host, _, path = address.removeprefix("http://").partition("/")
        reader, writer = await asyncio.open_connection(*host.split(":"))
        writer.write(text.format(host=host, path=f"/{path}").encode())
        try:
            return (await asyncio.wait_for(reader.read(), 240)).decode()
        except ConnectionResetError:  # it was closed before all was read
            return ""
        finally:
            writer.close()

    return visit(work)


def test_an_answer_is_taken_and_the_page_says_that_it_can_be_closed():
    answer, taken = get("?code=c&state=right")
    assert (answer.status_code, taken) == (200, ["code=c&state=right"])
    assert "You can close this page" in answer.text
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_nothing_of_the_answer_is_on_the_page():
    answer, _ = get("?code=secretcode&state=right")
    assert "secretcode" not in answer.text
    assert "right" not in answer.text


def test_an_answer_with_another_state_is_not_taken_and_the_page_says_so():
    answer, _ = get("?code=c&state=wrong")
    assert answer.status_code == 404
    assert "Nothing waits for this answer" in answer.text


def test_it_listens_on_this_machine_alone_at_a_path_that_nobody_guesses():
    async def work(address):
        return address

    (first, _), (second, _) = visit(work), visit(work)
    assert first.startswith("http://127.0.0.1:")
    assert len(first.rpartition("/")[2]) >= 43  # 256 bits
    assert first.rpartition("/")[2] != second.rpartition("/")[2]


@pytest.mark.parametrize("suffix", ["x?code=c&state=right", "/?code=c&state=right", "/../?code=c&state=right"])
def test_another_path_is_nothing(suffix):
    answer, taken = get(suffix)
    assert (answer.status_code, taken) == (404, [])


@pytest.mark.parametrize("host", ["evil.example", "localhost", "127.0.0.1", "evil.example:80"])
def test_another_host_is_nothing_so_that_no_foreign_name_leads_here(host):
    answer, taken = get("?code=c&state=right", headers={"Host": host})
    assert (answer.status_code, taken) == (404, [])


def test_two_hosts_are_none():
    answer, taken = raw("GET {path}?state=right HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\n\r\n")
    assert answer.startswith("HTTP/1.1 404")
    assert taken == []


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT", "OPTIONS", "DELETE"])
def test_answers_are_only_read_with_get(method):
    answer, taken = get("?code=c&state=right", method=method)
    assert (answer.status_code, answer.headers["Allow"], taken) == (405, "GET", [])


def test_a_visit_without_an_answer_is_told_so():
    answer, taken = get()
    assert (answer.status_code, taken) == (400, [])


@pytest.mark.parametrize("text", ["nonsense\r\n\r\n", "GET\r\n\r\n", "GET " + "x" * 2 * _MAX_REQUEST + "\r\n\r\n"])
def test_what_is_no_request_is_closed_without_an_answer(text):
    answer, taken = raw(text)
    assert (answer, taken) == ("", [])


def test_an_address_that_was_registered_beforehand_is_the_same_each_time_and_takes_the_right_state_alone(port):
    async def work():
        async with (
            listening(lambda query: "state=right" in query, port) as address,
            httpx.AsyncClient(timeout=240) as client,
        ):
            return address, [(await client.get(f"{address}?code=c&state={state}")).status_code for state in STATES]

    assert asyncio.run(work()) == (f"http://127.0.0.1:{port}/callback", [404, 200])


def test_a_known_address_whose_port_is_any_has_a_known_path():
    async def work():
        async with listening(lambda _query: False, 0) as address:
            return urlsplit(address)

    found = asyncio.run(work())
    assert found.path == "/callback"
    assert found.port


def test_nothing_listens_afterwards():
    async def work(address):
        return address

    address, _ = visit(work)
    with pytest.raises(httpx.ConnectError):
        httpx.get(address, trust_env=False, timeout=240)
