"""IPython in a terminal: cells are typed there line by line, and a blank line ends one."""

import os
import sys
from collections.abc import Iterator

import pexpect
import pytest

from tests.kernel.terminals import end

pytestmark = pytest.mark.process

LONGEST = 300
COMMAND = ["-m", "IPython", "--simple-prompt", "--colors=NoColor", "--no-banner", "--no-confirm-exit"]
PROMPT = r"In \[\d+\]: "


class Terminal:
    """A person at a terminal."""

    def __init__(self, process: "pexpect.spawn[str]") -> None:
        self.process = process
        process.expect(PROMPT)

    def type(self, cell: str) -> str:
        """Type a cell, or statements one by one; what the terminal showed until it asked for more."""
        lines = cell.rstrip("\n").splitlines()
        if cell.startswith("%%"):
            return self._enter(*lines, "", "")
        return "".join(self._enter(line) for line in lines)

    def _enter(self, *lines: str) -> str:
        for line in lines:
            self.process.sendline(line)
        self.process.expect(PROMPT)
        return self.process.before or ""


@pytest.fixture
def terminal(tmp_path) -> Iterator[Terminal]:
    places = {"ROLLOUTLAB_HOME": str(tmp_path / "lab"), "IPYTHONDIR": str(tmp_path / "ipython")}
    environment = {**os.environ, **places, "ROLLOUTLAB_LINGER": "1", "TERM": "dumb"}
    process = pexpect.spawn(
        sys.executable, COMMAND, env=environment, encoding="utf-8", timeout=LONGEST, dimensions=(50, 80)
    )
    yield Terminal(process)
    end(process)


def test_the_cells_of_the_readme_work_when_they_are_typed_and_80_columns_show_what_matters(terminal, readme_cells):
    said = "".join(terminal.type(cell) for cell in readme_cells)
    assert len(readme_cells) == 7
    assert "Error" not in said
    assert "choices: 8 completions in 1 group, not scored yet" in said
    assert "job on lab/practice: succeeded, 1 of 1 gradient step -> lab/practice@1" in said
    assert "-> lab/practice@2" in said
    assert "2 checkpoints" not in said
    assert "3 checkpoints, newest 2" in terminal.type("%model")
    rewards, jobs, collections = map(terminal.type, ("%rewards choices", "%jobs", "%collections"))
    assert {"reward", "completion"} <= set(rewards.split())
    assert {"made", "lab/practice@1", "reward"} <= set(jobs.split())
    assert {"choices", "reward", "when"} <= set(collections.split())
    assert all(len(line) <= 80 for line in (rewards + jobs + collections).splitlines())
