"""Inside the Jupyter server: where the browser comes back to after a sign-in, and how a page finds its kernel."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from tornado.web import HTTPError, authenticated

from rolloutlab.auth.redirect import page
from rolloutlab.auth.redirect.ipc import tell
from rolloutlab.auth.redirect.response import parameters


def _load_jupyter_server_extension(server: Any) -> None:
    """Add the routes under the server's own address. The Jupyter server calls this."""
    from jupyter_server.utils import url_path_join

    from rolloutlab.auth.redirect.ipc import folders

    places = {"places": folders()}
    routes = (("callback", AnswerHandler), ("here", HereHandler))
    base_url = server.web_app.settings["base_url"]
    handlers = [(url_path_join(base_url, "rolloutlab", name), handler, places) for name, handler in routes]
    server.web_app.add_handlers(".*$", handlers)


class AnswerHandler(JupyterHandler):
    """GET {base_url}rolloutlab/callback?code=...&state=...; nothing of the address is logged."""

    def initialize(self, places: Sequence[Path]) -> None:
        self._places = places

    @allow_unauthenticated
    async def get(self) -> None:
        query = self.request.query
        state = parameters(query).get("state")
        if not state:
            return self._show(page.NO_ANSWER)
        told = await tell(state, {"query": query}, self._places)
        return self._show(page.RECEIVED if told and told.get("taken") is True else page.UNAWAITED)

    def _show(self, shown: page.Page) -> None:
        headers, body = shown.rendered()
        self.set_status(shown.status)
        for name, value in headers.items():
            self.set_header(name, value)
        self.finish(body)

    def write_error(self, status_code: int, **_why: Any) -> None:
        shown = page.FAILED if status_code >= 500 else page.WRONG_METHOD
        self._show(page.Page(status_code, shown.title, shown.text))

    def log_exception(self, typ: type[BaseException] | None, *_value: object) -> None:
        """The kind of it alone: more could have the address in it."""
        self.log.error("rolloutlab: an answer of a sign-in could not be handed over: %s", typ and typ.__name__)

    def _log(self) -> None:
        """The path alone: versions of the server differ in what they take out of a query."""
        self.log.debug("%s %s %s", self.get_status(), self.request.method, self.request.path)


class HereHandler(APIHandler):
    """POST {base_url}rolloutlab/here `{ticket, origin, call, args}`: what the kernel answers, or 404.

    Whoever asks has to be signed in at the Jupyter server, and to come from a page of its own: the usual check against
    forged requests, and `origin` has to be the one that the browser says.
    """

    def initialize(self, places: Sequence[Path]) -> None:
        self._places = places

    @authenticated
    async def post(self) -> None:
        told = self.get_json_body()
        ticket = told.get("ticket") if isinstance(told, dict) else None
        if not isinstance(told, dict) or not isinstance(ticket, str):
            raise HTTPError(400, "a ticket is wanted")
        message = {name: told.get(name) for name in ("call", "args")}
        place = {"origin": self._origin(told.get("origin")), "base_url": self.base_url}
        answer = await tell(ticket, {**message, **place}, self._places)
        if answer is None:
            raise HTTPError(404, "no kernel waits for this ticket")
        self.finish(json.dumps(answer))

    def _origin(self, said: Any) -> str:
        """The origin of the page, as the browser says it and as the page says it."""
        origin = self.request.headers.get("Origin")
        allowed = bool(self.allow_origin or self.allow_origin_pat)  # then the server has compared it to those
        if not origin or origin != said or not (allowed or urlsplit(origin).netloc == self.request.host.lower()):
            raise HTTPError(403, "this has to come from a page of this server")
        return origin
