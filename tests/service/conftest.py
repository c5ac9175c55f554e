"""Fixtures of the service's room: an application that signs in, with its browser, at a service that listens."""

import base64
import hashlib
import html
import re
import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from rolloutlab.session import Session
from rolloutlab.settings import Embedding, Settings
from tests.conftest import make_service

if TYPE_CHECKING:
    from rolloutlab.policy.model import Policy

KEY, PASSCODE = "of-the-folder", "abcd-efgh-jkmn"
VERIFIER = "v" * 43
CALLBACK = "http://127.0.0.1:7777/callback"


@dataclass
class Clock:
    """Time as the service is told."""

    now: float = 1_700_000_000.0
    looks: list[Callable[[], object]] = field(default_factory=list)
    """What happens while the time is looked up, once each."""

    def __call__(self) -> float:
        while self.looks:
            self.looks.pop()()
        return self.now


@dataclass
class Visitor:
    """A client and the browser of whoever uses it. url: the service's origin."""

    url: str
    clock: Clock
    home: Path
    browser: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=240))

    @property
    def context(self) -> str:
        return f"{self.url}/context"

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.browser.get(f"{self.url}{path}", **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.browser.post(f"{self.url}{path}", **options)

    def registers(self, **params: Any) -> dict[str, Any]:
        """What a public client that renews is told when it registers."""
        asked = {
            "client_name": "a notebook",
            "redirect_uris": [CALLBACK],
            "grant_types": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_method": "none",
            **params,
        }
        answer = self.post("/oauth/register", json=asked)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def asks(self, client_id: str, **params: str | None) -> httpx.Response:
        """Opens the authorization address. None leaves a parameter out."""
        asked = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": CALLBACK,
            "code_challenge": challenge(VERIFIER),
            "code_challenge_method": "S256",
            "resource": self.context,
            "scope": "lab:read",
            "state": "s-1",
            **params,
        }
        return self.get("/oauth/authorize", params={name: value for name, value in asked.items() if value is not None})

    def decides(self, page: httpx.Response, **params: str) -> httpx.Response:
        """Sends the form of the consent page."""
        filled = {**hidden(page), "decision": "allow", "passcode": PASSCODE, **params}
        return self.post("/oauth/consent", data=filled, headers={"Origin": self.url})

    def code(self, client_id: str, **params: str | None) -> str:
        """The code of a request that the owner allows."""
        return parameters(self.decides(self.asks(client_id, **params)))["code"]

    def redeems(self, client_id: str | None, code: str, /, *, auth: Any = None, **params: str | None) -> httpx.Response:
        """Sends a code to the token endpoint."""
        asked = {
            "grant_type": "authorization_code",
            "client_id": client_id,
            "code": code,
            "code_verifier": VERIFIER,
            "redirect_uri": CALLBACK,
            "resource": self.context,
            **params,
        }
        filled = {name: value for name, value in asked.items() if value is not None}
        return self.post("/oauth/token", data=filled, auth=auth)

    def renews(self, client_id: str, token: str, **params: str) -> httpx.Response:
        """Sends a refresh token to the token endpoint."""
        filled = {"grant_type": "refresh_token", "client_id": client_id, "refresh_token": token, **params}
        return self.post("/oauth/token", data=filled)

    def signs_in(self, **params: str) -> dict[str, Any]:
        """The answer of the token endpoint for a client that was just registered, with its `client_id`."""
        client_id = self.registers()["client_id"]
        resource = {"resource": params["resource"]} if "resource" in params else {}
        answer = self.redeems(client_id, self.code(client_id, **params), **resource)
        assert answer.status_code == 200, answer.text
        return {"client_id": client_id, **answer.json()}

    def calls(self, method: str, token: str | None, params: Any = None, **options: Any) -> httpx.Response:
        """A message to the context server."""
        headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        return self.post("/context", json=message, headers=headers, **options)

    def models(self, token: str) -> httpx.Response:
        """A request to the API."""
        return self.get("/v1/models", headers={"Authorization": f"Bearer {token}"})


def _trusting(tls: tuple[Path, Path] | None) -> dict[str, Any]:
    """Options of a browser that trusts a certificate."""
    return {"verify": ssl.create_default_context(cafile=tls[0])} if tls else {}


def challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def hidden(page: httpx.Response) -> dict[str, str]:
    """The hidden fields of a form."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text)
    assert found, f"{page.status_code} {page.text}"
    return {name: html.unescape(value) for name, value in found}


def parameters(answer: httpx.Response) -> dict[str, str]:
    """What a redirect brings back to the client."""
    assert answer.status_code == 303, f"{answer.status_code} {answer.text}"
    return {name: value for name, (value,) in parse_qs(urlsplit(answer.headers["location"]).query).items()}


@pytest.fixture
def challenges() -> Callable[[httpx.Response], dict[str, str]]:
    """The parameters of the Bearer challenge of an answer."""

    def read(answer: httpx.Response) -> dict[str, str]:
        scheme, _, rest = answer.headers["www-authenticate"].partition(" ")
        assert scheme == "Bearer"
        return dict(re.findall(r'(\w+)="([^"]*)"', rest))

    return read


@pytest.fixture
def redirected() -> Callable[[httpx.Response], dict[str, str]]:
    """The parameters that a redirect brings back to the client."""
    return parameters


@pytest.fixture
def fields() -> Callable[[httpx.Response], dict[str, str]]:
    """The hidden fields of a page's form."""
    return hidden


