"""Sign-ins as text and HTML: one under way, and the table of signed-in servers, in which nothing is secret."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rolloutlab.auth.session import SignInStatus
from rolloutlab.errors import LabError
from rolloutlab.hints import Hint
from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import escape_control_chars, escape_to_one_line
from rolloutlab.widgets.html import Words, for_notebook, html_table
from rolloutlab.widgets.kit.parts import head, hints, next_cells, panel
from rolloutlab.widgets.kit.table import Heading, TableRow, table
from rolloutlab.widgets.text import text_table

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
    """List names and values that a person has to know before opening the page, with hidden characters escaped."""
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
    """Write the state in a few words."""
    note = escape_control_chars(login["note"])
    if login["standing"] == "signed in":
        return f"signed in, for {note}" if note else "signed in"
    return STATUSES[login["standing"]] + (f": {note}" if note else "")


def text(login: Mapping[str, Any]) -> str:
    return f"sign-in at {escape_control_chars(login['server'])}: {status(login)}"


def html(login: Mapping[str, Any]) -> str:
    """Draw all of a sign-in but the link, which is a secret while it works and of no use afterwards."""
    rows = [*facts(login), ("sign-in", status(login))]
    return html_table((), [(name, Words(value)) for name, value in rows], labelled=True)


_HEAD = ("server", "signed in by", "as", "scopes", "until", "kept")
_MIDDLE = ("signed in by", "as", "kept")
_NOWHERE, _LOGIN = "you are signed in nowhere", "%login embedded"
_MAX_CLIENT = 60  # characters of a client's id; some hold all that the client has registered


class SignInTable(tuple[SignInStatus, ...]):
    """The servers that the user is signed in to. unused: why stored grants are not used."""

    unused: tuple[LabError, ...]

    def __new__(cls, statuses: Iterable[SignInStatus] = (), unused: Iterable[LabError] = ()) -> "SignInTable":
        made = super().__new__(cls, statuses)
        made.unused = tuple(unused)
        return made

    def __repr__(self) -> str:
        lines = [line for status in self for line in _lines(status)]
        lines += [escape_to_one_line(f"{error.message} -> {error.hint}") for error in self.unused]
        return "\n".join(lines) or f"{_NOWHERE} -> {_LOGIN}"

    def _repr_html_(self) -> str:
        errors = [(escape_to_one_line(each.message), escape_to_one_line(each.hint or "")) for each in self.unused]
        unused = hints([Hint(message, cell=fix) for message, fix in errors])
        columns = [Heading(name, middle=name in _MIDDLE) for name in _HEAD]
        made = table(columns, map(TableRow, map(_cells, self))) if self else ""
        where = count(len(self), "server") if self else "nowhere"
        return for_notebook(panel(head("Signed in", where), unused, made, next_cells(*[_LOGIN] * (not self))))


def _lines(status: SignInStatus) -> list[str]:
    first, *rest = zip(_HEAD, _cells(status), strict=True)
    return [first[1], *text_table((), rest, "<12")]


def _cells(status: SignInStatus) -> Sequence[str]:
    client, scopes = status.client, " ".join(status.scopes) or "unknown"
    client = client if len(client) <= _MAX_CLIENT else f"{client[: _MAX_CLIENT - 3]}..."
    cells = status.server, status.authority, client, scopes, _until(status), status.place
    return list(map(escape_to_one_line, cells))


def _until(status: SignInStatus) -> str:
    if status.renews:
        return "you sign out; renewed by itself"
    if status.expires_at is None:
        return "unknown"
    try:
        return datetime.fromtimestamp(status.expires_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return "long after today"
