"""How the embedded service proves that it knows the lab's token before a client sends it: HMAC-SHA256 (RFC 2104)."""

import hmac


def proof(token: str, nonce: str, base_url: str) -> str:
    """64 hexadecimal digits, for a nonce that the client drew and the address that it asked.

    The address is part of it, so that a program at another one cannot pass the question on to the service.
    """
    return hmac.new(token.encode(), f"rolloutlab health\n{nonce}\n{base_url}".encode(), "sha256").hexdigest()


def proves(answer: object, token: str, nonce: str, base_url: str) -> bool:
    """Whether the answer to a health check holds the proof."""
    claimed = answer.get("proof") if isinstance(answer, dict) else None
    return isinstance(claimed, str) and hmac.compare_digest(claimed.encode(), proof(token, nonce, base_url).encode())
