"""The embedded service: its state, its end, its log."""

from difflib import get_close_matches
from pathlib import Path

from rolloutlab.errors import InputError
from rolloutlab.objective.preflight import count
from rolloutlab.session.base import SessionBase
from rolloutlab.store.damage import checked


class ServiceCalls(SessionBase):
    """What can be asked of the embedded service."""

    def service(self, action: str = "status") -> str:
        """What `%service` says of the embedded service: its `status`, that it could `stop`, or the end of its `log`.

        `check` reads every page of the lab's files, and says which are damaged and what to do about them, and what
        the service keeps of jobs that its database does not list.
        """
        if action not in (actions := ("status", "stop", "log", "check")):
            close = get_close_matches(str(action), actions, n=1)
            raise InputError(f"the service cannot {action}", hint=f"%service {close[0] if close else 'status'}")
        if action == "check":
            return "\n".join([*checked(self._files), *self._lost_bodies()])
        if action == "log":
            return self.embedded.tail(40) or "the embedded service has written nothing"
        if action == "stop" and self.embedded.stop():
            return "the embedded service has stopped; the next %%chat starts it again"
        found = None if action == "stop" else self.embedded.running()
        if found is None:
            return "the embedded service is not running; the first %%chat starts it"
        runs = f"the embedded service runs at {found.base_url}, lab folder {self.settings.home}"
        return f"{runs}\nits context server is {found.base_url}/context -> %login embedded"

    def _lost_bodies(self) -> list[str]:
        """A line where bodies of jobs are set aside, which the service's database does not list."""
        folder = self.settings.service_folder / "jobs" / ".lost"
        if not (bodies := [path for path in folder.glob("*.json") if not path.name.endswith(".reason.json")]):
            return []
        typed = "POST each to /v1/preview/training-jobs to train on it, with its name as Idempotency-Key"
        return [f"{folder}: {count(len(bodies), 'body')} of jobs that service.db does not list -> {typed}"]

    @property
    def _files(self) -> dict[Path, str]:
        """The lab's files, and what to do about each that is damaged."""
        return {
            self.settings.database: "%export NAME FILE saves what can be read, if it opens at all; then put a backup "
            "in its place, or move it away, with its -wal and -shm, to begin an empty lab",
            self.settings.search_database: "%search --reindex makes it anew",
            self.settings.service_folder / "service.db": "put a backup in its place, or move it away and "
            "%models --recover, which lists the checkpoints anew",
        }
