"""A sign-in in words and as HTML."""

import pytest

from rolloutlab.widgets.login.render import facts, html, status, text

HOSTILE = "<img src=x onerror=acted()>\x1b[31m\u202e"
QUESTION = {
    "authority": "id.example",
    "resource": "https://mcp.example/mcp",
    "scopes": ["lab:read", "lab:write"],
    "client": "rolloutlab",
}


def told(**overrides):
    first = {
        "server": "https://mcp.example/mcp",
        "question": QUESTION,
        "way": "page",
        "standing": "waiting",
        "note": "",
    }
    return {**first, **overrides}


def test_who_asks_for_what_is_said_before_anything_is_opened():
    assert facts(told()) == [
        ("server", "https://mcp.example/mcp"),
        ("sign in at", "id.example"),
        ("asks for", "lab:read lab:write"),
        ("valid for", "https://mcp.example/mcp"),
        ("known there as", "rolloutlab"),
    ]


def test_what_is_not_known_is_left_out():
    assert [name for name, _ in facts(told(question=None))] == ["server"]
    assert "asks for" not in dict(facts(told(question={**QUESTION, "scopes": []})))


def test_the_address_to_register_is_said_where_it_has_to_be_registered():
    asked = {**QUESTION, "redirect": "http://127.0.0.1:8765/callback"}
    assert facts(told(question=asked))[-1] == ("answers come to", "http://127.0.0.1:8765/callback")


@pytest.mark.parametrize(
    ("stood", "note", "words"),
    [
        ("waiting", "", "waiting for you to sign in"),
        ("signed in", "lab:read", "signed in, for lab:read"),
        ("signed in", "", "signed in"),
        ("denied", "", "denied: nothing was given"),
        ("failed", "the code was refused", "failed: the code was refused"),
    ],
)
def test_how_it_stands_is_said_in_words(stood, note, words):
    assert status(told(standing=stood, note=note)) == words


def test_nothing_that_others_wrote_acts():
    hostile = told(server=HOSTILE, note=HOSTILE, standing="failed", question={**QUESTION, "scopes": [HOSTILE]})
    assert "<img" not in html(hostile)
    for shown in (html(hostile), text(hostile)):
        assert "\x1b" not in shown
        assert "\u202e" not in shown
