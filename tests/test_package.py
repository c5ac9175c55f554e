"""What every user meets first: the import, and notebooks that read without a kernel."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rolloutlab

ROOT = Path(__file__).parent.parent


def test_importing_the_package_imports_nothing_but_the_standard_library():
    code = "import sys; before = set(sys.modules); import rolloutlab; print(*(set(sys.modules) - before))"
    added = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert {name.partition(".")[0] for name in added.split()} - sys.stdlib_module_names == {"rolloutlab"}


HEAVY = {"aiohttp", "anywidget", "httpx", "httpx_aiohttp", "ipywidgets", "numpy", "pandas", "pydantic", "sqlite3"}
LOADED = """
import sys
import tomllib
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.history_manager.enabled = False
before = set(sys.modules)
shell.run_line_magic("load_ext", "rolloutlab")
shell.run_cell("1 + 1")
print(*(set(sys.modules) - before))
"""


def test_loading_the_extension_imports_nothing_that_takes_long_before_a_cell_needs_it(tmp_path):
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, env=environment)
    added = set(done.stdout.split()[2:])  # after `Out[1]: 2`
    assert {name.partition(".")[0] for name in added} & HEAVY == set()
    ours = {name for name in added if name.startswith("rolloutlab.")}
    assert "rolloutlab.magics.chat" in ours
    light = r"magics|errors|objective|sanitize|api\.wire|environments\.(adapters|protocol)|trajectories\.files"
    rooms = {f"rolloutlab.{room}" for room in ("api", "environments", "trajectories")}  # light are only parts of them
    assert {name for name in ours - rooms if not re.match(rf"rolloutlab\.({light})(\.|$)", name)} == set()
    assert (
        ours & {"rolloutlab.api.wire.chat", "rolloutlab.api.wire.training", "rolloutlab.objective.advantages"} == set()
    )


def test_a_session_imports_no_library_that_only_frames_searches_or_a_notebook_need(tmp_path):
    code = "import sys, rolloutlab; rolloutlab.Session(); print(*sys.modules)"
    environment = {**os.environ, "ROLLOUTLAB_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    added = done.stdout.split()
    assert "rolloutlab.session" in added
    assert {name.partition(".")[0] for name in added} & {"IPython", "numpy", "pandas", "pyarrow", "torch"} == set()


def test_the_public_names_are_found():
    import rolloutlab
    from rolloutlab import session

    assert rolloutlab.Session is session.Session
    assert rolloutlab.lab is session.lab


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_what_reads_without_a_kernel(path):
    notebook = json.loads(path.read_text())
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert notebook["metadata"].keys() == {"kernelspec", "language_info"}
    assert not [kind for output in outputs for kind in output.get("data", {}) if kind.endswith("view+json")]


def test_the_lab_extension_that_a_wheel_carries_is_of_this_version():
    folder = ROOT / "jupyter-share/labextensions/rolloutlab"
    described = json.loads((folder / "package.json").read_text())
    assert described["version"] == rolloutlab.__version__
    script = folder / described["jupyterlab"]["_build"]["load"]
    assert script.stem == f"rolloutlab-{rolloutlab.__version__}"  # browsers keep it under this name for a year
    shared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "shared-data"
    ]
    assert script.is_file()
    assert f"share/jupyter/labextensions/rolloutlab/static/{script.stem}.css" in shared.values()
