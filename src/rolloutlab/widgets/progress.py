"""Output that changes while a cell runs: a progress bar, and objects that are shown anew in their place."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from rolloutlab.sanitize import escape_to_one_line
from rolloutlab.widgets.html import escape, for_notebook

_DELAY = 0.3
"""Seconds of work after which a line is shown."""
_VIEW_DELAY = 1.0
"""Seconds after which a view replaces the line. Work that takes less time shows only its result."""
_MAX_WIDTH = 100


class Progress:
    """A context that shows progress: a bar in a notebook, a line in a terminal. `update` may be called often.

    It appears after 0.3 seconds and is removed at the end. view: a view that updates itself; in a notebook it replaces
    the bar after a second.
    """

    def __init__(self, title: str, *, visible: bool = True, view: Any = None) -> None:
        self._title = title
        self._begun = time.monotonic()
        self._display: Any = None
        self._line = ""
        self._last_line = ""
        self._visible = visible
        self._view = view
        self._view_is_shown = False
        self._stays = False

    def update(self, done: int, total: int | None, note: str = "", text: str = "", part: float = 0) -> None:
        """Show how much is done.

        Args:
            done: How many are done.
            total: How many there are; None if that is not known.
            note: Words beside the numbers.
            text: The text that has come so far; if there is some, its end replaces the note.
            part: The fraction of the next one that is done, for the bar only.
        """
        if not self._visible or self._seconds() < _DELAY:
            return
        of = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        line = f"{self._title}: {of}  {escape_to_one_line(text[-_MAX_WIDTH:]) or note}"  # text is a model's
        if line != self._line:
            self._line = line
            self._show(line, done + part, total)

    def begin(self, what: str, seconds: float = 0.0) -> None:
        """Show what begins now, unless it is likely to end within the first 0.3 seconds of the context.

        Call it before work that reports nothing until it ends. seconds: about how long the work takes.
        """
        if self._seconds() + seconds >= _DELAY:
            self.waiting(what)

    def waiting(self, what: str) -> None:
        """Show at once what is waited for, which is known to take seconds."""
        if self._visible and (line := f"{self._title}: {what}") != self._line:
            self._line = line
            self._show(line, 0, None)

    def clear(self) -> None:
        """Take the line away, until another one is shown."""
        if self._line and self._display is not None and not self._view_is_shown:
            self._display.update({}, raw=True)
        elif self._line:
            self._erase()
        self._line = ""

    def step(self, what: str, done: int, total: int) -> None:
        """Show what is being done, and how many steps of how many are done."""
        self.update(done, total, what)

    def count(self, done: int) -> None:
        """Show how many are done, of an unknown number."""
        self.update(done, None)

    def keep(self, line: str) -> None:
        """Print this line when the work is over, after the lines of earlier calls."""
        self._last_line = "\n".join(filter(None, [self._last_line, line]))

    def leave(self) -> None:
        """Leave the view on the page when the work is over."""
        self._stays = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._display is not None and not (self._view_is_shown and (self._stays or self._last_line)):
            self._display.update({}, raw=True)  # an output without a type takes no room
        if self._line:
            self._erase()
        with suppress(OSError):  # as in `_erase`
            if self._last_line and self._visible:
                print(self._last_line)

    @staticmethod
    def _erase() -> None:
        """Empty the line of a terminal."""
        with suppress(OSError):  # a terminal that was closed must not end work that is being stored
            if sys.stdout.isatty():
                sys.stdout.write("\r\x1b[K")
                sys.stdout.flush()

    def _seconds(self) -> float:
        return time.monotonic() - self._begun

    def _show(self, line: str, done: float, total: int | None) -> None:
        bar = _Bar(line, f'<progress value="{done}" max="{total}"></progress>' if total else "<progress></progress>")
        if self._display is None and in_notebook():
            from IPython.display import display

            # empty at first: nbval compares an output as it was first shown, and only a slow machine shows a bar
            self._display = display({}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        if self._view_is_shown:
            return
        if self._display is not None:
            self._view_is_shown = self._view is not None and self._seconds() >= _VIEW_DELAY
            self._display.update(self._view if self._view_is_shown else bar)
        else:
            with suppress(OSError):  # as in `_erase`
                if sys.stdout.isatty():
                    # cut, because the next line would overwrite only the last part of a line that wraps
                    shown = line[: shutil.get_terminal_size().columns - 1]
                    sys.stdout.write(f"\r\x1b[K{shown}")
                    sys.stdout.flush()


@contextmanager
def waiting() -> Iterator[Callable[[str], None]]:
    """Enter a context with a function that shows at once what is waited for. Nothing of it stays at the end."""
    with Progress("rolloutlab") as shown:
        yield shown.waiting


class _Bar:
    """One state of the bar, with its plain text."""

    def __init__(self, line: str, bar: str = "") -> None:
        self._line = line
        self._bar = bar

    def __repr__(self) -> str:
        return self._line

    def _repr_html_(self) -> str:
        return for_notebook(f"{self._bar} {escape(self._line)}".strip())


class ShownLive:
    """Base of what `Live` shows while a cell runs. As the result of that cell it is not shown a second time."""

    _on_the_page = False

    def _ipython_display_(self) -> None:
        if not self._on_the_page:
            raise NotImplementedError  # IPython goes on to the other representations


class Live:
    """Shows an object again and again in the same place of a notebook; elsewhere calls `say` with a line per change."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._display: Any = None

    def update(self, shown: ShownLive, line: str) -> None:
        """Show the object as it is now. line: what has changed; an empty one is not said."""
        if not in_notebook():
            if line:
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

            def cell_ends(_result: object) -> None:
                shown._on_the_page = False
                events.unregister("post_run_cell", cell_ends)

            # not post_execute: a kernel triggers that for each message of a widget, too
            events.register("post_run_cell", cell_ends)
        shown._on_the_page = True


def in_notebook() -> bool:
    """Whether this is a kernel, whose outputs can change after they are shown."""
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")
