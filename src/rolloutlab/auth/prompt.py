"""Interface between the authorization flow and the front end that asks a person and opens a browser."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rolloutlab.errors import SignInError


@dataclass(frozen=True)
class Question:
    """What a person is shown before a page is opened.

    Attributes:
        server: The server to sign in to.
        authority: The hosts of the authorization server and of its page.
        resource: The resource that tokens are for.
        scopes: The requested scopes.
        client: Our name at the authorization server.
        redirect: The redirect URI, if it had to be registered beforehand.
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
        """Return the parameters of the first authorization response with the right state; it may be of an error.

        port: the port of the redirect URI on this machine; 0 is any, with a fixed path.

        Raises:
            PromptTimeoutError: the sign-in was cancelled, or not answered in time.
            SignInError: no person can be asked.
        """

    def show_outcome(self, server: str, well: bool, note: str) -> None:
        """Show the outcome: the granted scopes, or the error."""
