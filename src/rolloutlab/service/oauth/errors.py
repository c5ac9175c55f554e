"""OAuth error responses (RFC 6749, 5.2): a code, a description and a status."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse

NO_STORE = {"Cache-Control": "no-store", "Pragma": "no-cache"}
"""Headers of every response about a secret (RFC 6749, 5.1)."""


class OAuthError(Exception):
    """A request is refused. error: a code of RFC 6749, 7591, 7009, 8707 or of client ID metadata documents."""

    def __init__(
        self, error: str, description: str, status: int = 400, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(error, description)
        self.error = error
        self.description = _allowed_chars(description)
        self.status = status
        self.headers = dict(headers or {})


async def error_response(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, OAuthError)
    body = {"error": error.error, "error_description": error.description}
    return JSONResponse(body, error.status, headers={**NO_STORE, **error.headers})


def _allowed_chars(text: str) -> str:
    """Replace characters that an error description may not have by `'` (RFC 6749, 4.1.2.1)."""
    return "".join(char if " " <= char <= "~" and char not in '"\\' else "'" for char in text)[:300]
