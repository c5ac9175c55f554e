"""Run a notebook headless in a lab of its own, and print what its last cell prints: `python notebooks/run.py FILE`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

LONGEST_CELL = 600


def run(path: Path, home: Path) -> nbformat.NotebookNode:
    """The executed notebook; CellExecutionError when a cell fails."""
    os.environ.update(ROLLOUTLAB_HOME=str(home), ROLLOUTLAB_LINGER="1")
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=LONGEST_CELL, resources={"metadata": {"path": str(path.parent)}})
    return client.execute(stderr=subprocess.DEVNULL)  # what a cell says comes in its outputs; this is start-up chatter


def printed(notebook: nbformat.NotebookNode) -> str:
    """What the last code cell wrote to stdout."""
    last = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
    return "".join(output.text for output in last.outputs if output.output_type == "stream")


def main(path: Path) -> int:
    """0 when every cell ran, 1 when one failed."""
    with tempfile.TemporaryDirectory(prefix="rolloutlab-") as home:
        try:
            print(printed(run(path, Path(home))).strip())
        except CellExecutionError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
