"""Client ID metadata documents: fetched with care, believed only where they are consistent."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rolloutlab.errors import InputError
from rolloutlab.service.oauth.client_documents import freshness_lifetime, is_public, notebook_document

CALLBACK = "http://127.0.0.1:7777/callback"


@dataclass
class Host:
    """A web server of a client on this machine. pages: by path, a status, headers and a body. url: its origin."""

    url: str
    pages: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def serves(self, path: str = "/client.json", /, **metadata: Any) -> str:
        """Puts a document there; the client's id."""
        full = {"client_id": f"{self.url}{path}", "client_name": "a hosted client", "redirect_uris": [CALLBACK]}
        self.puts(path, self._json({name: value for name, value in {**full, **metadata}.items() if value is not None}))
        return f"{self.url}{path}"

    def puts(self, path: str, body: bytes, status: int = 200, **headers: str) -> None:
        self.pages[path] = (status, {name.replace("_", "-"): value for name, value in headers.items()}, body)

    @staticmethod
    def _json(value: Any) -> bytes:
        return json.dumps(value).encode()


@pytest.fixture
def host(certify, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    certificate = certify("localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    found: list[Host] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found[0].asked.append(self.path)
            status, headers, body = found[0].pages.get(self.path, (404, {}, b""))
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:  # it has heard enough
                self.close_connection = True

        def log_message(self, *_said: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*certificate)
    server.socket = served.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_said: None  # who hangs up is no error of this server
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    found.append(Host(f"https://localhost:{server.server_port}"))
    yield found[0]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def visitor(visit, host):
    """Somebody at a service that may ask this machine, where the client's web server is."""
    return visit(reachable=lambda _address: True)


@pytest.mark.clause("A12", "I6")
def test_a_client_with_a_document_signs_in(visitor, host):
    client_id = host.serves(grant_types=["authorization_code", "refresh_token"])
    page = visitor.asks(client_id)
    assert "a hosted client" in page.text
    assert client_id in page.text
    tokens = visitor.redeems(client_id, visitor.code(client_id)).json()
    assert visitor.calls("ping", tokens["access_token"]).status_code == 200
    assert visitor.renews(client_id, tokens["refresh_token"]).status_code == 200


@pytest.mark.clause("D4", "D5", "D6", "D7", "D8")
def test_what_a_document_may_hold_besides_is_optional_and_no_address_in_it_is_fetched(visitor, host):
    links = {"client_uri": f"{host.url}/about", "logo_uri": f"{host.url}/logo.png"}
    usual = {"grant_types": ["authorization_code"], "response_types": ["code"], "token_endpoint_auth_method": "none"}
    page = visitor.asks(host.serves(**links, **usual))
    assert page.status_code == 200
    assert "logo.png" not in page.text
    assert host.asked == ["/client.json"]


@pytest.mark.clause("N16")
def test_a_client_that_only_answers_on_this_machine_should_be_warned_of(visitor, host):
    warning = "Any program on this computer can claim to be this application"
    assert warning in visitor.asks(host.serves()).text
    elsewhere = "https://client.example/callback"
    client_id = host.serves("/other.json", redirect_uris=[elsewhere])
    assert warning not in visitor.asks(client_id, redirect_uri=elsewhere).text


@pytest.mark.clause("I8")
def test_the_redirect_uri_must_be_in_the_document(visitor, host):
    answer = visitor.asks(host.serves(), redirect_uri="http://127.0.0.1:7778/callback")
    assert answer.status_code == 400
    assert "location" not in answer.headers


@pytest.mark.clause("D1", "D2", "D3", "D8", "D9", "I7", "I9", "O9")
@pytest.mark.parametrize(
    "metadata",
    [
        {"client_id": "https://client.example/other.json"},
        {"client_id": None},
        {"client_name": None},
        {"client_name": 7},
        {"redirect_uris": None},
        {"redirect_uris": []},
        {"redirect_uris": ["http://evil.example/callback"]},
        {"token_endpoint_auth_method": "client_secret_post"},
        {"token_endpoint_auth_method": "private_key_jwt"},
        {"client_secret": "known to all"},
    ],
)
def test_a_document_must_equal_its_address_and_have_the_required_fields(visitor, host, metadata):
    answer = visitor.asks(host.serves(**metadata))
    assert answer.status_code == 400
    assert "invalid_client" in answer.text
    assert "location" not in answer.headers


@pytest.mark.clause("I9", "O9")
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'"x"', b"\xff\xfe", b"{" * 2000])
def test_a_document_must_be_valid_json(visitor, host, body):
    host.puts("/client.json", body)
    answer = visitor.asks(f"{host.url}/client.json")
    assert answer.status_code == 400
    assert "invalid_client" in answer.text


@pytest.mark.clause("N15")
def test_a_redirect_of_a_document_is_not_followed(visitor, host):
    target = host.serves("/real.json", client_id=f"{host.url}/client.json")
    host.puts("/client.json", b"", 302, Location=target)
    assert visitor.asks(f"{host.url}/client.json").status_code == 400
    assert host.asked == ["/client.json"]


