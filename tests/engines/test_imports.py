"""What an engine or the SDK of MCP needs is imported where it is used, and nothing of it in a notebook."""

import json
import subprocess
import sys
from multiprocessing.connection import Connection

import pytest

from tests.forked import forkserver

pytestmark = pytest.mark.process

ENGINES = ("ray", "tinker")
SCRIPT = """
import json, sys
from pathlib import Path
from rolloutlab.magics import connect, register, train
from rolloutlab.session import Session
from rolloutlab.settings import Settings

Session(Settings(home=Path(sys.argv[1]))).close()
print(json.dumps(sorted(sys.modules.keys() & {"torch", "transformers", "rolloutlab.engines", *sys.argv[2:]})))
"""


def test_a_notebook_imports_no_engine(tmp_path):
    run = [sys.executable, "-c", SCRIPT, tmp_path, *ENGINES]
    ran = subprocess.run(run, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == []


def tell_imports(to: Connection) -> None:
    import rolloutlab.cli.commands
    import rolloutlab.engines.check
    import rolloutlab.engines.open
    import rolloutlab.service.serve  # noqa: F401

    to.send({name.partition(".")[0] for name in sys.modules})


def test_a_service_imports_no_engine_but_its_own_and_the_sdk_of_mcp_not_before_its_first_request():
    context = forkserver()
    told, to = context.Pipe(duplex=False)
    service = context.Process(target=tell_imports, args=(to,))
    service.start()
    imported = told.recv()
    service.join()
    assert "torch" in imported  # or the check below would prove nothing
    assert not imported & {*ENGINES, "mcp", "mcp_types"}
