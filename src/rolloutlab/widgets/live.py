"""Something that goes on changing: shown in place in a notebook, a line per change elsewhere."""

from collections.abc import Callable
from typing import Any

from rolloutlab.widgets.progress import in_notebook


class Live:
    """Shows what it is given, each time in the place of what it showed before. say: gets the lines elsewhere."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._display: Any = None

    def update(self, shown: Any, line: str) -> None:
        """Show it as it is now; `line` is what has changed."""
        if self._display is not None:
            self._display.update(shown)
        elif in_notebook():
            from IPython.display import display

            self._display = display(shown, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._say(line)
