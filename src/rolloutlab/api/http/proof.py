"""HMAC-SHA256 (RFC 2104) proof that a service knows the lab's token, checked before a client sends the token."""

import hmac


def proof(token: str, nonce: str, base_url: str) -> str:
    """64 hexadecimal digits, for a nonce and the URL of the client's request."""
    # with the URL a program at another port cannot relay the challenge to the service
    return hmac.new(token.encode(), f"rolloutlab health\n{nonce}\n{base_url}".encode(), "sha256").hexdigest()


def proves(response: object, token: str, nonce: str, base_url: str) -> bool:
    """Whether the response to a health check contains the proof."""
    claimed = response.get("proof") if isinstance(response, dict) else None
    return isinstance(claimed, str) and hmac.compare_digest(claimed.encode(), proof(token, nonce, base_url).encode())
