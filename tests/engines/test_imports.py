"""What an engine needs is imported where it is chosen, and nothing of it in a notebook."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
from pathlib import Path
from rolloutlab.magics import connect, register, train
from rolloutlab.session import Session
from rolloutlab.settings import Settings

ENGINES = {"ray", "tinker"}
Session(Settings(home=Path(sys.argv[1]))).close()
notebook = sorted(sys.modules.keys() & {"torch", "transformers", "rolloutlab.engines", *ENGINES})
import rolloutlab.cli.commands, rolloutlab.engines.check, rolloutlab.engines.open, rolloutlab.service.serve
engines = sorted(name for name in sys.modules if name.partition(".")[0] in ENGINES)
print(json.dumps([notebook, engines, "torch" in sys.modules]))
"""


@pytest.mark.process
def test_a_notebook_imports_no_engine_and_a_service_none_but_its_own(tmp_path):
    ran = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path], capture_output=True, text=True, check=True)
    notebook, engines, service_has_torch = json.loads(ran.stdout)
    assert notebook == []
    assert engines == []
    assert service_has_torch  # or the check above would prove nothing
