"""An interrupt while the first cell imports what it needs: the cells after it run."""

import os
import subprocess
import sys

import pytest

NOTEBOOK = """
import signal
import sys
import threading

from IPython.core.interactiveshell import InteractiveShell

go_on = threading.Event()


def interrupt(event, arguments):
    # Ctrl-C in the middle of aiohttp's own imports, which then take until the cell has ended
    if event == "import" and arguments[0] == "aiohttp.connector" and not go_on.is_set():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert go_on.wait(240)


shell = InteractiveShell()
shell.run_line_magic("load_ext", "rolloutlab")
sys.addaudithook(interrupt)
for cell in sys.argv[1:]:
    result = shell.run_cell(cell)
    go_on.set()
    print("THEN", repr(result.error_in_exec))
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of threads")
@pytest.mark.parametrize("first", ["%service", "import rolloutlab\nrolloutlab.lab().service()"])
def test_the_cell_after_an_interrupted_first_one_runs(tmp_path, first):
    environment = {**os.environ, "ROLLOUTLAB_HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")}
    command = [sys.executable, "-c", NOTEBOOK, first, "%service"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
    interrupted, then = ended.stdout.split("THEN KeyboardInterrupt()\n")
    stopped = "the embedded service is not running; the first %%chat starts it"
    assert stopped not in interrupted
    assert then.splitlines() == [stopped, "THEN None"]
