"""Send runs to trackers: while a loop goes on, and when a user asks for it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rolloutlab.errors import described
from rolloutlab.runs.catalogue import load_runs
from rolloutlab.runs.run import Run
from rolloutlab.runs.tracker import Tracker
from rolloutlab.store.lab import Lab
from rolloutlab.training.loop import Loop
from rolloutlab.training.sweep import Loops
from rolloutlab.widgets.progress import Live, ShownLive


def send_runs(runs: Iterable[Run], trackers: Sequence[Tracker]) -> list[str]:
    """Bring runs up to date at every tracker; returns a line for each that says where it is now.

    Raises:
        LabError, ServiceError: a tracker does not take a run.
    """
    return [tracker.log(run.table()) for run in runs for tracker in trackers]


class LiveReporting(Live):
    """Shows a loop as `Live` does, and sends its run to trackers after each round.

    A tracker that fails does not end the loop: its error is said once, and it is asked again after the next round.
    """

    def __init__(
        self, say: Callable[[str], None], lab: Callable[[], Lab], service: str, trackers: Sequence[Tracker]
    ) -> None:
        super().__init__(say)
        self._tell, self._lab, self._service, self._trackers = say, lab, service, trackers
        self._sent: tuple[int, int] | None = None
        self._where: dict[str, None] = {}
        self._failed: set[str] = set()
        self._shown: ShownLive | None = None

    def update(self, shown: ShownLive, line: str) -> None:
        super().update(shown, line)
        self._send(shown)

    def close(self) -> None:
        """Send what came after the last round, and say where the runs are."""
        if self._shown:
            self._send(self._shown)
        for line in self._where:
            self._tell(line)

    def _send(self, shown: ShownLive) -> None:
        self._shown, version = shown, self._lab().changes()
        if version == self._sent:
            return
        loops = [shown] if isinstance(shown, Loop) else shown if isinstance(shown, Loops) else []
        newest: dict[str, Run] = {}  # older runs of a model do not change any more
        with self._tell_errors("no run was sent"):
            for run in load_runs(self._lab(), {loop.model for loop in loops}):
                if run.service == self._service and _is_later(run, newest.get(run.model)):
                    newest[run.model] = run
        for run in newest.values():
            for tracker in self._trackers:
                with self._tell_errors(f"{run.name} was not sent"):
                    self._where[tracker.log(run.table())] = None
        self._sent = version

    @contextmanager
    def _tell_errors(self, failure: str) -> Iterator[None]:
        """A context that says an error once instead of raising it. failure: what did not happen then."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a tracker does, the loop goes on
            line = f"{failure}: {described(error)}"
            if line not in self._failed:
                self._failed.add(line)
                self._tell(line)


def _is_later(run: Run, other: Run | None) -> bool:
    return other is None or run.record.number > other.record.number
