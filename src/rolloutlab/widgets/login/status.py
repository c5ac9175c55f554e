"""Where one is signed in, as a notebook shows it; nothing of it is secret."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from rolloutlab.auth.session import SignInStatus
from rolloutlab.errors import LabError
from rolloutlab.sanitize import escape_to_one_line, without_mathjax

_HEAD = ("server", "signed in by", "as", "scopes", "until", "kept")
_NOWHERE, _LOGIN = "you are signed in nowhere", "%login https://tools.example/mcp"
_LONGEST = 60
"""Characters of a client's id."""


class SignInTable(tuple[SignInStatus, ...]):
    """Every server that one is signed in to. unused: why grants that were kept are not used."""

    unused: tuple[LabError, ...]

    def __new__(cls, standings: Iterable[SignInStatus] = (), unused: Iterable[LabError] = ()) -> "SignInTable":
        made = super().__new__(cls, standings)
        made.unused = tuple(unused)
        return made

    def __repr__(self) -> str:
        lines = [line for standing in self for line in _lines(standing)]
        lines += [escape_to_one_line(f"{wrong.message} -> {wrong.hint}") for wrong in self.unused]
        return "\n".join(lines) or f"{_NOWHERE} -> {_LOGIN}"

    def _repr_html_(self) -> str:
        told = [(wrong.message, wrong.hint) for wrong in self.unused] or [(_NOWHERE, _LOGIN)] * (not self)
        said = "".join(f"<p>{_shown(wrong)}: <code>{_shown(hint or '')}</code></p>" for wrong, hint in told)
        return without_mathjax(self._table() * bool(self) + said)

    def _table(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in _HEAD)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(each))}</tr>" for each in self)
        return f"<table><tr>{head}</tr>{rows}</table>"


def _lines(standing: SignInStatus) -> list[str]:
    first, *rest = zip(_HEAD, _cells(standing), strict=True)
    return [first[1], *(f"  {name:<12}  {value}" for name, value in rest)]


def _cells(standing: SignInStatus) -> Sequence[str]:
    scopes = " ".join(standing.scopes) or "not said"
    told = standing.server, standing.authority, _cut(standing.client), scopes, _until(standing), standing.place
    return list(map(escape_to_one_line, told))


def _shown(text: str) -> str:
    return escape(escape_to_one_line(text))


def _cut(client: str) -> str:
    """The id of a client; some hold all that the client has registered."""
    return client if len(client) <= _LONGEST else f"{client[: _LONGEST - 3]}..."


def _until(standing: SignInStatus) -> str:
    if standing.renews:
        return "you sign out; renewed by itself"
    if standing.expires_at is None:
        return "not said"
    try:
        return datetime.fromtimestamp(standing.expires_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return "long after today"
