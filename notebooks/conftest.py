"""Notebooks run in a lab of their own, and a mistyped magic fails them."""

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """nbval starts kernels before any fixture: their environment must be there by then."""
    home = tempfile.mkdtemp(prefix="rolloutlab-")
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    os.environ.update(ROLLOUTLAB_HOME=home, ROLLOUTLAB_LINGER="1")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """IPython prints a UsageError and goes on, and nbval then sees a cell that passed."""
    yield
    for output in getattr(item, "test_outputs", None) or []:
        if "UsageError" in output.get("text", ""):
            pytest.fail(output["text"])
