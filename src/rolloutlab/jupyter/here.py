"""How a page reaches a kernel that is busy with the very cell that waits for the page.

The kernel sends its page a random ticket; the page brings it here, with what it has to say; the server hands that over
the socket which is named by the ticket. So the kernel also learns where the page is.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyter_server.base.handlers import APIHandler
from tornado.web import HTTPError, authenticated

from rolloutlab.callback.handover import tell


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
