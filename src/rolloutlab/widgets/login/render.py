"""A sign-in in words, and as a table that reads without scripts: who asks for what, and how it stands."""

from collections.abc import Mapping
from html import escape
from typing import Any

from rolloutlab.sanitize import escape_control_chars
from rolloutlab.widgets.html import words

STANDINGS = {
    "looking": "getting ready",
    "waiting": "waiting for you to sign in",
    "answered": "the answer is here",
    "signed in": "signed in",
    "denied": "denied: nothing was given",
    "expired": "expired: nobody answered in time",
    "cancelled": "cancelled",
    "failed": "failed",
}


def facts(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a person has to know before a page is opened: names and values, every character of them to be seen."""
    asked = told["question"] or {}
    known = (
        ("server", told["server"]),
        ("sign in at", asked.get("authority")),
        ("asks for", " ".join(asked.get("scopes", ()))),
        ("valid for", asked.get("resource")),
        ("known there as", asked.get("client")),
        ("answers come to", asked.get("redirect")),
    )
    return [(name, escape_control_chars(value)) for name, value in known if value]


def standing(told: Mapping[str, Any]) -> str:
    """How it stands, in a few words."""
    note = escape_control_chars(told["note"])
    if told["standing"] == "signed in":
        return f"signed in, for {note}" if note else "signed in"
    return STANDINGS[told["standing"]] + (f": {note}" if note else "")


def text(told: Mapping[str, Any]) -> str:
    """One line of it."""
    return f"sign-in at {escape_control_chars(told['server'])}: {standing(told)}"


def html(told: Mapping[str, Any]) -> str:
    """All of it but the link, which is a secret while it works and of no use afterwards."""
    rows = [*facts(told), ("sign-in", standing(told))]
    return f"<table>{''.join(f'<tr><th>{name}</th>{words(escape(value))}</tr>' for name, value in rows)}</table>"
