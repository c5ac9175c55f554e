"""A person at a browser, and what the broker asks such a person."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

import rolloutlab
from rolloutlab.api.http.client import HttpClient
from rolloutlab.auth.prompt import AuthorizationRequest, Question
from rolloutlab.auth.redirect.broker import Broker
from rolloutlab.auth.redirect.ipc import folders, listening
from rolloutlab.auth.redirect.login import Login
from rolloutlab.auth.redirect.route import RedirectRoute
from tests.browser.jupyter import listens

SERVER = "https://mcp.example/mcp"


class Person:
    """Sees each sign-in, and does `acts(login)` about it on the loop; `seen` is how each stood, one after the other."""

    def __init__(self, way: RedirectRoute, acts: Callable[[Login], Any]) -> None:
        self.way = way
        self.logins: list[Login] = []
        self.seen: list[str] = []
        self._acts = acts
        self._acting: list[asyncio.Task[Any]] = []

    def show(self, login: Login) -> None:
        self.logins.append(login)
        login.listen(lambda: self._changed(login))
        if self.way is RedirectRoute.PAGE:
            self._do(login)

    def tick(self) -> None:
        """Everything is seen already."""

    def _changed(self, login: Login) -> None:
        self.seen.append(login.standing.value)
        if login.url and self.way is not RedirectRoute.PAGE:
            self._do(login)

    def _do(self, login: Login) -> None:
        if asyncio.iscoroutine(work := self._acts(login)):
            self._acting.append(asyncio.ensure_future(work))


class Desk:
    """Where a test signs in: requests that are prepared, and the person who is asked."""

    def __init__(self, http: HttpClient, places: list) -> None:
        self.http = http
        self.places = places
        self.redirects: list[str] = []
        self.person: Person
        self.broker: Broker

    def prepare(self, state: str = "right", url: str | None = None) -> Callable[[str], Any]:
        async def prepared(redirect: str) -> AuthorizationRequest:
            self.redirects.append(redirect)
            question = Question(SERVER, "id.example", SERVER, ("lab:read", "lab:write"), "rolloutlab")
            told = url or f"https://id.example/authorize?{urlencode({'redirect_uri': redirect, 'state': state})}"
            return AuthorizationRequest(told, state, question)

        return prepared

    def ask(self, acts: Callable[[Login], Any], way: RedirectRoute = RedirectRoute.LOOPBACK, **options: Any) -> Broker:
        """A broker whose person does that."""
        self.person = Person(way, acts)
        self.broker = Broker(self.person, places=self.places, **options)
        return self.broker

    def sign_in(
        self,
        acts: Callable[[Login], Any],
        way: RedirectRoute = RedirectRoute.LOOPBACK,
        port: int | None = None,
        **options: Any,
    ) -> dict[str, str]:
        """What the broker answers to a flow."""
        return dict(self.http.run(self.ask(acts, way, **options)(SERVER, self.prepare(), port)))

    @staticmethod
    async def opened(login: Login) -> None:
        """Wait until there is something to open."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        login.listen(lambda: loop.call_soon_threadsafe(changed.set))
        while not login.url:
            await changed.wait()
            changed.clear()

    async def come_back(self, query: str) -> httpx.Response:
        """A browser ends on the redirect URI with this query."""
        async with httpx.AsyncClient(trust_env=False, timeout=240) as client:
            return await client.get(f"{self.redirects[-1]}?{query}")


@pytest.fixture
def port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def http() -> Iterator[HttpClient]:
    http = HttpClient()
    yield http
    http.close()


@pytest.fixture
def desk(http: HttpClient, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(http, [tmp_path_factory.mktemp("s") / "own"])


LONGEST_START = 240.0
TOKEN = "of-the-jupyter-server"
CONFIG = Path(__file__).parent.parent.parent / "jupyter-config"
OPTIONS = (
    "--no-browser",
    "--ip=127.0.0.1",
    "--port=0",
    f"--IdentityProvider.token={TOKEN}",
    "--ServerApp.base_url=/user/jo/",
    "--ServerApp.allow_root=True",
    "--ServerApp.log_level=DEBUG",
)


class JupyterServer:
    """url: where it is, with its base_url and a slash. log: all it has said. places: where it looks for sockets."""

    token = TOKEN

    def __init__(self, folder: Path) -> None:
        runtime, self._log = folder / "run", folder / "log"
        runtime.mkdir(mode=0o700)
        self.places = folders({"XDG_RUNTIME_DIR": str(runtime)})[:1]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
        own = {f"JUPYTER_{name.upper()}_DIR": str(folder / name) for name in ("config", "data", "runtime")}
        own |= {"JUPYTER_CONFIG_PATH": str(CONFIG), "XDG_RUNTIME_DIR": str(runtime), "JUPYTER_PREFER_ENV_PATH": "0"}
        own["PYTHONPATH"] = str(Path(rolloutlab.__file__).parent.parent)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jupyter_server", *OPTIONS, f"--ServerApp.root_dir={folder}"],
                env={**kept, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        published = folder / "runtime" / f"jpserver-{self._process.pid}.json"
        end = time.monotonic() + LONGEST_START
        while not (published.exists() and (text := published.read_text()) and listens(json.loads(text)["port"])):
            assert self._process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.05)
        self.url = json.loads(text)["url"]

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def origin(self) -> str:
        return self.url.removesuffix("/user/jo/")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(LONGEST_START)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    server = JupyterServer(tmp_path_factory.mktemp("j"))
    yield server
    server.stop()


@pytest.fixture
def kernel(server: JupyterServer) -> Iterator[Callable[..., AbstractContextManager[list]]]:
    """Something that waits, in this process, for messages under a secret; gives the messages that have come."""
    http = HttpClient()

    @contextmanager
    def wait(secret: str, answer: Mapping[str, Any]) -> Iterator[list]:
        heard: list[dict] = []
        ready, over = Event(), Event()

        async def work() -> None:
            async with listening(secret, lambda message: heard.append(message) or answer, server.places):
                ready.set()
                await asyncio.to_thread(over.wait)

        waiting = Thread(target=lambda: http.run(work()))
        waiting.start()
        assert ready.wait(LONGEST_START)
        yield heard
        over.set()
        waiting.join()

    yield wait
    http.close()


@pytest.fixture
def browser() -> Iterator[httpx.Client]:
    """A browser without any cookie."""
    with httpx.Client(trust_env=False, timeout=240) as client:
        yield client


@pytest.fixture
def page(server: JupyterServer, browser: httpx.Client) -> httpx.Client:
    """A browser that is signed in at the Jupyter server, and says what a page of it says."""
    answer = browser.get(f"{server.url}login", params={"token": TOKEN}, follow_redirects=True)
    assert answer.is_success or answer.status_code == 404, answer.status_code
    browser.headers["Origin"] = server.origin
    browser.headers["X-XSRFToken"] = browser.cookies["_xsrf"]
    return browser
