"""Each notebook runs in a lab of its own, and a mistyped magic fails it.

The first notebook starts its service, as for a person. Those of the others are forked before their first cell from a
process that has imported torch and transformers, since each start imports them for eight seconds of processor time.
"""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import nbval.kernel
import pytest

from rolloutlab.api.embedded import Embedded
from rolloutlab.api.http.client import HttpClient
from rolloutlab.settings import read_settings
from rolloutlab.widgets.pages import VIEW
from tests.forked import fork_embedded
from tests.kernels import FileKernelManager

HOMES = pytest.StashKey[Path]()
SERVICE = pytest.StashKey[ExitStack]()
"""The service of the notebook that runs; to close it lets go of it."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[HOMES] = homes = Path(tempfile.mkdtemp(prefix="rolloutlab-"))
    config.stash[SERVICE] = service = ExitStack()
    config.add_cleanup(lambda: shutil.rmtree(homes, ignore_errors=True))
    config.add_cleanup(service.close)
    nbval.kernel.KernelManager = FileKernelManager
    os.environ["ROLLOUTLAB_LINGER"] = "1"
    os.environ["ROLLOUTLAB_BROWSER"] = shlex.join([sys.executable, str(Path(__file__).with_name("browser.py"))])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The kernel of a notebook starts when its first cell is set up: the lab must be known by then."""
    item.parent.skip_compare += (VIEW,)  # notebooks are committed without it
    home, service = str(item.config.stash[HOMES] / item.path.stem), item.config.stash[SERVICE]
    if os.environ.get("ROLLOUTLAB_HOME") == home:
        return
    os.environ["ROLLOUTLAB_HOME"] = home
    service.close()
    text = item.path.read_text("utf-8")
    if "%load_ext rolloutlab" in text and "%env ROLLOUTLAB_POLICY" not in text and not item.path.stem.startswith("01"):
        start(service)


def start(service: ExitStack) -> None:
    """Start the service of the lab, and stay its client until the stack is closed."""
    http = HttpClient()
    service.callback(http.close)
    embedded = Embedded(read_settings(), http)
    service.callback(embedded.close)
    with pytest.MonkeyPatch.context() as patch:
        fork_embedded(patch)
        embedded.address()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """IPython prints a UsageError and goes on, and nbval then sees a cell that passed."""
    yield
    for output in getattr(item, "test_outputs", None) or []:
        if "UsageError" in output.get("text", ""):
            pytest.fail(output["text"])
