"""Where one is signed in, as a notebook shows it; nothing of it is secret."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from rolloutlab.auth.bearer import Standing
from rolloutlab.visible import visible_line

_HEAD = ("server", "signed in by", "as", "scopes", "until", "kept")
_LONGEST = 60
"""Characters of a client's id."""


class Standings(tuple[Standing, ...]):
    """Every server that one is signed in to."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self:
            return "you are signed in nowhere -> %login https://tools.example/mcp"
        return "\n".join("\n".join(_lines(standing)) for standing in self)

    def _repr_html_(self) -> str:
        if not self:
            return "<p>you are signed in nowhere: <code>%login https://tools.example/mcp</code></p>"
        head = "".join(f"<th>{name}</th>" for name in _HEAD)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(each))}</tr>" for each in self)
        return f"<table><tr>{head}</tr>{rows}</table>"


def _lines(standing: Standing) -> list[str]:
    first, *rest = zip(_HEAD, _cells(standing), strict=True)
    return [first[1], *(f"  {name:<12}  {value}" for name, value in rest)]


def _cells(standing: Standing) -> Sequence[str]:
    scopes = " ".join(standing.scopes) or "not said"
    told = standing.server, standing.authority, _cut(standing.client), scopes, _until(standing), standing.place
    return list(map(visible_line, told))


def _cut(client: str) -> str:
    """The id of a client; some hold all that the client has registered."""
    return client if len(client) <= _LONGEST else f"{client[: _LONGEST - 3]}..."


def _until(standing: Standing) -> str:
    if standing.renews:
        return "you sign out; renewed by itself"
    if standing.expires_at is None:
        return "not said"
    try:
        return datetime.fromtimestamp(standing.expires_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return "long after today"
