"""Somebody who is not trusted is asked once, briefly, and only where it may lead us."""

import asyncio
import gzip
import socket
import threading
import tracemalloc
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rolloutlab.api.http.ssrf import fetch_untrusted
from rolloutlab.errors import BrokenOffError, ServiceError, UnreachableError


@pytest.fixture
def served():
    """Answers by what the test puts into `answer`, and counts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.seen.append((self.path, dict(self.headers)))
            self.server.answer(self)

        do_POST = do_GET

        def log_message(self, *_told):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen, server.release = [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield server
    server.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


def told(status, headers=(), body=b""):
    def answer(handler):
        handler.send_response(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def asked(url, method="GET", is_allowed_ip=lambda address: True, max_bytes=1000, timeout=20.0, **more):
    return asyncio.run(
        fetch_untrusted(
            method, url, headers={}, is_allowed_ip=is_allowed_ip, max_bytes=max_bytes, timeout=timeout, **more
        )
    )


INTERNAL = "internal.example"


def looked_up(host, *_asked, **_how):
    """What the resolver of this machine knows: one name of a private network."""
    if host != INTERNAL:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", 80))]


def test_an_answer_is_given_whatever_its_status(served):
    served.answer = told(418, [("WWW-Authenticate", "A"), ("WWW-Authenticate", "B")], b"short")
    found = asked(f"{served.url}/x", "POST", content=b"a=1")
    assert (found.status, found.body) == (418, b"short")
    assert [value for name, value in found.headers if name.lower() == "www-authenticate"] == ["A", "B"]


def test_a_redirect_is_an_answer_and_not_followed(served):
    served.answer = told(302, [("Location", f"{served.url}/elsewhere")])
    assert asked(f"{served.url}/x").status == 302
    assert [path for path, _ in served.seen] == ["/x"]


def test_no_more_than_allowed_is_read(served):
    served.answer = told(200, body=b"x" * 5000)
    with pytest.raises(ServiceError, match="was not read"):
        asked(served.url)


@pytest.mark.parametrize("kind", ["gzip", "deflate"])
def test_what_is_packed_is_unpacked(served, kind):
    pack = gzip.compress if kind == "gzip" else zlib.compress
    served.answer = told(200, [("Content-Encoding", kind)], pack(b"found " * 100))
    assert asked(served.url).body == b"found " * 100


@pytest.mark.long
def test_what_is_packed_small_and_unpacks_large_is_not_read_nor_unpacked(served):
    packed = gzip.compress(bytes(1 << 30), compresslevel=1)  # 1 GiB
    served.answer = told(200, [("Content-Encoding", "gzip")], packed)
    tracemalloc.start()
    try:
        with pytest.raises(ServiceError, match="was not read"):
            asked(served.url, max_bytes=100_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


@pytest.mark.parametrize("kind", ["gzip, gzip", "br", "zstd", "x\x1b[2J"])
def test_what_is_packed_in_a_way_that_nobody_asked_for_is_not_read(served, kind):
    served.answer = told(200, [("Content-Encoding", kind)], gzip.compress(gzip.compress(b"x")))
    with pytest.raises(ServiceError, match="content encoding"):
        asked(served.url)


def test_what_cannot_be_unpacked_is_told(served):
    served.answer = told(200, [("Content-Encoding", "gzip")], b"not packed at all")
    with pytest.raises(ServiceError, match="could not be decompressed"):
        asked(served.url)


def test_an_answer_that_trickles_in_is_given_up(served):
    def trickle(handler):
        handler.send_response(200)
        handler.end_headers()
        while not served.release.wait(0.01):
            try:
                handler.wfile.write(b"x")
            except OSError:  # nobody listens any more
                return

    served.answer = trickle
    with pytest.raises(BrokenOffError, match=r"did not answer in 0\.2 s"):
        asked(served.url, timeout=0.2)


def test_a_stream_of_events_is_not_waited_for(served):
    def endless(handler):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        handler.wfile.flush()
        served.release.wait(240)

    served.answer = endless
    assert asked(served.url).status == 200


def test_an_answer_that_takes_too_long_is_given_up(served):
    served.answer = lambda handler: served.release.wait(240)
    with pytest.raises(BrokenOffError, match=r"did not answer in 0\.05 s"):
        asked(served.url, timeout=0.05)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_address_that_is_connected_to_is_checked_whether_it_is_written_or_looked_up(served, host):
    looked_at = []
    with pytest.raises(UnreachableError, match="must not send requests to"):
        asked(served.url.replace("127.0.0.1", host), is_allowed_ip=looked_at.append)
    assert "127.0.0.1" in looked_at
    assert served.seen == []


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("2130706433", "2130706433 is not a host name"),  # aiohttp 3.12 connects to it without asking
        ("127.1", r"127\.1 is not a host name"),
        ("0x7f000001", "must not send requests to"),
    ],
)
def test_an_address_written_in_another_way_is_checked_too(served, host, why):
    with pytest.raises(UnreachableError, match=why):
        asked(served.url.replace("127.0.0.1", host), is_allowed_ip=lambda address: False)
    assert served.seen == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_proxy_is_asked_for_this_machine(served, monkeypatch, host):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    served.answer = told(200)
    assert asked(served.url.replace("127.0.0.1", host)).status == 200


def test_a_server_elsewhere_is_asked_through_the_proxy_of_the_environment(served, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", served.url)
    served.answer = told(200, body=b"by the proxy")
    assert asked("http://192.0.2.7/x", is_allowed_ip=lambda address: address == "192.0.2.7").body == b"by the proxy"
    assert [path for path, _ in served.seen] == ["http://192.0.2.7/x"]


def test_what_may_not_be_asked_is_not_asked_through_a_proxy_either(served, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", served.url)
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    served.answer = told(200)
    for url in ("http://10.0.0.7/x", f"http://{INTERNAL}/x"):
        with pytest.raises(UnreachableError, match="must not send requests to"):
            asked(url, is_allowed_ip=lambda address: not address.startswith("10."))
    assert asked(f"http://{INTERNAL}/x").status == 200
    with pytest.raises(UnreachableError, match="no host has that name"):
        asked("http://nowhere.invalid/x")
    assert [path for path, _ in served.seen] == [f"http://{INTERNAL}/x"]


def test_the_address_that_answered_is_told(served):
    served.answer = told(200)
    assert asked(served.url).addresses == ("127.0.0.1",)
    assert "127.0.0.1" in asked(served.url.replace("127.0.0.1", "localhost")).addresses


def test_a_host_that_has_no_address_is_told():
    with pytest.raises(UnreachableError, match="no host has that name"):
        asked("https://nowhere.invalid/")


@pytest.mark.parametrize(
    "host", ["a..b", f"{'a' * 64}.example", "xn--a.example", "xn--zzzzzz99999.example", "300.1.1.1", "["]
)
def test_a_host_that_none_can_be_called_is_an_error_of_ours_that_says_no_secret(host):
    with pytest.raises(UnreachableError) as error:
        asked(f"https://{host}/token?code=s3cret", "POST", content=b"code=s3cret")
    assert "s3cret" not in str(error.value)
