"""How secrets are kept and compared: as SHA-256, which is enough for what has 256 random bits."""

import hashlib
import secrets


def digest(secret: str) -> str:
    """What is kept of a secret: 64 hexadecimal digits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same(secret: str, kept: str) -> bool:
    """Whether a secret is the one that was kept, in a time that says nothing of where they differ."""
    return secrets.compare_digest(digest(secret), kept)
