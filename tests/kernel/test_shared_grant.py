"""Two kernels share one kept grant whose tokens live three seconds: each goes on, whoever renews.

`make acceptance` does it for a minute: ROLLOUTLAB_TEST_RENEWALS says how many renewals each kernel has to see.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.forked import Forked
from tests.kernels import start_kernel

pytest.importorskip("mcp")
if find_spec("torch") is None:  # imported by the service alone
    pytest.skip("torch is not installed", allow_module_level=True)

pytestmark = pytest.mark.process

BROWSER = Path(__file__).parents[2] / "notebooks" / "browser.py"
LONGEST = 300
RENEWALS = int(os.environ.get("ROLLOUTLAB_TEST_RENEWALS", "2"))
BEGIN = "import json, rolloutlab; lab = rolloutlab.lab()"
USE = f"""
_ = lab.tools.add("embedded", "memory")
ends, calls = [], 0
while len(ends) <= {RENEWALS}:
    _ = lab.tools.call("memory.list_groups")
    calls += 1
    [standing] = lab.whoami()
    if standing.expires_at not in ends:
        ends.append(standing.expires_at)
print(json.dumps([ends, calls, standing.place]))
"""


class Kernel:
    """A kernel on a lab, and cells run in it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.manager: KernelManager
        self.client: BlockingKernelClient
        self.manager, self.client = start_kernel(environment)
        self.run(BEGIN)

    def run(self, cell: str) -> str:
        """What a cell printed."""
        self.start(cell)
        return self.ended()

    def start(self, cell: str) -> None:
        self.started = self.client.execute(cell)

    def ended(self) -> str:
        """What the cell that was started printed; an error in it fails the test."""
        printed = ""
        while True:
            message = self.client.get_iopub_msg(timeout=LONGEST)
            if message["parent_header"].get("msg_id") != self.started:
                continue
            content = message["content"]
            assert message["msg_type"] != "error", "\n".join(content["traceback"])
            if message["msg_type"] == "stream" and content["name"] == "stdout":
                printed += content["text"]
            if content.get("execution_state") == "idle":
                return printed

    def shut_down(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.context.destroy()


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """Of kernels on a lab without a keyring, where a program plays the browser."""
    return {
        **os.environ,
        "ROLLOUTLAB_HOME": str(tmp_path),
        "ROLLOUTLAB_BROWSER": f"{sys.executable} {BROWSER}",
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
    }


@pytest.fixture
def short_lived(tmp_path) -> Iterator[Path]:
    """A lab that is served, with access tokens of three seconds."""
    process = Forked(["rolloutlab", "serve", "--home", str(tmp_path), "--token-lifetime", "3"], stdout=subprocess.PIPE)
    assert process.stdout.readline(), "the service ended at its start"
    yield tmp_path
    process.terminate()
    process.communicate(timeout=LONGEST)


@pytest.fixture
def kernels(short_lived, environment) -> Iterator[list[Kernel]]:
    started = [Kernel(environment) for _ in range(2)]
    yield started
    for each in started:
        each.shut_down()


def test_two_kernels_renew_one_kept_grant_in_turn_and_neither_loses_it(kernels, short_lived):
    first, second = kernels
    first.run('_ = lab.login("embedded", keep=True)')
    for kernel in kernels:
        kernel.start(USE)
    (ends, calls, place), (others, more, same_place) = (json.loads(kernel.ended()) for kernel in kernels)
    print(f"{len({*ends, *others}) - 1} renewals, {calls + more} calls")
    assert str(short_lived) in place == same_place
    assert len({*ends} & {*others}) >= RENEWALS  # what one has renewed, the other uses
    first.run("_ = lab.logout()")
    assert second.run("print(lab.whoami())").strip() == "you are signed in nowhere -> %login embedded"
