"""Schemathesis: requests made up from /openapi.json, right and wrong ones, get no answer that it does not document."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
EXAMPLES = 20


def make(served, path, **body):
    """What a POST makes."""
    headers = {"Authorization": f"Bearer {served.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{served.base_url}/v1/preview/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def known(served):
    """A model, a job and data that generated requests can be about, as the hooks read them."""
    model = make(served, "models", project="acceptance", name="known")["id"]
    job = make(served, "training-jobs", model_id=model, trajectory_groups=[])["id"]
    data = make(served, "files", messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": "yes"}])
    return {"KNOWN_MODEL": model, "KNOWN_JOB": job, "KNOWN_DATA": data["url"]}


@pytest.fixture(scope="module")
def run(served, known, tmp_path_factory):
    """A finished run over all operations and phases, and every exchange of it."""
    folder = tmp_path_factory.mktemp("schemathesis")
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{served.base_url}/openapi.json"]
    command += ["--header", f"Authorization: Bearer {served.token}", "--checks", ",".join(CHECKS)]
    command += ["--seed", "1", "--max-examples", str(EXAMPLES), "--continue-on-failure", "--no-color"]
    command += ["--suppress-health-check", "data_too_large,too_slow"]  # a training job is large
    command += ["--report", "har", "--report-har-path", str(folder / "exchanges.har")]
    hooks = {"PYTHONPATH": str(Path(__file__).parent), "SCHEMATHESIS_HOOKS": "schemathesis_hooks", **known}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, **hooks}, check=False)
    return done, json.loads((folder / "exchanges.har").read_text())["log"]["entries"]


def test_every_answer_is_documented_and_none_is_a_server_error(run):
    done, _ = run
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_operation_was_reached_and_answered_well(run, served):
    _, exchanges = run
    with urllib.request.urlopen(f"{served.base_url}/openapi.json") as answer:
        paths = json.load(answer)["paths"]
    wanted = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert wanted <= {operation(exchange, paths) for exchange in exchanges if exchange["response"]["status"] < 300}


def operation(exchange, paths):
    """Method and path template of an exchange; of several templates that fit, the most literal."""
    url = re.sub(r"^http://[^/]+|\?.*$", "", exchange["request"]["url"])
    fitting = [path for path in paths if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), url)]
    return exchange["request"]["method"], min(fitting, key=lambda path: path.count("{"), default=url)
