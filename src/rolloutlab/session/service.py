"""The embedded service: its state, its end, its log."""

from difflib import get_close_matches

from rolloutlab.errors import InputError
from rolloutlab.session.base import SessionBase


class ServiceCalls(SessionBase):
    """What can be asked of the embedded service."""

    def service(self, action: str = "status") -> str:
        """What `%service` says of the embedded service: its `status`, that it could `stop`, or the end of its `log`."""
        if action not in (actions := ("status", "stop", "log")):
            close = get_close_matches(str(action), actions, n=1)
            raise InputError(f"the service cannot {action}", hint=f"%service {close[0] if close else 'status'}")
        if action == "log":
            return self.embedded.tail(40) or "the embedded service has written nothing"
        if action == "stop" and self.embedded.stop():
            return "the embedded service has stopped; the next %%chat starts it again"
        found = None if action == "stop" else self.embedded.running()
        if found is None:
            return "the embedded service is not running; the first %%chat starts it"
        runs = f"the embedded service runs at {found.base_url}, lab folder {self.settings.home}"
        return f"{runs}\nits context server is {found.base_url}/context -> %login embedded"
