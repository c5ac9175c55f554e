"""An object that is a widget in a notebook, and reads well without scripts everywhere else."""

import traceback
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from rolloutlab.errors import RolloutlabError
from rolloutlab.widgets.progress import in_notebook

MIME = "application/vnd.jupyter.widget-view+json"
Bundle = tuple[dict[str, Any], dict[str, Any]]
"""What is shown, by its kind, and what a front-end is to know about it, by the same kinds."""
BUNDLES = Path(__file__).with_name("static")
"""Where the build puts a script and a style sheet per module."""


class NotebookView:
    """Base of what a browser shows with the module of that name, and may ask things of.

    A subclass has `__repr__` and `_repr_html_` too: they are what is seen where no script runs.
    """

    module: ClassVar[str]

    def state(self) -> Mapping[str, Any]:
        """What the browser shows first, as JSON; asked again whenever a page is loaded."""
        raise NotImplementedError

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        """What the browser may ask for, by name. Arguments come and answers go as JSON; errors are told.

        A call may come on another thread than the one that runs cells, also while a cell runs.
        """
        raise NotImplementedError

    def push(self, event: str, **data: Any) -> None:
        """Tell every browser that shows it that something happened; from any thread."""
        if widget := self.__dict__.get("_widget"):
            widget.send({"event": event, **data})

    def renew(self) -> None:
        """Send the state anew, so that pages show it, and those that are loaded later; from any thread."""
        if widget := self.__dict__.get("_widget"):
            widget.send_state("state")

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a browser's `{id, call, args}`: `{id, result}`, or `{id, error: {message, hint}}`."""
        told = _told(lambda: {"result": self.calls()[asked["call"]](**asked.get("args") or {})}, "error")
        return {"id": asked.get("id"), **told}

    def first_state(self) -> Mapping[str, Any]:
        """The state, or `{refused: {message, hint}}`: one view that has none must not keep others from loading."""
        return _told(self.state, "refused")

    def _repr_mimebundle_(self, **_asked: Any) -> Bundle:
        """The widget where there is a browser to show it; IPython adds the text and the HTML.

        In Colab anywidget's metadata names the widget manager that it has switched on, without which none is shown.
        """
        if not self.can_be_seen():
            return {}, {}
        if "_widget" not in self.__dict__:
            self._widget = _widget_class(self.module)(self)
        _, metadata = self._widget._repr_mimebundle_()
        return {MIME: {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}}, metadata

    def can_be_seen(self) -> bool:
        """Whether there may be a browser to show it, and something to show it with."""
        return in_notebook() and self._built()

    def _built(self) -> bool:
        found = (BUNDLES / f"{self.module}.js").exists()
        if not found:
            warnings.warn("the widgets are not built: npm ci && npm run build", stacklevel=2)
        return found


def _told(work: Callable[[], Mapping[str, Any]], otherwise: str) -> Mapping[str, Any]:
    """What comes of some work, or under the name `otherwise` what went wrong, as a browser is told of it."""
    try:
        return work()
    except RolloutlabError as error:
        return {otherwise: {"message": str(error), "hint": error.hint}}
    except Exception as error:  # noqa: BLE001 - a bug of ours: a browser that waits is told, and so is the log
        traceback.print_exc()
        return {otherwise: {"message": f"{type(error).__name__}: {error}", "hint": None}}


@cache
def _widget_class(module: str) -> Any:
    """The widget class of a module; made when first needed, since its library takes a while to import.

    One for each: a page has a style sheet per class.
    """
    import traitlets
    from anywidget import AnyWidget

    class View(AnyWidget):
        """Carries an `Interactive` into the browser. Its state is made anew each time a page asks for it."""

        _esm = traitlets.Unicode().tag(sync=True)
        _css = traitlets.Unicode().tag(sync=True)
        state = traitlets.Dict().tag(sync=True, to_json=lambda _value, widget: widget.shown.first_state())

        def __init__(self, shown: NotebookView) -> None:
            self.shown = shown
            self.on_msg(lambda _widget, asked, _buffers: self.send(shown.answer(asked)))
            script, style = (BUNDLES / f"{module}.{kind}" for kind in ("js", "css"))
            super().__init__(_esm=script.read_text(encoding="utf-8"), _css=style.read_text(encoding="utf-8"))
            # ipykernel 7.4 hands a question to the shell that spoke last, where a cell may run; the page knows better
            self.comm._reply_subshell_for = lambda _asked, wanted: wanted

    View.__name__ = f"{module.capitalize()}View"
    return View
