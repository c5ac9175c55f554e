"""Request parameters: each at most once (RFC 6749, 3.1), bodies of limited size."""

from collections import Counter
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request

from rolloutlab.errors import Cancelled
from rolloutlab.service.oauth.errors import OAuthError

_MAX_BYTES = 1 << 16
_MAX_PARAMETERS = 50


def parse_params(text: str) -> dict[str, str]:
    """Parse query or form parameters. An empty one counts as omitted (RFC 6749, 3.1).

    Raises:
        OAuthError: invalid_request: a parameter is repeated.
    """
    pairs = _parse(text)
    if repeated := [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]:
        raise OAuthError("invalid_request", f"the parameter {repeated[0]} is repeated")
    return {name: value for name, value in pairs if value}


def single_param(text: str, name: str) -> str | None:
    """Return a parameter that is there exactly once and is not empty, or None. Other parameters are not checked."""
    values = [value for each, value in _parse(text) if each == name]
    return values[0] if len(values) == 1 and values[0] else None


async def read_form(request: Request) -> dict[str, str]:
    """Read the parameters of a form body, or raise OAuthError (invalid_request) if it is no form, or too large."""
    if media_type(request) != "application/x-www-form-urlencoded":
        raise OAuthError("invalid_request", "the Content-Type must be application/x-www-form-urlencoded")
    text = await read_body(request)
    try:
        return parse_params(text.decode())
    except ValueError as error:
        raise OAuthError("invalid_request", f"the body is not a form: {error}") from error


async def read_body(request: Request) -> bytes:
    """Read the body, or raise OAuthError (invalid_request, 413) if it is too large."""
    try:
        return await read_limited(request, _MAX_BYTES)
    except ValueError as error:
        raise OAuthError("invalid_request", str(error), 413) from error


async def read_limited(request: Request, max_bytes: int) -> bytes:
    """Read the body.

    Raises:
        ValueError: it is larger than `max_bytes`.
        Cancelled: the client disconnected.
    """
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > max_bytes:
                raise ValueError(f"the body is larger than {max_bytes:,} bytes")
    except ClientDisconnect as error:
        raise Cancelled from error
    return bytes(body)


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _parse(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=_MAX_PARAMETERS)
    except ValueError as error:
        raise OAuthError("invalid_request", f"there are more than {_MAX_PARAMETERS} parameters") from error
