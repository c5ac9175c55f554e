"""A shell with the magics, on a session that talks to the service in this process."""

import atexit
import sys
from collections.abc import Callable, Iterator

import httpx
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from rolloutlab.api.http.client import HttpClient
from rolloutlab.magics import register
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from tests.paid import Paid

GUESS = """
from rolloutlab import Step

class Guess:
    def __init__(self, row):
        self.turns = 0
    def reset(self, seed):
        return "Say anything."
    def step(self, answer):
        self.turns += 1
        return Step("on", done=self.turns > 2)
"""
"""A cell with an environment of three turns."""


class Notebook:
    """Runs cells as a notebook does."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell

    def run(self, cell: str):
        """The value of the cell, or the error that stopped it is raised."""
        result = self.shell.run_cell(cell, store_history=False)
        result.raise_error()
        return result.result

    def error(self, cell: str) -> str:
        """The lines that the cell shows instead of a value."""
        result = self.shell.run_cell(cell, store_history=False)
        assert not result.success, "the cell was expected to stop"
        error = result.error_in_exec or result.error_before_exec
        return "\n".join(error._render_traceback_())

    @property
    def lab(self) -> Session:
        """The session of the magics."""
        return self.shell.magics_manager.registry["ChatMagics"].session

    def __getitem__(self, name: str):
        return self.shell.user_ns[name]


@pytest.fixture
def paid() -> Paid:
    return Paid()


@pytest.fixture
def at_paid(paid: Paid) -> Iterator[Callable[[Settings], Session]]:
    """Makes sessions that talk to the service `paid`."""
    http, sessions = HttpClient(httpx.MockTransport(paid), backoff=0), []

    def make(settings: Settings) -> Session:
        sessions.append(Session(settings, http=http))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()
    http.close()


@pytest.fixture
def bare() -> Iterator[InteractiveShell]:
    """A shell as it is before `%load_ext`; it leaves no thread and nothing to do at exit behind."""
    main = sys.modules["__main__"]
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    yield shell
    sys.modules["__main__"] = main  # the next shell would keep this one, with all that its cells made
    shell.history_manager.end_session()
    atexit.unregister(shell.atexit_operations)


@pytest.fixture
def notebook(bare: InteractiveShell, session: Session) -> Notebook:
    shell = bare
    register(shell, session)
    shell.user_ns["countries"] = [{"country": "France", "capital": "Paris"}, {"country": "Peru", "capital": "Lima"}]
    return Notebook(shell)
