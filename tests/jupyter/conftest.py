"""A real Jupyter server with the extension, at an address such as a hub gives."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest

import rolloutlab
from rolloutlab.callback.handover import folders, listening
from rolloutlab.http import Http

LONGEST_START = 60
TOKEN = "of-the-jupyter-server"
CONFIG = Path(__file__).parent.parent.parent / "jupyter-config"
OPTIONS = (
    "--no-browser",
    "--ip=127.0.0.1",
    "--port=0",
    f"--IdentityProvider.token={TOKEN}",
    "--ServerApp.base_url=/user/jo/",
    "--ServerApp.allow_root=True",
    "--ServerApp.log_level=DEBUG",
)


class JupyterServer:
    """url: where it is, with its base_url and a slash. log: all it has said. places: where it looks for sockets."""

    token = TOKEN

    def __init__(self, folder: Path) -> None:
        runtime, self._log = folder / "run", folder / "log"
        runtime.mkdir(mode=0o700)
        self.places = folders({"XDG_RUNTIME_DIR": str(runtime)})[:1]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
        own = {f"JUPYTER_{name.upper()}_DIR": str(folder / name) for name in ("config", "data", "runtime")}
        own |= {"JUPYTER_CONFIG_PATH": str(CONFIG), "XDG_RUNTIME_DIR": str(runtime), "JUPYTER_PREFER_ENV_PATH": "0"}
        own["PYTHONPATH"] = str(Path(rolloutlab.__file__).parent.parent)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jupyter_server", *OPTIONS, f"--ServerApp.root_dir={folder}"],
                env={**kept, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        published = folder / "runtime" / f"jpserver-{self._process.pid}.json"
        end = time.monotonic() + LONGEST_START
        while not (published.exists() and (text := published.read_text())):
            assert self._process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.05)
        self.url = json.loads(text)["url"]

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def origin(self) -> str:
        return self.url.removesuffix("/user/jo/")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(LONGEST_START)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    server = JupyterServer(tmp_path_factory.mktemp("j"))
    yield server
    server.stop()


@pytest.fixture
def kernel(server: JupyterServer) -> Iterator[Callable[..., AbstractContextManager[list]]]:
    """Something that waits, in this process, for messages under a secret; gives the messages that have come."""
    http = Http()

    @contextmanager
    def wait(secret: str, answer: Mapping[str, Any]) -> Iterator[list]:
        heard: list[dict] = []
        ready, over = Event(), Event()

        async def work() -> None:
            async with listening(secret, lambda message: heard.append(message) or answer, server.places):
                ready.set()
                await asyncio.to_thread(over.wait)

        waiting = Thread(target=lambda: http.run(work()))
        waiting.start()
        assert ready.wait(LONGEST_START)
        yield heard
        over.set()
        waiting.join()

    yield wait
    http.close()


@pytest.fixture
def browser() -> Iterator[httpx.Client]:
    """A browser without any cookie."""
    with httpx.Client(trust_env=False) as client:
        yield client


@pytest.fixture
def page(server: JupyterServer, browser: httpx.Client) -> httpx.Client:
    """A browser that is signed in at the Jupyter server, and says what a page of it says."""
    answer = browser.get(f"{server.url}login", params={"token": TOKEN}, follow_redirects=True)
    assert answer.is_success or answer.status_code == 404, answer.status_code
    browser.headers["Origin"] = server.origin
    browser.headers["X-XSRFToken"] = browser.cookies["_xsrf"]
    return browser
