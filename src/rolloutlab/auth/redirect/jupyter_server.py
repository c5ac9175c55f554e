"""Jupyter server extension: the redirect route, and the route by which a page reaches its kernel."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from tornado.web import HTTPError, authenticated

from rolloutlab.auth.redirect import page
from rolloutlab.auth.redirect.ipc import send
from rolloutlab.auth.redirect.response import parameters


def _load_jupyter_server_extension(server: Any) -> None:
    """Add the routes. The Jupyter server calls this."""
    from jupyter_server.utils import url_path_join

    from rolloutlab.auth.redirect.ipc import folders

    places = {"places": folders()}
    routes = (("callback", AnswerHandler), ("here", HereHandler))
    base_url = server.web_app.settings["base_url"]
    handlers = [(url_path_join(base_url, "rolloutlab", name), handler, places) for name, handler in routes]
    server.web_app.add_handlers(".*$", handlers)


class AnswerHandler(JupyterHandler):
    """GET {base_url}rolloutlab/callback?code=...&state=...; of the address only the path is logged."""

    def initialize(self, places: Sequence[Path]) -> None:
        self._places = places

    @allow_unauthenticated
    async def get(self) -> None:
        query = self.request.query
        state = parameters(query).get("state")
        if not state:
            return self._show(page.NO_ANSWER)
        reply = await send(state, {"query": query}, self._places)
        return self._show(page.RECEIVED if reply and reply.get("taken") is True else page.UNAWAITED)

    def _show(self, shown: page.Page) -> None:
        headers, body = shown.render()
        self.set_status(shown.status)
        for name, value in headers.items():
            self.set_header(name, value)
        self.finish(body)

    def write_error(self, status_code: int, **_why: Any) -> None:
        shown = page.FAILED if status_code >= 500 else page.WRONG_METHOD
        self._show(page.Page(status_code, shown.title, shown.text))

    def log_exception(self, typ: type[BaseException] | None, *_value: object) -> None:
        """Log the type alone, as the message could contain the URL."""
        self.log.error("rolloutlab: an authorization response could not be delivered: %s", typ and typ.__name__)

    def _log(self) -> None:
        """Log the path alone, as versions of the server differ in what they remove from a query."""
        self.log.debug("%s %s %s", self.get_status(), self.request.method, self.request.path)


class HereHandler(APIHandler):
    """POST {base_url}rolloutlab/here `{ticket, origin, call, args}`: answers with the kernel's reply, or 404.

    Requires a login at the Jupyter server, its XSRF check, and an `origin` that equals the Origin header.
    """

    def initialize(self, places: Sequence[Path]) -> None:
        self._places = places

    @authenticated
    async def post(self) -> None:
        body = self.get_json_body()
        ticket = body.get("ticket") if isinstance(body, dict) else None
        if not isinstance(body, dict) or not isinstance(ticket, str):
            raise HTTPError(400, "no ticket")
        message = {name: body.get(name) for name in ("call", "args")}
        place = {"origin": self._check_origin(body.get("origin")), "base_url": self.base_url}
        reply = await send(ticket, {**message, **place}, self._places)
        if reply is None:
            raise HTTPError(404, "no kernel waits for this ticket")
        self.finish(json.dumps(reply))

    def _check_origin(self, claimed: Any) -> str:
        """Return the origin of the page, on which the browser's header and the page's own claim must agree."""
        origin = self.request.headers.get("Origin")
        allowed = bool(self.allow_origin or self.allow_origin_pat)  # then the server has checked it against those
        if not origin or origin != claimed or not (allowed or urlsplit(origin).netloc == self.request.host.lower()):
            raise HTTPError(403, "the request is not from a page of this server")
        return origin
