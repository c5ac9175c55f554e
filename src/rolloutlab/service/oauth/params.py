"""Parameters of requests: each at most once (RFC 6749, 3.1), bodies small."""

from collections import Counter
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from rolloutlab.errors import Cancelled
from rolloutlab.service.oauth.errors import OAuthRefusal

LARGEST = 1 << 16
"""Bytes of a body."""
_MOST = 50


def pairs(text: str) -> dict[str, str]:
    """The parameters that are there once and not empty; an empty one counts as left out (RFC 6749, 3.1).

    Raises:
        OAuthRefusal: invalid_request: one is there twice.
    """
    found = _parsed(text)
    if twice := [name for name, count in Counter(name for name, _ in found).items() if count > 1]:
        raise OAuthRefusal("invalid_request", f"the parameter {twice[0]} is there twice")
    return {name: value for name, value in found if value}


def first(text: str, name: str) -> str | None:
    """A parameter that is there once, whatever the others are."""
    found = [value for each, value in _parsed(text) if each == name]
    return found[0] if len(found) == 1 and found[0] else None


async def form(request: Request) -> dict[str, str]:
    """The parameters of a body; OAuthRefusal (invalid_request) where it is no form, or too large."""
    if _media_type(request) != "application/x-www-form-urlencoded":
        raise OAuthRefusal("invalid_request", "the body is no application/x-www-form-urlencoded")
    text = await body(request)
    try:
        return pairs(text.decode())
    except ValueError as error:
        raise OAuthRefusal("invalid_request", f"the body is no form: {error}") from error


async def body(request: Request) -> bytes:
    """A whole body; OAuthRefusal (invalid_request, 413) where it is too large."""
    try:
        return await whole(request, LARGEST)
    except ValueError as error:
        raise OAuthRefusal("invalid_request", str(error), 413) from error


async def whole(request: Request, largest: int) -> bytes:
    """A whole body; ValueError where it has more bytes than that. Cancelled: the client left half way."""
    read = bytearray()
    try:
        async for part in request.stream():
            read += part
            if len(read) > largest:
                raise ValueError(f"the body is larger than {largest:,} bytes")
    except ClientDisconnect as error:
        raise Cancelled from error
    return bytes(read)


def is_json(request: Request) -> bool:
    """Whether the body says that it is JSON, which no page of another origin can send unasked."""
    return _media_type(request) == "application/json"


def _parsed(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=_MOST)
    except ValueError as error:
        raise OAuthRefusal("invalid_request", f"there are more than {_MOST} parameters") from error


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
