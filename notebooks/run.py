"""Run a notebook headless in a lab of its own, and print what its last cell prints: `python notebooks/run.py FILE`.

With `--save` the file then holds the new outputs.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

LONGEST_CELL = 600
BROWSER = Path(__file__).resolve().with_name("browser.py")
LIVE = ("application/vnd.jupyter.widget-view+json", "application/x-rolloutlab.view+json")


def run(path: Path, home: Path) -> nbformat.NotebookNode:
    """The executed notebook; CellExecutionError when a cell fails."""
    os.environ.update(ROLLOUTLAB_HOME=str(home), ROLLOUTLAB_LINGER="1")
    os.environ.update(ROLLOUTLAB_BROWSER=shlex.join([sys.executable, str(BROWSER)]))
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=LONGEST_CELL,
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,
        record_timing=False,
    )
    return client.execute(stderr=subprocess.DEVNULL)  # what a cell says comes in its outputs; this is start-up chatter


def printed(notebook: nbformat.NotebookNode) -> str:
    """What the last code cell wrote to stdout."""
    last = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
    return "".join(output.text for output in last.outputs if output.output_type == "stream")


def save(notebook: nbformat.NotebookNode, path: Path, home: Path) -> None:
    """The notebook as it is committed: of each view its HTML and its text, since a widget is gone with its kernel.

    home: the lab's folder, which is of one run.
    """
    for cell in [each for each in notebook.cells if each.cell_type == "code"]:
        for output in cell.outputs:
            for kept in (output.get("data", {}), output.get("metadata", {})):
                for kind in LIVE:
                    kept.pop(kind, None)
        cell.outputs = [output for output in cell.outputs if output.get("data") != {}]  # where progress was shown
    notebook.metadata.language_info = {"name": "python"}
    path.write_text(nbformat.writes(notebook).replace(str(home), "~/lab") + "\n")


def main(path: Path, *, saves: bool) -> int:
    """0 when every cell ran, 1 when one failed."""
    with tempfile.TemporaryDirectory(prefix="rolloutlab-") as home:
        try:
            notebook = run(path, Path(home))
        except CellExecutionError as error:
            print(error, file=sys.stderr)
            return 1
    print(printed(notebook).strip())
    if saves:
        save(notebook, path, Path(home))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--save", action="store_true", help="write the outputs into the file")
    asked = parser.parse_args()
    sys.exit(main(asked.path, saves=asked.save))
