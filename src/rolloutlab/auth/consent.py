"""What a person is asked, and how the answer comes back: the seam between the flow and whatever shows a browser."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Question:
    """What a person is shown before a page is opened. scopes: empty where they are not said.

    server: the address that was asked for. authority: the authorization server's host. client: our name there.
    redirect: where answers come to, where that had to be registered beforehand.
    """

    server: str
    authority: str
    resource: str
    scopes: tuple[str, ...]
    client: str
    redirect: str | None = None


@dataclass(frozen=True)
class Pending:
    """An authorization request to be opened in a browser. state: what an answer has to carry (RFC 6749, 10.12)."""

    url: str = field(repr=False)
    state: str = field(repr=False)
    question: Question


Settled = Callable[[str, str | None], None]
"""Told of what came of an answer: the server, and what went wrong, None where one is signed in."""
Prepare = Callable[[str], Awaitable[Pending]]
"""Given the redirect URI: the request, once that address is registered where it has to be."""


class Consent(Protocol):
    """Shows a question, opens the page, and waits."""

    async def __call__(self, server: str, prepare: Prepare, port: int | None = None) -> Mapping[str, str]:
        """The parameters of the first answer whose state is right, also of one that says `error`.

        port: of this machine, to which answers have to come; 0 is any, at an address that is known but for it.

        Raises:
            SignInError: it was cancelled, nobody answered in time, or there is nobody to ask.
        """
