"""Signing in where there is only text, at a terminal of the test's own."""

import asyncio
import os
import re
import termios
from collections.abc import Iterator

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.auth.prompt import AuthorizationRequest, Question
from rolloutlab.auth.redirect.broker import Broker
from rolloutlab.errors import SignInError
from rolloutlab.widgets.login.console import PASTE, ConsoleFrontEnd

SERVER = "https://mcp.example/mcp"
ANSWER = {"code": "c", "state": "right"}


class Terminal:
    """A terminal, what was printed on it, and what a person types there."""

    def __init__(self) -> None:
        self.keyboard, self._own = os.openpty()
        self.printed: list[str] = []
        self.http = HttpClient()

    def open(self):
        return os.fdopen(os.dup(self._own), "rb", buffering=0)

    @property
    def shows_what_is_typed(self) -> bool:
        return bool(termios.tcgetattr(self._own)[3] & termios.ECHO)

    @property
    def link(self) -> str:
        return re.search(r"https://id\.example\S+", "\n".join(self.printed))[0]

    def sign_in(self, acts, terminal=True, **options) -> dict[str, str]:
        """Sign in; once it is asked for an address, the person does that."""
        front_end = ConsoleFrontEnd(self.printed.append, self.open if terminal else None)
        broker = Broker(front_end, **options)
        waiting = [acts]

        async def prepare(redirect: str) -> AuthorizationRequest:
            question = Question(SERVER, "id.example", SERVER, ("lab:read",), "rolloutlab")
            return AuthorizationRequest(f"https://id.example/authorize?redirect={redirect}", "right", question)

        def tick() -> None:
            broker.tick()
            asked = not self.shows_what_is_typed if terminal else self.printed
            if waiting and asked:
                waiting.pop()(self)

        return dict(self.http.run(broker(SERVER, prepare), tick, 0.01))

    def type(self, text: str) -> None:
        os.write(self.keyboard, text.encode() + b"\n")

    def visit(self) -> None:
        url = f"{self.link.partition('redirect=')[2]}?code=c&state=right"
        assert httpx.get(url, trust_env=False, timeout=240).is_success

    def close(self) -> None:
        self.http.close()
        os.close(self.keyboard)
        os.close(self._own)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def test_the_link_is_printed_with_who_asks_for_what(terminal):
    assert terminal.sign_in(Terminal.visit) == ANSWER
    text = "\n".join(terminal.printed)
    for words in (SERVER, "id.example", "lab:read", terminal.link, PASTE):
        assert words in text


def test_the_terminal_shows_what_is_typed_again_when_the_answer_came_by_itself(terminal):
    terminal.sign_in(Terminal.visit)
    assert terminal.shows_what_is_typed


def test_the_address_is_pasted_unseen(terminal):
    assert terminal.sign_in(lambda shown: shown.type("http://127.0.0.1:1/x?code=c&state=right")) == ANSWER
    assert terminal.shows_what_is_typed
    os.set_blocking(terminal.keyboard, False)
    with pytest.raises(BlockingIOError):  # nothing was echoed
        os.read(terminal.keyboard, 1)


def test_a_wrong_address_is_said_and_another_can_be_pasted(terminal):
    def acts(shown):
        shown.type("")
        shown.type("hello")
        shown.type("code=c&state=right")

    assert terminal.sign_in(acts) == ANSWER
    assert "not the URL of an authorization response" in terminal.printed


def test_an_interrupt_gives_the_terminal_back(terminal):
    def interrupt(_shown):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        terminal.sign_in(interrupt)
    assert terminal.shows_what_is_typed


def test_a_sign_in_that_nobody_answers_gives_the_terminal_back(terminal):
    with pytest.raises(SignInError, match="was not answered within"):
        terminal.sign_in(lambda _shown: None, seconds=0.2)
    assert terminal.shows_what_is_typed


def test_without_a_terminal_the_answer_still_comes_back_by_itself(terminal):
    assert terminal.sign_in(Terminal.visit, terminal=False) == ANSWER
    assert PASTE not in terminal.printed


def test_of_two_sign_ins_at_once_the_second_is_shown_after_the_first_and_both_leave_the_terminal_as_it_was(terminal):
    broker = Broker(ConsoleFrontEnd(terminal.printed.append, terminal.open))
    links = []

    def tick() -> None:
        broker.tick()
        result = re.findall(r"redirect=(\S+)", "\n".join(terminal.printed))
        if result[len(links) :] and not terminal.shows_what_is_typed:
            links.append(result[-1])
            terminal.type(f"{result[-1]}?code=c{len(links)}&state=of-{len(links)}")

    async def asks(number: int):
        async def prepare(redirect: str) -> AuthorizationRequest:
            question = Question(SERVER, "id.example", SERVER, (), "rolloutlab")
            return AuthorizationRequest(f"https://id.example/authorize?redirect={redirect}", f"of-{number}", question)

        return await broker(f"{SERVER}/{number}", prepare)

    async def both():
        return await asyncio.gather(asks(1), asks(2))

    answers = terminal.http.run(both(), tick, 0.01)
    assert [answer["code"] for answer in answers] == ["c1", "c2"]
    assert len(links) == 2
    assert terminal.shows_what_is_typed
