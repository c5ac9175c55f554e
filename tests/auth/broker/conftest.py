"""A person at a browser, and what the broker asks such a person."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from rolloutlab.auth.broker.broker import Broker
from rolloutlab.auth.broker.login import Login
from rolloutlab.auth.broker.ways import Way
from rolloutlab.auth.consent import Pending, Question
from rolloutlab.http import Http

SERVER = "https://mcp.example/mcp"


class Person:
    """Sees each sign-in, and does `acts(login)` about it on the loop; `seen` is how each stood, one after the other."""

    def __init__(self, way: Way, acts: Callable[[Login], Any]) -> None:
        self.way = way
        self.logins: list[Login] = []
        self.seen: list[str] = []
        self._acts = acts
        self._acting: list[asyncio.Task[Any]] = []

    def show(self, login: Login) -> None:
        self.logins.append(login)
        login.listen(lambda: self._changed(login))
        if self.way is Way.PAGE:
            self._do(login)

    def tick(self) -> None:
        """Everything is seen already."""

    def _changed(self, login: Login) -> None:
        self.seen.append(login.standing.value)
        if login.url and self.way is not Way.PAGE:
            self._do(login)

    def _do(self, login: Login) -> None:
        if asyncio.iscoroutine(work := self._acts(login)):
            self._acting.append(asyncio.ensure_future(work))


class Desk:
    """Where a test signs in: requests that are prepared, and the person who is asked."""

    def __init__(self, http: Http, places: list) -> None:
        self.http = http
        self.places = places
        self.redirects: list[str] = []
        self.person: Person
        self.broker: Broker

    def prepare(self, state: str = "right", url: str | None = None) -> Callable[[str], Any]:
        async def prepared(redirect: str) -> Pending:
            self.redirects.append(redirect)
            question = Question(SERVER, "id.example", SERVER, ("lab:read", "lab:write"), "rolloutlab")
            told = url or f"https://id.example/authorize?{urlencode({'redirect_uri': redirect, 'state': state})}"
            return Pending(told, state, question)

        return prepared

    def ask(self, acts: Callable[[Login], Any], way: Way = Way.LOOPBACK, **options: Any) -> Broker:
        """A broker whose person does that."""
        self.person = Person(way, acts)
        self.broker = Broker(self.person, places=self.places, **options)
        return self.broker

    def sign_in(
        self, acts: Callable[[Login], Any], way: Way = Way.LOOPBACK, port: int | None = None, **options: Any
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
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.get(f"{self.redirects[-1]}?{query}")


@pytest.fixture
def port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def http() -> Iterator[Http]:
    http = Http()
    yield http
    http.close()


@pytest.fixture
def desk(http: Http, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(http, [tmp_path_factory.mktemp("s") / "own"])
