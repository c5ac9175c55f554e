"""What others keep for us: signed, so that it comes back as it was, and none of it has to be remembered here."""

import base64
import hashlib
import hmac


class Signer:
    """Signs and checks. use: what it is for; what was sealed for another use is not taken."""

    def __init__(self, key: bytes, use: str) -> None:
        self._key = hmac.digest(key, use.encode(), "sha256")

    def sign(self, content: bytes) -> str:
        """Content, legible for whoever has it, and its mark: letters, digits and - _ . alone."""
        text = _encoded(content)
        return f"{text}.{self.signature(text)}"

    def verify(self, sealed: str) -> bytes | None:
        """The content of what was sealed here; None for anything else."""
        text, _, mark = sealed.partition(".")
        if not hmac.compare_digest(mark.encode(), self.signature(text).encode()):
            return None
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

    def signature(self, text: str) -> str:
        """What only this seal says of a text."""
        return _encoded(hmac.digest(self._key, text.encode(), hashlib.sha256))


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
