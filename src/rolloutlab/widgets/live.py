"""Something that goes on changing: shown in place in a notebook, a line per change elsewhere."""

from collections.abc import Callable
from typing import Any

from rolloutlab.widgets.progress import in_notebook


class ShownLive:
    """Base of what `Live` shows while a cell runs: as the result of that cell it is not shown a second time."""

    _on_the_page = False

    def _ipython_display_(self) -> None:
        if not self._on_the_page:
            raise NotImplementedError  # IPython goes on to the other ways


class Live:
    """Shows what it is given, each time in the place of what it showed before. say: gets the lines elsewhere."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._display: Any = None

    def update(self, shown: ShownLive, line: str) -> None:
        """Show it as it is now; `line` is what has changed."""
        if not in_notebook():
            self._say(line)
            return
        from IPython import get_ipython
        from IPython.display import display

        shown._on_the_page = False
        if self._display is not None:
            self._display.update(shown)
        else:
            self._display = display(shown, display_id=True)  # type: ignore[no-untyped-call]
            events = get_ipython().events

            def cell_ends() -> None:
                shown._on_the_page = False
                events.unregister("post_execute", cell_ends)

            events.register("post_execute", cell_ends)
        shown._on_the_page = True
