"""Each notebook runs in a lab of its own, and a mistyped magic fails it."""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HOMES = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[HOMES] = homes = Path(tempfile.mkdtemp(prefix="rolloutlab-"))
    config.add_cleanup(lambda: shutil.rmtree(homes, ignore_errors=True))
    os.environ["ROLLOUTLAB_LINGER"] = "1"
    os.environ["ROLLOUTLAB_BROWSER"] = shlex.join([sys.executable, str(Path(__file__).with_name("browser.py"))])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The kernel of a notebook starts when its first cell is set up: the lab must be known by then."""
    os.environ["ROLLOUTLAB_HOME"] = str(item.config.stash[HOMES] / item.path.stem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """IPython prints a UsageError and goes on, and nbval then sees a cell that passed."""
    yield
    for output in getattr(item, "test_outputs", None) or []:
        if "UsageError" in output.get("text", ""):
            pytest.fail(output["text"])
