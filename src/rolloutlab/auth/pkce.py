"""Proof Key for Code Exchange (RFC 7636): who redeems a code is who asked for it."""

import hashlib
import secrets
from base64 import urlsafe_b64encode

METHOD = "S256"


def new_verifier() -> str:
    """64 characters that nobody can guess (4.1 allows 43 to 128)."""
    return secrets.token_urlsafe(48)


def challenge_of(verifier: str) -> str:
    """What goes through the browser in its place (4.2)."""
    return urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
