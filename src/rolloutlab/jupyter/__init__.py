"""Inside the Jupyter server: where the browser comes back to after a sign-in, and how a page finds its kernel."""

from typing import Any


def _load_jupyter_server_extension(server: Any) -> None:
    """Add the routes under the server's own address. The Jupyter server calls this."""
    from jupyter_server.utils import url_path_join

    from rolloutlab.callback.handover import folders
    from rolloutlab.jupyter.answers import AnswerHandler
    from rolloutlab.jupyter.here import HereHandler

    places = {"places": folders()}
    routes = (("callback", AnswerHandler), ("here", HereHandler))
    base_url = server.web_app.settings["base_url"]
    handlers = [(url_path_join(base_url, "rolloutlab", name), handler, places) for name, handler in routes]
    server.web_app.add_handlers(".*$", handlers)
