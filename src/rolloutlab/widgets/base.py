"""Base of the notebook widgets: an anywidget that calls Python, and plain HTML or text where no script runs."""

import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from rolloutlab.errors import RolloutlabError
from rolloutlab.widgets.pages import Bundle, pages_of
from rolloutlab.widgets.progress import in_notebook

MIME = "application/vnd.jupyter.widget-view+json"
BUNDLES = Path(__file__).with_name("static")
"""The build writes a script and a style sheet per module here."""


class NotebookView:
    """A view that a JavaScript module shows in the browser. The module may make the view's `calls`.

    A subclass also has `__repr__` and `_repr_html_`, for pages where no script runs.
    """

    module: ClassVar[str]
    printed: Any = None
    """The object that prints the text and the HTML, if it is not the view itself."""

    def state(self) -> Mapping[str, Any]:
        """Return what the browser shows first, as JSON. It is called again whenever a page is loaded."""
        raise NotImplementedError

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        """Return the methods that the browser may call, by name. Arguments, results and errors are sent as JSON.

        A call may come on another thread than that of the cells, even while a cell runs.
        """
        raise NotImplementedError

    @cached_property
    def widget(self) -> Any:
        """The anywidget that shows the view, made at the first access; for marimo, `mo.ui.anywidget(view.widget)`."""
        return _widget_class(self.module)(self)

    def push(self, event: str, **data: Any) -> None:
        """Send an event to every browser that shows the view. It may be called on any thread."""
        if widget := self.__dict__.get("widget"):
            widget.send({"event": event, **data})

    def renew(self) -> None:
        """Send the state again, for open pages and for pages that are loaded later. It may be called on any thread."""
        if widget := self.__dict__.get("widget"):
            widget.send_state("state")

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a browser's `{id, call, args}` by `{id, result}`, or by `{id, error: {message, hint}}`."""
        calls = {**self.calls(), "open": self._open_page, "static": self._read_static}
        body = _or_error(lambda: {"result": calls[request["call"]](**request.get("args") or {})}, "error")
        return {"id": request.get("id"), **body}

    def _open_page(self, known: Sequence[str] = ()) -> dict[str, Any]:
        """Return everything for a page that has no widget manager, or whose widget manager waits for a cell.

        known: the digests of bundles that the page has already. They are not sent again, because some have 300 kB.
        """
        script, style = _bundle(self.module)
        digest = sha256(f"{script}{style}".encode()).hexdigest()
        code = {} if digest in known else {"script": script, "style": style}
        return {"bundle": digest, **code, "state": self.first_state()}

    def _read_static(self) -> dict[str, str]:
        """Return what a notebook shows once the kernel has ended, by MIME type."""
        printed: Any = self if self.printed is None else self.printed
        return {"text/html": printed._repr_html_(), "text/plain": repr(printed)}

    def first_state(self) -> Mapping[str, Any]:
        """Return the state; after an error `{refused: {message, hint}}`, so that other views still load."""
        return _or_error(self.state, "refused")

    def _repr_mimebundle_(self, **_options: Any) -> Bundle:
        """Return the widget if there is a browser to show it; IPython adds the text and the HTML.

        Colab needs anywidget's metadata, which names the widget manager that it has switched on. A page with our lab
        extension needs no widget manager: see `pages`.
        """
        if not self.can_be_seen():
            return {}, {}
        from IPython import get_ipython

        model_id = self.widget.model_id
        _, metadata = self.widget._repr_mimebundle_()
        data = {MIME: {"version_major": 2, "version_minor": 0, "model_id": model_id}}
        pages = pages_of(get_ipython())
        return pages.show(model_id, self, (data, metadata)) if pages else (data, metadata)

    def can_be_seen(self) -> bool:
        """Whether there may be a browser to show the view, and the widgets are built."""
        if not in_notebook():
            return False
        built = (BUNDLES / f"{self.module}.js").exists()
        if not built:
            warnings.warn("the widgets are not built: npm ci && npm run build", stacklevel=2)
        return built


def _or_error(work: Callable[[], Mapping[str, Any]], key: str) -> Mapping[str, Any]:
    """Do some work; return its result, or its error under `key`, as a browser takes it."""
    try:
        return work()
    except RolloutlabError as error:
        return {key: {"message": str(error), "hint": error.hint}}
    except Exception as error:  # noqa: BLE001 - a bug of ours: the browser must not wait forever, and the log has it
        traceback.print_exc()
        return {key: {"message": f"{type(error).__name__}: {error}", "hint": None}}


def _bundle(module: str) -> list[str]:
    """Read the script and the style sheet of a module."""
    return [(BUNDLES / f"{module}.{kind}").read_text(encoding="utf-8") for kind in ("js", "css")]


@cache
def _widget_class(module: str) -> Any:
    """Make the widget class of a module, when it is first needed, because anywidget takes a while to import.

    Each module has a class of its own, because a page has one style sheet per class.
    """
    import traitlets
    from anywidget import AnyWidget

    class View(AnyWidget):
        """Carries a `NotebookView` into the browser. Its state is made anew for each page."""

        _esm = traitlets.Unicode().tag(sync=True)
        _css = traitlets.Unicode().tag(sync=True)
        # a page that is loaded later gets the state of that moment, not of the cell
        state = traitlets.Dict().tag(sync=True, to_json=lambda _value, widget: widget.shown.first_state())

        def __init__(self, shown: NotebookView) -> None:
            self.shown = shown
            self.on_msg(lambda _widget, request, _buffers: self.send(shown.answer(request)))
            script, style = _bundle(module)
            super().__init__(_esm=script, _css=style)
            # ipykernel 7.4 hands a request to the subshell of the last message, where a cell may run: keep the page's
            self.comm._reply_subshell_for = lambda _request, subshell: subshell

    View.__name__ = f"{module.capitalize()}View"
    return View
