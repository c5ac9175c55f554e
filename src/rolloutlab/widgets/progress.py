"""Progress of long work: a bar in a notebook, a line in a terminal, nothing for what is over at once."""

import sys
import time
from html import escape
from typing import Any, Self

from rolloutlab.sanitize import without_mathjax

_UNSEEN = 1.0
_WIDEST = 100


class Progress:
    """A context in which `update` may be called often; it appears after a second and is gone at the end.

    view: what a kernel shows instead of a bar; it keeps itself up to date.
    """

    def __init__(self, title: str, *, visible: bool = True, view: Any = None) -> None:
        self._title = title
        self._begun = time.monotonic()
        self._display: Any = None
        self._line = ""
        self._kept = ""
        self._visible = visible
        self._view = view
        self._stays = False

    def update(self, done: int, total: int | None, note: str = "", text: str = "") -> None:
        """Show that `done` of `total` (None: unknown) is done, and the text that has come so far."""
        if not self._visible or time.monotonic() - self._begun < _UNSEEN:
            return
        of = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        line = f"{self._title}: {of}  {text[-_WIDEST:] or note}"
        if line != self._line:
            self._line = line
            self._show(line, done, total)

    def step(self, what: str, done: int, total: int) -> None:
        """As `update`, for work of several steps: what is done, and how many of how many."""
        self.update(done, total, what)

    def keep(self, line: str) -> None:
        """Leave this line behind when the work is over."""
        self._kept = line

    def leave(self) -> None:
        """Leave the view there when the work is over."""
        self._stays = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._display is not None and not (self._view and (self._stays or self._kept)):
            if self._kept:
                self._display.update(_Bar(self._kept))
            else:
                self._display.update({}, raw=True)  # an output without a type takes no room
            return
        if self._line and sys.stdout.isatty():
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()
        if self._kept and self._visible:
            print(self._kept)

    def _show(self, line: str, done: int, total: int | None) -> None:
        bar = _Bar(line, f'<progress value="{done}" max="{total}"></progress>' if total else "<progress></progress>")
        if self._display is not None:
            if not self._view:
                self._display.update(bar)
        elif in_notebook():
            from IPython.display import display

            self._display = display(self._view or bar, display_id=True)  # type: ignore[no-untyped-call]
        elif sys.stdout.isatty():
            sys.stdout.write(f"\r\x1b[K{line}")
            sys.stdout.flush()


class _Bar:
    """One state of the bar, with its plain text."""

    def __init__(self, line: str, bar: str = "") -> None:
        self._line = line
        self._bar = bar

    def __repr__(self) -> str:
        return self._line

    def _repr_html_(self) -> str:
        return without_mathjax(f"{self._bar} {escape(self._line)}".strip())


def in_notebook() -> bool:
    """Whether this is a kernel, whose outputs can change after they are shown."""
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")
