"""Real kernels against a real embedded service: what survives when one is interrupted or killed."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.store.lab import Lab
from tests.forked import fork_embedded
from tests.kernels import start_kernel

pytestmark = pytest.mark.process

LONGEST = 300
ROWS = 1200
CHAT = "%%chat big -n 8 --over rows --max-tokens 60 --seed 1\nuser: say {{item}}"


class Kernel:
    """A kernel with the extension loaded, and cells run in it."""

    def __init__(self, home: Path, policy: Path) -> None:
        environment = {
            **os.environ,
            "ROLLOUTLAB_HOME": str(home),
            "ROLLOUTLAB_POLICY": str(policy),
            "ROLLOUTLAB_LINGER": "15",  # a new kernel may take a while to begin
        }
        self.manager: KernelManager
        self.client: BlockingKernelClient
        self.manager, self.client = start_kernel(environment)
        self.run("%load_ext rolloutlab")

    def run(self, cell: str) -> str:
        """Everything the cell showed as text; an error in it fails the test."""
        status = "aborted"
        while status == "aborted":  # ipykernel 6 gives up what comes right after an interrupt
            shown: list[str] = []
            reply = self.client.execute_interactive(
                cell, timeout=LONGEST, output_hook=lambda message, shown=shown: shown.append(_text(message))
            )
            status = reply["content"]["status"]
        assert status == "ok", reply["content"]
        return "\n".join(shown)

    def run_until_progress(self, cell: str) -> int:
        """Start a long cell and return, while it runs, how many completions it says have arrived."""
        self.client.execute(cell)
        while True:
            said = re.search(r"sampling \w+: ([\d,]+) of", _text(self.client.get_iopub_msg(timeout=LONGEST)))
            if said and (done := int(said[1].replace(",", ""))):
                return done

    def reply(self) -> dict:
        """The answer to the cell that was started."""
        return self.client.get_shell_msg(timeout=LONGEST)["content"]

    def shut_down(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.context.destroy()


def _text(message: dict) -> str:
    content = message["content"]
    return content.get("text") or content.get("data", {}).get("text/plain", "")


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_policy) -> Iterator[Path]:
    """A lab whose embedded service runs."""
    session = Session(Settings(home=tmp_path_factory.mktemp("lab"), policy=str(tiny_policy), linger=15.0))
    with pytest.MonkeyPatch.context() as patch:
        fork_embedded(patch)
        session.embedded.address()
    yield session.settings.home
    session.close()


@pytest.fixture
def kernel(home, tiny_policy) -> Iterator:
    """Start as many kernels on the lab as a test wants."""
    started: list[Kernel] = []

    def start() -> Kernel:
        started.append(Kernel(home, tiny_policy))
        started[-1].run(f"rows = list(range({ROWS}))")
        return started[-1]

    yield start
    for each in started:
        each.shut_down()


def service_pid(home: Path) -> int:
    return json.loads((home / "service" / "service.json").read_text())["pid"]


def stored(home: Path, label: str = "big") -> int:
    lab = Lab(home / "lab.db")
    try:
        return lab.collection(label).trajectories
    finally:
        lab.close()


def test_an_interrupt_stops_the_cell_keeps_what_arrived_and_does_not_reach_the_service(kernel, home):
    notebook = kernel()
    arrived = notebook.run_until_progress(CHAT)
    pid = service_pid(home)
    notebook.manager.interrupt_kernel()
    reply = notebook.reply()
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    kept = stored(home)
    assert arrived <= kept < 8 * ROWS
    assert reply["traceback"] == [
        f"KeyboardInterrupt: {kept:,} of {8 * ROWS:,} completions had arrived and are kept",
        f"  -> %%chat big:1 --resume samples the other {8 * ROWS - kept:,}",
    ]
    assert "the embedded service runs at" in notebook.run("%service")
    assert service_pid(home) == pid
    assert "1 completion" in notebook.run("%%chat after --max-tokens 4\nhello")


def test_a_killed_kernel_loses_nothing_that_had_arrived_and_a_new_one_finds_it_and_the_service(kernel, home):
    notebook = kernel()
    arrived = notebook.run_until_progress(CHAT.replace("big", "killed"))
    pid = service_pid(home)
    os.kill(notebook.manager.provisioner.pid, signal.SIGKILL)
    kept = stored(home, "killed")
    assert arrived <= kept < 8 * ROWS
    another = kernel()
    another.run("%collections killed -o listed")
    assert another.run("print(*listed.loc['killed', ['groups', 'trajectories']])").strip() == f"{ROWS} {kept}"
    assert "1 completion" in another.run("%%chat after --max-tokens 4\nhello")
    assert service_pid(home) == pid


def test_loading_the_extension_brings_no_torch_and_no_web_framework(kernel):
    heavy = ("torch", "transformers", "peft", "fastapi", "starlette", "uvicorn")
    assert kernel().run(f"import sys; print([name for name in {heavy} if name in sys.modules])").strip() == "[]"


def test_a_sampled_and_shown_collection_brings_no_pandas(kernel):
    notebook = kernel()
    assert "1 completion" in notebook.run("%%chat light --max-tokens 4\nhello")
    # numpy is there by now: after a cell the search index is opened, which stands on it
    heavy = ("pandas", "pyarrow", "torch")
    assert notebook.run(f"import sys; print([name for name in {heavy} if name in sys.modules])").strip() == "[]"
    assert "answer" in notebook.run("%group light/0 -o shown\nprint(*shown.to_frame().columns)")
    assert notebook.run("print('pandas' in sys.modules)").strip() == "True"
