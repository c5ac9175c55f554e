"""Which requests go through a proxy of the environment, seen from the proxy."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.http.transport import proxy_of
from rolloutlab.errors import UnreachableError


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for kind in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{kind}_proxy", raising=False)
        monkeypatch.delenv(f"{kind.upper()}_PROXY", raising=False)


@pytest.fixture
def served():
    """A server that answers JSON, and knows for what it was asked, and with which credentials for a proxy."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.seen.append((self.path, self.headers.get("Proxy-Authorization")))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_told):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen, server.port = [], server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def http():
    http = HttpClient(backoff=0)
    yield http
    http.close()


def test_a_service_elsewhere_is_asked_through_the_proxy_with_its_credentials(served, http, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://me:s3cret@127.0.0.1:{served.port}")
    assert http.run(http.request("GET", "http://train.example/v1/models")) == {}
    assert served.seen == [("http://train.example/v1/models", "Basic bWU6czNjcmV0")]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_is_asked_directly(served, http, monkeypatch, host):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert http.run(http.request("GET", f"http://{host}:{served.port}/x")) == {}
    assert [path for path, _ in served.seen] == ["/x"]


def test_where_a_key_goes_unencrypted_no_proxy_carries_it(served, http, monkeypatch):
    look_up = socket.getaddrinfo

    def mine(host, *given, **named):
        return look_up("127.0.0.1" if host == "mine.internal" else host, *given, **named)

    monkeypatch.setattr("socket.getaddrinfo", mine)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{served.port}")
    url = f"http://mine.internal:{served.port}"
    http.run(http.request("GET", f"{url}/before"))  # without a key: through the proxy
    with pytest.warns(UserWarning, match="unencrypted"):
        http.unencrypted.allow(url)
    http.run(http.request("GET", f"{url}/models", token="of-this-test"))
    assert [path for path, _ in served.seen] == [f"{url}/before", "/models"]


def test_a_proxy_that_does_not_answer_is_named_without_its_credentials(http, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "me:s3cret@127.0.0.1:9")
    with pytest.raises(UnreachableError) as refused:
        http.run(http.request("GET", "http://train.example/"))
    said = "nothing answers at http://train.example through the proxy 127.0.0.1:9: the connection was refused"
    assert refused.value.message == said


@pytest.mark.parametrize(
    ("url", "no_proxy", "proxy"),
    [
        ("https://train.example/v1", "", "http://other.example:3128"),
        ("http://train.example/v1", "", "http://proxy.example:3128"),
        ("http://train.example/v1", "train.example", None),
        ("http://a.train.example/v1", ".train.example", None),
        ("http://train.example:8000/v1", "train.example:8000", None),
        ("http://train.example/v1", "*", None),
        ("http://127.0.0.1:8000/v1", "", None),
        ("http://127.9.9.9/v1", "", None),
        ("http://[::1]:8000/v1", "", None),
        ("http://localhost/v1", "", None),
        ("http://me.localhost/v1", "", None),
    ],
)
def test_the_environment_says_which_proxy_and_for_whom_none(monkeypatch, url, no_proxy, proxy):
    monkeypatch.setenv("http_proxy", "proxy.example:3128")
    monkeypatch.setenv("HTTPS_PROXY", "http://other.example:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy_of(url) == proxy


def test_a_proxy_for_all_is_one_for_both_and_one_of_another_kind_is_an_error(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    assert proxy_of("https://train.example/") == proxy_of("http://train.example/") == "http://proxy.example:3128"
    monkeypatch.setenv("HTTPS_PROXY", "socks5://proxy.example")
    with pytest.raises(UnreachableError, match="not a URL that begins with http://") as wrong:
        proxy_of("https://train.example/")
    assert "NO_PROXY=train.example" in wrong.value.hint
