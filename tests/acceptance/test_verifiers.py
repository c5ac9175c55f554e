"""verifiers' own evaluation command, captured by session: its rewards are those of the trajectories, which train."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AGENTS = Path(__file__).parent / "agents"
PYTHON = os.environ.get("ROLLOUTLAB_PYTHON", str(AGENTS.parents[2] / ".venv" / "bin" / "python"))
EVALUATION = """
vf-eval letters_env --env.agent.harness.id letters_env --env.agent.runtime.type subprocess --push False --no-rich \
    --client.base-url "$OPENAI_BASE_URL" --client.api-key-var OPENAI_API_KEY --model "$OPENAI_MODEL" -n 2 -r 4
"""


@pytest.fixture
def run(served: Any, tmp_path: Path) -> Any:
    """Runs a command of rolloutlab in a lab of its own; what it prints."""
    lab = {"ROLLOUTLAB_HOME": str(tmp_path / "lab"), "ROLLOUTLAB_URL": served.base_url}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **lab, "HOME": str(tmp_path), "PATH": path, "PYTHONPATH": str(AGENTS)}
    environment["ROLLOUTLAB_API_KEY"] = served.token

    def run(*arguments: str) -> str:
        command = [PYTHON, *arguments]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_each_trace_is_a_trajectory_with_its_rewards_and_trains_as_it_was_sampled(run, tmp_path):
    results = "outputs/**/traces.jsonl"
    options = ["--sessions", "--results", results, "--max-tokens", "16", "--seed", "1"]
    printed = run("-m", "rolloutlab", "capture", "letters", *options, "--", "sh", "-c", EVALUATION)
    assert printed.startswith("letters:1 has 8 trajectories, mean reward ")
    captured = json.loads(run(str(AGENTS.parent / "captured.py"), "letters"))
    [path] = tmp_path.glob(results)
    traces = [trace for line in path.read_text().splitlines() for trace in json.loads(line)["traces"]]
    components = {
        trace["id"]: {name: each["score"] * each["weight"] for name, each in trace["rewards"].items()}
        for trace in traces
    }
    assert set(components[traces[0]["id"]]) == {"right", "brief"}
    assert dict(zip(captured["sessions"], captured["components"], strict=True)) == components
    assert captured["rewards"] == pytest.approx([sum(components[name].values()) for name in captured["sessions"]])
    assert captured["shapes"] == [[["user", "sampled"]]] * 8
    assert captured["ratios"] == pytest.approx([1] * len(captured["ratios"]), abs=1e-3)
