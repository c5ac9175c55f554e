"""Plain HTTP messages: what the flow wants sent, and what it is answered. Nothing in this room's heart does I/O."""

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic_core import from_json

T = TypeVar("T")

_CODE = re.compile(r"[\w.-]{1,64}", re.ASCII)


@dataclass(frozen=True)
class Request:
    """What is to be sent; its repr shows nothing that is secret."""

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Response:
    """What came back. headers: in order, a name as often as it came."""

    status: int
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)

    def values(self, name: str) -> list[str]:
        """Every header of a name, in whatever case."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def document(self) -> dict[str, Any] | None:
        """The JSON object of a success; None where it is none."""
        return self._object() if self.status in (200, 201) else None

    def error(self) -> str | None:
        """The error code of a refusal (RFC 6749, 5.2); what else the body says may hold secrets."""
        return error_code((self._object() or {}).get("error"))

    def _object(self) -> dict[str, Any] | None:
        try:
            found = from_json(self.body)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


def error_code(said: object) -> str | None:
    """An error code as those of the standards are written; None where it is a stranger's sentence, or nothing."""
    return said if isinstance(said, str) and _CODE.fullmatch(said) else None


Flow = Generator[Request, Response, T]
"""Asks for requests to be sent, one by one, and returns what comes of them."""
