"""The service as strangers meet it: a process of its own, an address and a token.

These tests run in environments where the client under test is installed and rolloutlab is not.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from openai import OpenAI

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("ROLLOUTLAB_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
POLICY = "practice"


@dataclass(frozen=True)
class Served:
    """A running service. Its inference address ends in /v1."""

    base_url: str
    inference_base_url: str
    token: str


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service on a fresh lab folder, ended after the last test."""
    home = tmp_path_factory.mktemp("lab")
    command = [PYTHON, "-m", "rolloutlab", "serve", "--home", str(home), "--port", "0", "--policy", POLICY]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env=environment
        ) as process,
    ):
        try:
            if not process.stdout.readline():  # it says where it listens, or ends
                pytest.fail(f"the service ended at its start: {(home / 'log').read_text()}")
            published = json.loads((home / "service" / "service.json").read_text())
            token = (home / "service" / "token").read_text()
            yield Served(published["base_url"], published["inference_base_url"], token)
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture(scope="session")
def client(served: Served) -> "Iterator[OpenAI]":
    """The official SDK, which here refuses every answer that is not of its own types."""
    from openai import OpenAI

    with OpenAI(
        base_url=served.inference_base_url, api_key=served.token, max_retries=0, _strict_response_validation=True
    ) as client:
        yield client
