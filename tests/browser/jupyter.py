"""A real `jupyter lab` server, which serves Notebook 7 as well, with nothing of whoever runs the tests in it."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import rolloutlab

LONGEST_START = 240
SOURCE = Path(rolloutlab.__file__).parent.parent
NEWS = "@jupyterlab/apputils-extension/notification.jupyterlab-settings"
THEMES = "@jupyterlab/apputils-extension/themes.jupyterlab-settings"
OPTIONS = (
    "--no-browser",
    "--ip=127.0.0.1",
    "--port=0",
    "--LabApp.expose_app_in_browser=True",
    "--JupyterNotebookApp.expose_app_in_browser=True",
    "--ServerApp.allow_root=True",
)
OPEN = ("--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True")
"""Whoever comes may do anything."""


class Jupyter:
    """The server: `notebooks` is the folder it serves, `url` where it does. python: whose JupyterLab it is."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        python: str = sys.executable,
        options: Sequence[str] = OPEN,
    ) -> None:
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir()
        self.log = folder / "jupyter.log"
        self._settings = folder / "config" / "lab" / "user-settings"
        self._runtime = folder / "runtime"
        lay_out(folder)
        news = self._settings / NEWS
        news.parent.mkdir(parents=True)
        news.write_text(json.dumps({"fetchNews": "false", "checkForUpdates": False}))
        command = [python, "-m", "jupyterlab", *OPTIONS, *options, f"--ServerApp.root_dir={self.notebooks}"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=surroundings(folder, environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def url(self) -> str:
        """Where the server listens, once it does; its file is written before the port is bound."""
        published = self._runtime / f"jpserver-{self._process.pid}.json"
        end = time.monotonic() + LONGEST_START
        while not (published.exists() and (text := published.read_text()) and listens(json.loads(text)["port"])):
            assert self._process.poll() is None, f"jupyter lab has ended:\n{self.log.read_text()}"
            assert time.monotonic() < end, f"jupyter lab does not start:\n{self.log.read_text()}"
            time.sleep(0.05)
        return json.loads(text)["url"].rstrip("/")

    def forget_theme(self) -> None:
        """Back to the theme that everybody begins with; the front-ends store what is chosen."""
        (self._settings / THEMES).unlink(missing_ok=True)

    def stop(self) -> None:
        """End the server and with it all kernels; one that does not end by itself is killed."""
        self._process.terminate()
        try:
            self._process.wait(LONGEST_START)
        except subprocess.TimeoutExpired:  # on a busy machine it may wait for a kernel for minutes
            self._process.kill()
            self._process.wait()


def lay_out(folder: Path) -> None:
    """Copy there what a wheel of this checkout puts beside the package for Jupyter."""
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())
    for source, target in project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"].items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (SOURCE.parent / source).is_dir() else shutil.copyfile
        copy(SOURCE.parent / source, folder / target)


def listens(port: int) -> bool:
    """Whether something does on this machine; a server writes its file before its port is bound."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def surroundings(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the server and its kernels: private folders, this checkout's rolloutlab and lab extension."""
    ours = ("JUPYTER", "ROLLOUTLAB", "IPYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {
        **kept,
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTER_PATH": str(folder / "share" / "jupyter"),
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")])),
        "ROLLOUTLAB_SETTINGS": os.devnull,
        **environment,
    }
