"""Requests of pages on the control channel of a kernel, which it answers even while a cell runs.

A page sends a `comm_info_request`, which every kernel answers, and which Jupyter servers do not take for a user's
activity. Our lab extension, in `jupyter-share`, puts its request into it as `rolloutlab`.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol
from weakref import WeakValueDictionary

VIEW = "application/x-rolloutlab.view+json"
"""The MIME type of outputs that our lab extension shows. VS Code prefers HTML to it, because it begins with x-."""
_REQUEST = "comm_info_request"


Bundle = tuple[dict[str, Any], dict[str, Any]]
"""Data and metadata of an output, both by MIME type."""


class Answering(Protocol):
    """The part of `NotebookView` that answers pages."""

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]: ...


class Pages:
    """Answers what pages may ask a kernel: its views by the ids of their widgets, and outputs of the running cell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._views: WeakValueDictionary[str, Answering] = WeakValueDictionary()
        self._of_cell: dict[str, tuple[str | None, Bundle]] = {}
        self._answer_comms = shell.kernel.control_handlers[_REQUEST]
        shell.kernel.control_handlers[_REQUEST] = self._handle
        shell.events.register("post_run_cell", lambda _result: self._of_cell.clear())

    def show(self, model_id: str, view: Answering, bundle: Bundle) -> Bundle:
        """Return the bundle of an output that shows a view also in pages with our lab extension.

        The id is in the metadata: programs that compare outputs of two runs leave that out, as nbval does.
        """
        data, metadata = bundle
        bundle = {**data, VIEW: {}}, {**metadata, VIEW: {"model_id": model_id}}
        self._views[model_id] = view
        self._of_cell[model_id] = self._shell.get_parent().get("metadata", {}).get("cellId"), bundle
        return bundle

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer `{model_id, call, args}`; return an empty dict if there is no such view.

        The answer to `{call: "shown"}` is the cell's id, data and metadata of each view that the running cell shows.
        """
        if request.get("call") == "shown":
            return {"result": [self._output(*shown) for shown in list(self._of_cell.items())]}
        view = self._views.get(str(request.get("model_id")))
        return {} if view is None else view.answer(request)

    def _output(self, model_id: str, shown: tuple[str | None, Bundle]) -> dict[str, Any]:
        cell, (data, metadata) = shown
        static = self.answer({"model_id": model_id, "call": "static"}).get("result", {})
        return {"cell": cell, "data": {**data, **static}, "metadata": metadata}

    def _handle(self, stream: Any, identity: Any, message: Mapping[str, Any]) -> Any:
        """Answer a request of the control channel, in its thread."""
        asked = message["content"].get("rolloutlab")
        if not isinstance(asked, Mapping):
            return self._answer_comms(stream, identity, message)
        content = {"status": "ok", "comms": {}, "rolloutlab": self.answer(asked)}
        return self._shell.kernel.session.send(stream, "comm_info_reply", content, message, identity)


@cache
def pages_of(shell: Any) -> Pages | None:
    """Return the pages of a kernel; None if it has no control channel, as in JupyterLite."""
    handlers = getattr(getattr(shell, "kernel", None), "control_handlers", {})
    return Pages(shell) if _REQUEST in handlers else None
