"""Where the service is reached: on this machine over http, from others over https alone."""

import socket

import httpx
import pytest

from rolloutlab.cli.commands import main
from rolloutlab.errors import InputError
from rolloutlab.service.listen import ListenAddress


@pytest.fixture
def refused(tmp_path, capsys):
    """What `rolloutlab serve` says that will not serve."""

    def say(*options: str) -> tuple[str, str]:
        assert main(["serve", "--home", str(tmp_path), *options]) == 2
        message, hint = capsys.readouterr().err.strip().split("\n")
        return message, hint.removeprefix("  -> ")

    return say


@pytest.mark.parametrize("host", ["lab.example", "192.0.2.7", "127.0.0.2", "[2001:db8::7]"])
def test_a_host_that_others_reach_needs_a_certificate_and_its_key(refused, host):
    message, hint = refused("--host", host)
    assert "reachable from other machines" in message
    assert hint == f"rolloutlab serve --host {host.strip('[]')} --tls-cert cert.pem --tls-key key.pem"


def test_a_host_may_be_written_in_capitals_as_some_machines_call_themselves(certify):
    files = certify("lab.example")
    assert ListenAddress("Lab.Example", *files).url(8000) == ListenAddress("lab.example", *files).url(8000)


@pytest.mark.parametrize("given", ["--tls-cert", "--tls-key"])
def test_a_certificate_without_its_key_is_refused_also_on_this_machine(refused, given):
    message, hint = refused(given, "mine.pem")
    assert "go together" in message
    assert hint.startswith("rolloutlab serve --host 127.0.0.1 --tls-cert")
    assert "mine.pem" in hint


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "lab.example/x", "jo@lab.example", "lab.example:80"])
def test_what_no_address_can_name_is_no_host(refused, host):
    assert "not a host name or address that a client can connect to" in refused("--host", host)[0]


def test_files_that_are_no_certificate_and_key_are_told_before_anything_is_loaded(refused, certify, tmp_path):
    (certificate, _), (_, key) = certify("127.0.0.1"), certify("127.0.0.1")
    for given in (tmp_path / "none.pem", key):
        message, hint = refused("--tls-cert", str(certificate), "--tls-key", str(given))
        assert "not a certificate and its unencrypted key" in message
        assert hint == f"openssl x509 -noout -subject -dates -in {certificate}"


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_a_host_that_is_not_of_this_machine_is_told(certify, host):
    with pytest.raises(InputError, match="not a host of this machine") as error:
        ListenAddress(host, *certify(host)).listen(0)
    assert error.value.hint.startswith("rolloutlab serve --host")
    assert "cert.pem" in error.value.hint


def test_an_answer_in_pieces_waits_for_no_acknowledgement_of_the_first():
    with (
        ListenAddress().listen(0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_whole_sign_in_over_https(visit, certify):
    visitor = visit(tls=certify("127.0.0.1"))
    assert visitor.url.startswith("https://127.0.0.1:")
    answer = visitor.calls("ping", None)
    resource = answer.headers["www-authenticate"].partition('resource_metadata="')[2].partition('"')[0]
    found = visitor.browser.get(resource).json()
    assert found["resource"] == visitor.context
    assert found["authorization_servers"] == [visitor.url]
    metadata = visitor.get("/.well-known/oauth-authorization-server").json()
    assert all(metadata[name].startswith(f"{visitor.url}/oauth/") for name in metadata if name.endswith("_endpoint"))
    tokens = visitor.signs_in()
    assert visitor.calls("ping", tokens["access_token"]).status_code == 200
    renewed = visitor.renews(tokens["client_id"], tokens["refresh_token"]).json()
    assert visitor.calls("ping", renewed["access_token"]).status_code == 200


def test_over_https_the_cookie_is_sent_over_https_alone(visit, certify):
    visitor = visit(tls=certify("127.0.0.1"))
    page = visitor.asks(visitor.registers()["client_id"])
    assert "; secure" in page.headers["set-cookie"].lower()


def test_where_https_is_served_http_is_not_answered(visit, certify):
    visitor = visit(tls=certify("127.0.0.1"))
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(visitor.url.replace("https:", "http:"), timeout=240)


@pytest.fixture
def elsewhere(visit, certify):
    """Asks a service that is called lab.example, with some Host."""
    visitor = visit(host="lab.example", tls=certify("lab.example"))
    _, _, port = visitor.url.rpartition(":")

    def ask(path: str, host: str = "lab.example", **headers: str) -> httpx.Response:
        return visitor.browser.get(
            f"https://127.0.0.1:{port}{path}",
            headers={"Host": f"{host}:{port}", **headers},
            extensions={"sni_hostname": "lab.example"},
        )

    return ask


def test_a_service_for_others_is_asked_by_its_own_name_alone(elsewhere):
    metadata = elsewhere("/.well-known/oauth-protected-resource/context").json()
    assert metadata["resource"].startswith("https://lab.example:")
    for other in ("127.0.0.1", "localhost", "evil.example", "www.lab.example", "lab.example.evil.example"):
        assert elsewhere("/.well-known/oauth-protected-resource/context", other).status_code == 400
    assert elsewhere("/context", Authorization="Bearer none").status_code == 401


def test_a_service_for_others_tells_strangers_nothing_of_what_it_runs(elsewhere):
    assert elsewhere("/v1/health").json() == {"status": "ok"}
    assert elsewhere("/openapi.json").status_code == 404
    assert elsewhere("/v1/models").status_code == 401
