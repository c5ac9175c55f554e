"""What a person is asked, and how the answer comes back: the seam between the flow and whatever shows a browser."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rolloutlab.errors import SignInError


@dataclass(frozen=True)
class Question:
    """What a person is shown before a page is opened. scopes: empty where they are not said.

    server: the address that was asked for. authority: the authorization server's host, and that of its page. client:
    our name there. redirect: where answers come to, where that had to be registered beforehand.
    """

    server: str
    authority: str
    resource: str
    scopes: tuple[str, ...]
    client: str
    redirect: str | None = None


@dataclass(frozen=True)
class AuthorizationRequest:
    """An authorization request to be opened in a browser. state: what an answer has to carry (RFC 6749, 10.12)."""

    url: str = field(repr=False)
    state: str = field(repr=False)
    question: Question


Prepare = Callable[[str], Awaitable[AuthorizationRequest]]
"""Given the redirect URI: the request, once that address is registered where it has to be."""


class PromptTimeoutError(SignInError):
    """A person was asked, and gave no answer: it was cancelled, or the time was over."""


class UserPrompt(Protocol):
    """Shows a question, opens the page, and waits."""

    async def __call__(self, server: str, prepare: Prepare, port: int | None = None) -> Mapping[str, str]:
        """The parameters of the first answer whose state is right, also of one that says `error`.

        port: of this machine, to which answers have to come; 0 is any, at an address that is known but for it.

        Raises:
            Unanswered: it was cancelled, or nobody answered in time. SignInError: there is nobody to ask.
        """

    def settled(self, server: str, well: bool, note: str) -> None:
        """Told what came of it: with which scopes one is signed in now, or why not."""