@pytest.fixture(scope="session")
def certify(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """Makes files: a certificate for a name or an IP address, which signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def make(host: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
        numeric = host.replace(".", "").isdigit()
        meant = x509.IPAddress(ip_address(host)) if numeric else x509.DNSName(host)
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([meant]), critical=False)
            .sign(key, hashes.SHA256())
        )
        folder = tmp_path_factory.mktemp("certificate")
        (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        (folder / "key.pem").write_bytes(pem)
        return folder / "cert.pem", folder / "key.pem"

    return make


@pytest.fixture
def visits() -> Iterator[Callable[..., Visitor]]:
    """Sends somebody to a service that runs; options: of their browser."""
    browsers: list[httpx.Client] = []

    def begin(url: str, home: Path, clock: Clock | None = None, **options: Any) -> Visitor:
        browsers.append(httpx.Client(timeout=240, **{"verify": httpx.create_ssl_context()} | options))
        return Visitor(url, clock or Clock(), home, browsers[-1])

    yield begin
    for browser in browsers:
        browser.close()


@pytest.fixture(scope="session")
def parts(policy: "Policy", tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, ...]]:
    """What a service has besides who may use it: made once, since nothing here samples or trains."""
    from rolloutlab.engines.local import LocalEngine
    from rolloutlab.service.database import open_service_database
    from rolloutlab.service.endpoints.chat import Ledger
    from rolloutlab.service.job_queue import Jobs
    from rolloutlab.service.model_registry import Registry

    folder = tmp_path_factory.mktemp("parts")
    database = open_service_database(folder)
    engine = LocalEngine(policy)
    registry = Registry(database, folder, engine)
    jobs = Jobs(database, folder, registry, engine, pause=0.01)
    yield registry, engine, jobs, Ledger(database)
    for part in (jobs, engine, database):
        part.close()


@pytest.fixture
def visit(parts: tuple[Any, ...], visits: Callable[..., Visitor], tmp_path: Path) -> Iterator[Callable[..., Visitor]]:
    """Starts a service on a port and a folder of its own, and sends somebody there; options: of the authority.

    host: what it is called; it listens on 127.0.0.1 always. tls: files of a certificate and its key, for https.
    """
    import uvicorn

    from rolloutlab.service.app import make_app
    from rolloutlab.service.database import open_service_database
    from rolloutlab.service.listen import ListenAddress
    from rolloutlab.service.mcp.lab import LabTools
    from rolloutlab.service.oauth.server import AuthorizationServer

    closing: list[Callable[[], Any]] = []

    def begin(
        embedding: Embedding | None = None,
        host: str = "127.0.0.1",
        tls: tuple[Path, Path] | None = None,
        passcode: Callable[[], str] = lambda: PASSCODE,
        **options: Any,
    ) -> Visitor:
        listener = ListenAddress("127.0.0.1").listen(0)
        port = listener.getsockname()[1]
        clock, url = Clock(), ListenAddress(host, *(tls or ())).url(port)
        files = {"ssl_certfile": tls[0], "ssl_keyfile": tls[1]} if tls else {}
        settings = Settings(home=tmp_path, embedding=embedding)
        database, memory = open_service_database(tmp_path / "service"), LabTools(settings)
        authority = AuthorizationServer(url, database, b"a key", passcode, clock=clock, **options)
        app = make_app(*parts, KEY, {"policy": "tiny"}, authority, memory)
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=1, **files)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        visitor = visits(url, tmp_path, clock, **_trusting(tls))
        closing.extend([visitor.browser.close, lambda: setattr(server, "should_exit", True), thread.join])
        closing.extend([memory.close, database.close, listener.close])
        return visitor

    yield begin
    for close in closing:
        close()


@pytest.fixture
def visitor(visit: Callable[..., Visitor]) -> Visitor:
    """Somebody at a service of their own."""
    return visit()


@pytest.fixture(scope="module")
def trained_once(
    policy: "Policy", body: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], tuple[Path, str, Any]]:
    """The folder of a service that has stopped after so many jobs of one model, the model's id, and what it sampled."""

    @cache
    def make(jobs: int) -> tuple[Path, str, Any]:
        service = make_service(policy, tmp_path_factory.mktemp("trained") / "service")
        try:
            model = service.register()
            for _ in range(jobs):
                service.ended(service.call("POST", "/v1/preview/training-jobs", json=body(model.id))["id"])
            answer = service.chat(model="lab/first", seed=1).choices[0].logprobs
        finally:
            service.stop()
        return service.folder, str(model.id), answer

    return make


@pytest.fixture
def trained(trained_once: Callable[[int], tuple[Path, str, Any]], tmp_path: Path) -> Callable[..., Any]:
    """A copy of it for one test, where `start` begins; its folder, the model's, and what it sampled."""

    def make(jobs: int = 2) -> tuple[Path, Path, Any]:
        made, model, answer = trained_once(jobs)
        folder = shutil.copytree(made, tmp_path / "service")
        return folder, folder / "models" / model, answer

    return make


@pytest.fixture
def notebook_of() -> Iterator[Callable[..., Session]]:
    """A notebook's session on a service of this process."""
    sessions: list[Session] = []

    def make(service: Any) -> Session:
        sessions.append(Session(Settings(home=service.folder.parent, service=service.address), http=service.http))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()
