"""HMAC-signed tokens, so that the server stores neither clients nor pending requests."""

import base64
import hashlib
import hmac


class Signer:
    """Signs and verifies with a key of its own per use: a token made for one use is invalid for another."""

    def __init__(self, key: bytes, use: str) -> None:
        self._key = hmac.digest(key, use.encode(), "sha256")

    def sign(self, content: bytes) -> str:
        """Return `CONTENT.SIGNATURE`, both in base64url. The content is not encrypted."""
        text = base64url(content)
        return f"{text}.{self.signature(text)}"

    def verify(self, token: str) -> bytes | None:
        """Return the content of a token that was signed here; None for any other text."""
        text, _, signature = token.partition(".")
        if not hmac.compare_digest(signature.encode(), self.signature(text).encode()):
            return None
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

    def signature(self, text: str) -> str:
        return base64url(hmac.digest(self._key, text.encode(), hashlib.sha256))


def base64url(content: bytes) -> str:
    """Encode in base64url without padding."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
