"""Interface between the authorization flow and the front end that asks a person and opens a browser."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rolloutlab.errors import SignInError


@dataclass(frozen=True)
class Question:
    """What a person is shown before a page is opened.

    authority: the hosts of the authorization server and of its page. client: our name there. redirect: the redirect
    URI, where it had to be registered beforehand.
    """

    server: str
    authority: str
    resource: str
    scopes: tuple[str, ...]
    client: str
    redirect: str | None = None


@dataclass(frozen=True)
class AuthorizationRequest:
    """An authorization request to open in a browser. state: required in the response (RFC 6749, 10.12)."""

    url: str = field(repr=False)
    state: str = field(repr=False)
    question: Question


Prepare = Callable[[str], Awaitable[AuthorizationRequest]]
"""Makes the request for a redirect URI, and registers the URI where necessary."""


class PromptTimeoutError(SignInError):
    """A sign-in was cancelled, or not answered in time."""


class UserPrompt(Protocol):
    """Shows a question, opens the page, and waits."""

    async def __call__(self, server: str, prepare: Prepare, port: int | None = None) -> Mapping[str, str]:
        """The parameters of the first authorization response with the right state, also of an error response.

        port: of the redirect URI on this machine; 0 is any, with a fixed path.

        Raises:
            PromptTimeoutError: it was cancelled, or not answered in time. SignInError: no person can be asked.
        """

    def settled(self, server: str, well: bool, note: str) -> None:
        """Show the outcome: the granted scopes, or the error."""
