"""How secrets are kept: as SHA-256, which is enough for what has 256 random bits."""

import hashlib


def digest(secret: str) -> str:
    """What is kept of a secret: 64 hexadecimal digits."""
    return hashlib.sha256(secret.encode()).hexdigest()