@pytest.mark.clause("N15")
def test_a_document_of_a_megabyte_is_refused(visitor, host):
    host.serves(client_name="x" * 1_000_000)
    answer = visitor.asks(f"{host.url}/client.json")
    assert answer.status_code == 400
    assert "a response of more than 64 KiB was not read" in answer.text


def test_a_document_that_is_not_there_or_whose_host_lies_is_refused(visitor, host):
    assert visitor.asks(f"{host.url}/none.json").status_code == 400
    host.serves()
    lied = host.url.replace("localhost", "127.0.0.1")  # which is not in its certificate
    assert visitor.asks(f"{lied}/client.json").status_code == 400
    assert host.asked == ["/none.json"]


@pytest.mark.clause("D1")
@pytest.mark.parametrize(
    "client_id",
    [
        "https://client.example",
        "https://client.example/",
        "https://client.example/a/../b",
        "https://me@client.example/c",
        "https://client.example/c#d",
        "https://client.example:port/c",
        "https:///c",
    ],
)
def test_a_client_id_must_be_an_https_address_with_a_path(visitor, host, client_id):
    assert visitor.asks(client_id).status_code == 400
    assert not host.asked


@pytest.mark.clause("N15")
@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fd00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
    ],
)
def test_server_side_request_forgery_is_considered_at_connection_time(visit, host, monkeypatch, address):
    real = socket.getaddrinfo

    def resolve(name: Any, port: int, *asked: Any, **more: Any) -> list[Any]:
        """No name in the world has these addresses, so that one is made up."""
        if name != "client.example":
            return real(name, port, *asked, **more)
        return [(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    assert not is_public(address)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    host.serves()
    answer = visit().asks(f"{host.url.replace('localhost', 'client.example')}/client.json")
    assert answer.status_code == 400
    assert "must not send requests to" in answer.text
    assert not host.asked


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_public_addresses_are_public(address):
    assert is_public(address)


@pytest.mark.clause("N15")
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "2130706433", "127.1"])
def test_a_document_on_this_machine_is_not_fetched(visit, host, name):
    visitor = visit()
    host.serves()
    url = host.url.replace("localhost", name)
    assert visitor.asks(f"{url}/client.json").status_code == 400
    assert not host.asked


def test_a_host_whose_name_cannot_be_one_is_told(visitor):
    answer = visitor.asks(f"https://{'x' * 70}.example/client.json")
    assert answer.status_code == 400
    assert "cannot be fetched" in answer.text


@pytest.mark.clause("I10")
def test_a_document_should_be_kept_as_long_as_its_headers_say(visitor, host):
    client_id = host.serves()
    _, _, body = host.pages["/client.json"]
    host.puts("/client.json", body, Cache_Control="public, max-age=60")
    for _ in range(3):
        visitor.asks(client_id)
    assert len(host.asked) == 1
    visitor.clock.now += 61
    visitor.asks(client_id)
    assert len(host.asked) == 2


def test_a_document_with_two_headers_of_its_cache_is_kept_as_both_allow(visitor, host):
    client_id = host.serves()
    _, _, body = host.pages["/client.json"]
    host.puts("/client.json", body, Cache_Control="no-store", cache_control="max-age=60")
    for _ in range(2):
        visitor.asks(client_id)
    assert len(host.asked) == 2


def test_a_refusal_is_not_kept(visitor, host):
    host.puts("/client.json", b"{}", Cache_Control="max-age=60")
    assert visitor.asks(f"{host.url}/client.json").status_code == 400
    assert visitor.asks(host.serves()).status_code == 200


@pytest.mark.clause("I10")
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0),
        ({"cache-control": "max-age=60"}, 60),
        ({"cache-control": 'Public, Max-Age="60"'}, 60),
        ({"cache-control": "max-age=99999999"}, 86400),
        ({"cache-control": "max-age=-1"}, 0),
        ({"cache-control": "no-store, max-age=60"}, 0),
        ({"cache-control": "no-cache"}, 0),
        ({"expires": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90),
        ({"expires": "0"}, 0),
        ({"cache-control": "max-age=5", "expires": "Thu, 01 Jan 1970 00:01:40 GMT"}, 5),
    ],
)
def test_freshness_is_read_from_the_headers(headers, seconds):
    assert freshness_lifetime(headers, now=10.0) == seconds


@pytest.mark.clause("D2")
def test_the_document_that_we_print_is_one_that_we_take(visitor, host):
    url = f"{host.url}/rolloutlab.json"
    host.serves("/rolloutlab.json", **notebook_document(url, [CALLBACK]))
    assert visitor.asks(url).status_code == 200


@pytest.mark.parametrize(
    ("url", "redirect"), [("http://a.example/c", CALLBACK), ("https://a.example/c", "http://b.example")]
)
def test_a_document_that_nobody_would_take_is_not_printed(url, redirect):
    with pytest.raises(InputError):
        notebook_document(url, [redirect])
