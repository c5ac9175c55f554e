"""Our context client passes the public conformance suite: every scenario of its authorization suite, run singly."""

import shlex
import subprocess
from pathlib import Path

import pytest
from conftest import PYTHON, ROOT

SUITE = ROOT / ".venvs/conformance/node_modules"
NODE = SUITE / "node/bin/node"
MAIN = SUITE / "@modelcontextprotocol/conformance/dist/index.js"
CLIENT = Path(__file__).with_name("conformance_client.py")
SCENARIOS = [
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/basic-cimd",
    "auth/scope-from-www-authenticate",
    "auth/scope-from-scopes-supported",
    "auth/scope-omitted-when-undefined",
    "auth/scope-step-up",
    "auth/scope-retry-limit",
    "auth/token-endpoint-auth-basic",
    "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none",
    "auth/pre-registration",
]
DRAFTS = ["auth/resource-mismatch", "auth/offline-access-scope", "auth/offline-access-not-supported"]
"""Of the specification's next revision, which we follow where it contradicts nothing."""


@pytest.mark.clause("Q1")
@pytest.mark.parametrize("scenario", [*SCENARIOS, *DRAFTS])
def test_the_client_conforms(scenario: str, tmp_path: Path) -> None:
    command = [NODE, MAIN, "client", "--scenario", scenario, "--command", shlex.join([PYTHON, str(CLIENT)])]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_no_scenario_of_the_suite_for_this_revision_is_left_out() -> None:
    listed = subprocess.run([NODE, MAIN, "list"], capture_output=True, text=True, timeout=240, check=True).stdout
    wanted = {line.split()[1] for line in listed.splitlines() if "- auth/" in line and "2025-11-25" in line}
    assert wanted == set(SCENARIOS)
