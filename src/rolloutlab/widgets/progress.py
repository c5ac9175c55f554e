"""Progress of long work: a bar in a notebook, a line in a terminal, nothing for what is over at once."""

import sys
import time
from html import escape
from typing import Any, Self

_UNSEEN = 0.5


class Progress:
    """A context in which `update` may be called often; it appears after half a second and is gone at the end."""

    def __init__(self, title: str, *, visible: bool = True) -> None:
        self._title = title
        self._begun = time.monotonic()
        self._display: Any = None
        self._line = ""
        self._visible = visible

    def update(self, done: int, total: int | None, note: str = "") -> None:
        """Show that `done` of `total` (None: unknown) is done."""
        if not self._visible or time.monotonic() - self._begun < _UNSEEN:
            return
        of = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        line = f"{self._title}: {of}  {note}"
        if line != self._line:
            self._line = line
            self._show(line, done, total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._display is not None:
            self._display.update(_Bar("", 0, None))
        elif self._line:
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()

    def _show(self, line: str, done: int, total: int | None) -> None:
        if self._display is None and _in_notebook():
            from IPython.display import display

            self._display = display(_Bar(line, done, total), display_id=True)  # type: ignore[no-untyped-call]
        elif self._display is not None:
            self._display.update(_Bar(line, done, total))
        elif sys.stdout.isatty():
            sys.stdout.write(f"\r\x1b[K{line}")
            sys.stdout.flush()


class _Bar:
    """One state of the bar, with its plain text."""

    def __init__(self, line: str, done: int, total: int | None) -> None:
        self._line = line
        self._done = done
        self._total = total

    def __repr__(self) -> str:
        return self._line

    def _repr_html_(self) -> str:
        value = f' value="{self._done}" max="{self._total}"' if self._total else ""
        return f"<progress{value}></progress> {escape(self._line)}" if self._line else ""


def _in_notebook() -> bool:
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")
