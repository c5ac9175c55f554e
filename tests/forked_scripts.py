"""Scripts run in forks of one process that has imported what a notebook has.

A Python of its own would import that for more than a second of processor time, for scripts of milliseconds.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

FORKS = """
import gc, json, os, sys
import IPython, pandas, pyarrow, rolloutlab.trajectories.files.exchange
import rolloutlab.search.index, rolloutlab.trajectories.search_view
from rolloutlab.session import Session

gc.freeze()  # else a fork copies most of its memory as it ends
for line in sys.stdin:
    asked = json.loads(line)
    pid = os.fork()
    if not pid:
        for number, path in enumerate(asked["outputs"], 1):
            written = os.open(path, os.O_WRONLY)
            os.dup2(written, number)
            os.close(written)
        sys.argv = ["-c", *asked["arguments"]]
        exec(asked["script"], {"__name__": "__main__"})
        break  # and end as any Python does
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class ForkedScripts:
    """`run` does what `python -c SCRIPT ARGUMENTS` does. Its process starts at the first call.

    folder: an empty one, for what the scripts print.
    """

    def __init__(self, folder: Path) -> None:
        self._outputs = folder / "stdout", folder / "stderr"
        self._process: subprocess.Popen[str] | None = None

    def run(self, script: str, *arguments: str) -> SimpleNamespace:
        if self._process is None:
            command = [sys.executable, "-c", FORKS]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for path in self._outputs:
            path.write_text("")
        asked = {"script": script, "arguments": arguments, "outputs": [str(path) for path in self._outputs]}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        status = int(self._process.stdout.readline())
        stdout, stderr = (path.read_text() for path in self._outputs)
        return SimpleNamespace(returncode=status, stdout=stdout, stderr=stderr)

    def end(self) -> None:
        if self._process:
            self._process.communicate()
