"""Last page of a sign-in: static, without anything of the authorization response."""

import secrets
from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """A page. status: the HTTP status. forget: whether to remove the query from the browser's history."""

    status: int
    title: str
    text: str
    forget: bool = False

    def render(self) -> tuple[dict[str, str], bytes]:
        """Return headers and body, with a new nonce."""
        nonce = secrets.token_urlsafe(16)
        script = f'<script nonce="{nonce}">{_FORGET}</script>' if self.forget else ""
        body = _HTML.format(title=self.title, text=self.text, nonce=nonce, script=script).encode()
        headers = {**HEADERS, "Content-Security-Policy": _POLICY.format(nonce=nonce)}
        return headers, body


HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_POLICY = (
    "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FORGET = 'history.replaceState(null, "", location.pathname)'
_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style nonce="{nonce}">
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
main {{ max-width: 34em; margin: 15vh auto; padding: 0 1em; }}
h1 {{ font-size: 1.4em; }}
</style>
{script}
</head>
<body><main><h1>{title}</h1><p>{text}</p></main></body>
</html>
"""

RECEIVED = Page(200, "You can close this page", "The notebook has the answer. Go back to it.", forget=True)
UNAWAITED = Page(
    404,
    "Nothing waits for this answer",
    "It was given already, the sign-in was cancelled or took too long, or its kernel has ended. "
    "You can close this page and sign in again from the notebook.",
)
NO_ANSWER = Page(
    400, "This is no answer", "The address has nothing that a sign-in could end with. You can close this page."
)
WRONG_METHOD = Page(405, "This page can only be read", "You can close it.")
NOT_HERE = Page(404, "There is nothing here", "You can close this page.")
FAILED = Page(500, "This went wrong", "The notebook could not be told. Paste the address of this page there.")
