"""What the Jupyter server loads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import rolloutlab

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]


def test_the_jupyter_server_imports_nothing_that_only_a_kernel_needs():
    code = (
        "import sys, jupyter_server.base.handlers, jupyter_server.utils; before = set(sys.modules); "
        "import rolloutlab.auth.redirect.jupyter_server; print(*(set(sys.modules) - before))"
    )
    added = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert {name.partition(".")[0] for name in added.split()} - sys.stdlib_module_names == {"rolloutlab"}


def test_the_configuration_that_a_wheel_carries_switches_on_what_the_package_names():
    config = json.loads((ROOT / "jupyter-config/jupyter_server_config.d/rolloutlab.json").read_text())
    assert config["ServerApp"]["jpserver_extensions"] == {"rolloutlab": True}
    assert rolloutlab._jupyter_server_extension_points() == [{"module": "rolloutlab.auth.redirect.jupyter_server"}]
