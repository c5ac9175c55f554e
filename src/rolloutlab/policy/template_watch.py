"""Time limit of chat templates: they are programs that come with a policy, and one with nested loops never ends."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from rolloutlab.errors import Cancelled, TemplateTimeError
from rolloutlab.runtime import raise_in_thread

T = TypeVar("T")
SECONDS = 30.0
"""The limit for one rendering. A conversation of megabytes takes a tenth of a second."""
_TICK = 0.25


@dataclass
class _Rendering:
    begun: float
    check: Callable[[], None]
    error: Exception | None = None


class TemplateWatch:
    """A thread that ends renderings in other threads that take too long or are cancelled.

    It costs a rendering a microsecond; counting the lines of the template takes twice the time of the rendering.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._running: dict[int, _Rendering] = {}
        self._any = threading.Event()
        self._thread: threading.Thread | None = None

    def run(self, render: Callable[[], T], check: Callable[[], None]) -> T:
        """Call `render`, and end it if it takes too long, or if `check` raises an error; return its value.

        check: called again and again, in the thread of this watch. Its error is raised here.

        Raises:
            TemplateTimeError: it took too long.
        """
        mine, ident = _Rendering(time.monotonic(), check), threading.get_ident()
        try:
            try:
                self._enter(ident, mine)
                return render()
            finally:
                self._leave(ident)
        except _StoppedError:
            self._leave(ident)
            raise mine.error or Cancelled from None

    def _enter(self, ident: int, rendering: _Rendering) -> None:
        with self._lock:
            self._running[ident] = rendering
            if self._thread is None or not self._thread.is_alive():  # none lives on in a forked process
                self._thread = threading.Thread(target=self._watch, name="rolloutlab-templates", daemon=True)
                self._thread.start()
        self._any.set()

    def _leave(self, ident: int) -> None:
        # The watch holds the lock while it sets an exception for this thread, and Python raises that at the next call.
        # So it is raised here at the latest, and never in what the thread does after the rendering.
        with self._lock:
            self._running.pop(ident, None)

    def _watch(self) -> None:
        while self._any.wait():
            time.sleep(_TICK)
            with self._lock:
                for ident, rendering in self._running.items():
                    if self._ends(rendering):
                        raise_in_thread(ident, _StoppedError)
                if not self._running:
                    self._any.clear()

    def _ends(self, rendering: _Rendering) -> bool:
        """Whether a rendering is to end; sets the error that it ends with."""
        try:
            rendering.check()
        except Exception as error:  # noqa: BLE001 - raised by the rendering
            rendering.error = error
        if rendering.error is None and time.monotonic() - rendering.begun > self._seconds:
            what = f"the chat template took more than {self._seconds:g} s for one conversation"
            rendering.error = TemplateTimeError(what, hint="a policy whose chat_template has no endless loop")
        return rendering.error is not None


class _StoppedError(BaseException):
    """Raised in the thread of a rendering that is to end; no template can catch it."""


@cache
def template_watch() -> TemplateWatch:
    """The watch of this process."""
    return TemplateWatch()
