"""Footers of Parquet files checked in forks of one process that has imported pyarrow.

`rolloutlab.sampling.parquet_rows` starts a Python for each file that it reads, since pyarrow ends its process at some
damaged ones. A fork ends in the same way, without a third of a second of imports.
"""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

FORKS = """
import io, os, pyarrow.parquet, sys
asked, answers = sys.stdin.buffer, sys.stdout.buffer
while size := asked.read(8):
    read = asked.read(int.from_bytes(size, "little"))
    code = asked.read(int.from_bytes(asked.read(8), "little"))
    pid = os.fork()
    if not pid:
        sys.stdin = io.TextIOWrapper(io.BytesIO(read))
        try:
            exec(code)
        except BaseException:
            os._exit(1)
        os._exit(0)
    answers.write(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]).to_bytes(4, "little", signed=True))
    answers.flush()
"""


class ForkedChecks:
    """`run` stands in for `subprocess.run` of `python -P -c CODE` with bytes as its input.

    Its process starts at the first call.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def run(self, command: list[str], *, input: bytes, **_: Any) -> SimpleNamespace:  # noqa: A002
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", FORKS],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # an interrupt is for the test
                )
            asked, answers = self._process.stdin, self._process.stdout
            assert asked
            assert answers
            try:
                for part in (input, command[-1].encode()):
                    asked.write(len(part).to_bytes(8, "little") + part)
                asked.flush()
                return SimpleNamespace(returncode=int.from_bytes(answers.read(4), "little", signed=True))
            except BaseException:  # the next would read the answer to this one
                self.end()
                raise

    def end(self) -> None:
        if self._process:
            self._process.kill()
            with self._process:
                self._process = None


def stand_in(checks: ForkedChecks) -> Any:
    """What takes the place of the module `subprocess` there; where nothing can fork, the module itself."""
    return SimpleNamespace(run=checks.run) if hasattr(os, "fork") else subprocess
