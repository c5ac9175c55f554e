"""The redirect URI of a notebook that is served: an answer is handed to the kernel that waits for it.

A browser comes here from another site, so that it may bring no cookies, as those of a hub. None are asked for: the
authority is the state, which nobody can guess, and which opens one socket, once.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.base.handlers import JupyterHandler

from rolloutlab.callback import page
from rolloutlab.callback.answer import parameters
from rolloutlab.callback.handover import tell


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
