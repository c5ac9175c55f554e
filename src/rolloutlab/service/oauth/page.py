"""HTML pages of the authorization server: no script, no frame, no cache, everything escaped."""

import secrets
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from rolloutlab.service.oauth.errors import OAuthError

_FOLDER = Path(__file__).parent / "pages"


class Pages:
    """The templates beside this file."""

    def __init__(self) -> None:
        loader = FileSystemLoader(_FOLDER)
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
        self._style = Markup((_FOLDER / "style.css").read_text())

    def show(self, name: str, status: int = 200, form_targets: str = "'none'", **values: Any) -> HTMLResponse:
        """Render a page. form_targets: the source list of its `form-action` directive."""
        nonce = secrets.token_urlsafe(16)
        html = self._templates.get_template(name).render(nonce=nonce, style=self._style, **values)
        policy = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; base-uri 'none'; frame-ancestors 'none';"
            f" form-action {form_targets}"
        )
        headers = {
            "Content-Security-Policy": policy,
            "X-Frame-Options": "DENY",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Referrer-Policy": "same-origin",  # no-referrer would make the Origin header of the form "null"
            "Cache-Control": "no-store",
        }
        return HTMLResponse(html, status, headers)

    def error(self, error: OAuthError) -> HTMLResponse:
        """Render the error page. No error may be sent to a redirect URI that is not known to be the client's."""
        return self.show("refused.html", error.status, error=error.error, description=error.description)
