"""PKCE (RFC 7636): code verifier and S256 challenge."""

import hashlib
import secrets
from base64 import urlsafe_b64encode

METHOD = "S256"
"""The code challenge method (RFC 7636, 4.2)."""


def new_verifier() -> str:
    """Draw 64 random characters (4.1 allows 43 to 128)."""
    return secrets.token_urlsafe(48)


def challenge_of(verifier: str) -> str:
    """Compute the challenge of a verifier (4.2)."""
    return urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
