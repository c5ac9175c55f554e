"""Pages for a person: no script, in no frame, kept by no cache, and every text from outside escaped."""

import secrets
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from rolloutlab.service.oauth.errors import OAuthRefusal

_FOLDER = Path(__file__).parent / "pages"


class Pages:
    """The pages of the authorization server, from the templates beside this file."""

    def __init__(self) -> None:
        loader = FileSystemLoader(_FOLDER)
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
        self._style = Markup((_FOLDER / "style.css").read_text())

    def show(self, name: str, status: int = 200, form_targets: str = "'none'", **values: Any) -> HTMLResponse:
        """A page. form_targets: the origins that its form may lead to, besides this server."""
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
            "Referrer-Policy": "same-origin",  # none at all would also hide from us that a form is our own
            "Cache-Control": "no-store",
        }
        return HTMLResponse(html, status, headers)

    def refused(self, refusal: OAuthRefusal) -> HTMLResponse:
        """What went wrong, where no address can be told."""
        return self.show("refused.html", refusal.status, error=refusal.error, description=refusal.description)
