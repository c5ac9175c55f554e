"""A sign-in as text and as an HTML table: server, scopes and state."""

from collections.abc import Mapping
from typing import Any

from rolloutlab.sanitize import escape_control_chars
from rolloutlab.widgets.html import Words, html_table

STATUSES = {
    "looking": "getting ready",
    "waiting": "waiting for you to sign in",
    "answered": "the answer is here",
    "signed in": "signed in",
    "denied": "denied: nothing was given",
    "expired": "expired: no answer in time",
    "cancelled": "cancelled",
    "failed": "failed",
}


def facts(login: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values that a person has to know before a page is opened, without hidden characters."""
    question = login["question"] or {}
    known = (
        ("server", login["server"]),
        ("sign in at", question.get("authority")),
        ("asks for", " ".join(question.get("scopes", ()))),
        ("valid for", question.get("resource")),
        ("known there as", question.get("client")),
        ("answers come to", question.get("redirect")),
    )
    return [(name, escape_control_chars(value)) for name, value in known if value]


def status(login: Mapping[str, Any]) -> str:
    """The state in a few words."""
    note = escape_control_chars(login["note"])
    if login["standing"] == "signed in":
        return f"signed in, for {note}" if note else "signed in"
    return STATUSES[login["standing"]] + (f": {note}" if note else "")


def text(login: Mapping[str, Any]) -> str:
    return f"sign-in at {escape_control_chars(login['server'])}: {status(login)}"


def html(login: Mapping[str, Any]) -> str:
    """All of it but the link, which is a secret while it works and of no use afterwards."""
    rows = [*facts(login), ("sign-in", status(login))]
    return html_table((), [(name, Words(value)) for name, value in rows], labelled=True)
