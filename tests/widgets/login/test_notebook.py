"""A sign-in as a notebook holds it."""

import json

import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.auth.prompt import AuthorizationRequest, Question
from rolloutlab.auth.redirect.login import Login
from rolloutlab.widgets.login.notebook import LoginView

SERVER = "https://mcp.example/mcp"
URL = "https://id.example/authorize?state=a-secret-state"


@pytest.fixture
def login():
    """One that waits for its answer."""
    http = HttpClient()

    async def begin():
        login = Login(SERVER, 600)
        login.ask(
            AuthorizationRequest(
                URL, "a-secret-state", Question(SERVER, "id.example", SERVER, ("lab:read",), "rolloutlab")
            )
        )
        return login

    yield http.run(begin())
    http.close()


def test_nothing_secret_is_in_a_trait_or_in_what_is_saved_with_the_notebook(login):
    view = LoginView(login)
    kept = [json.dumps(view.state()), repr(view), view._repr_html_()]
    assert not [secret for secret in ("a-secret-state", login.ticket, URL) for text in kept if secret in text]


def test_the_page_is_shown_how_it_stands(login):
    view = LoginView(login)
    assert view.state()["standing"] == "waiting"
    assert login.offer("code=c&state=a-secret-state")
    assert view.state()["words"] == "the answer is here"


def test_a_page_pastes_and_is_told_what_is_wrong_with_it(login):
    view = LoginView(login)
    answer = view.answer({"id": "1", "call": "paste", "args": {"text": "code=c&state=wrong"}})
    assert "another sign-in" in answer["error"]["message"]
    assert view.answer({"id": "2", "call": "paste", "args": {"text": "code=c&state=a-secret-state"}})["result"] == {}


def test_a_page_cancels(login):
    LoginView(login).answer({"id": "1", "call": "cancel"})
    assert repr(LoginView(login)) == f"sign-in at {SERVER}: cancelled"


def test_a_page_cannot_say_by_message_where_it_is(login):
    assert "here" not in LoginView(login).calls()


def test_it_reads_well_without_scripts(login):
    html = LoginView(login)._repr_html_()
    for words in (SERVER, "id.example", "lab:read", "waiting for you to sign in"):
        assert words in html
