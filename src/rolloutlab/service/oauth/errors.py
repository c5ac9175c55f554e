"""How the authorization server says no: an error code, and a sentence for whoever wrote the client."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse

NOT_KEPT = {"Cache-Control": "no-store", "Pragma": "no-cache"}
"""What every answer says that holds a secret, or tells of one (RFC 6749, 5.1)."""


class OAuthRefusal(Exception):  # noqa: N818 - the answer is a 400 or a 401, or goes back to the client's address
    """A request is refused. error: a code of RFC 6749, 7591, 7009, 8707 or of client ID metadata documents."""

    def __init__(
        self, error: str, description: str, status: int = 400, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(error, description)
        self.error = error
        self.description = plain(description)
        self.status = status
        self.headers = dict(headers or {})


async def answer_refusal(_request: Request, refusal: Exception) -> JSONResponse:
    """As RFC 6749, 5.2 wants it."""
    assert isinstance(refusal, OAuthRefusal)
    body = {"error": refusal.error, "error_description": refusal.description}
    return JSONResponse(body, refusal.status, headers={**NOT_KEPT, **refusal.headers})


def plain(text: str) -> str:
    """A text in the characters that an error description may have (RFC 6749, 4.1.2.1), the others as `'`."""
    return "".join(char if " " <= char <= "~" and char not in '"\\' else "'" for char in text)[:300]
