"""Agent programs that nobody here wrote, captured by `rolloutlab capture` and trained on.

Their later turns are read and trained with the tokens that were sampled: the ratio of the first step is 1.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AGENTS = Path(__file__).parent / "agents"
PYTHON = os.environ.get("ROLLOUTLAB_PYTHON", str(AGENTS.parents[2] / ".venv" / "bin" / "python"))
TASKS = [{"task": "What is 12 + 30?"}, {"task": "Say yes or no."}]


@pytest.fixture
def capture(served: Any, tmp_path: Path) -> Any:
    """Captures a program over the tasks, four rollouts each; what the lab holds and how it trains."""
    rows = tmp_path / "tasks.jsonl"
    rows.write_text("\n".join(map(json.dumps, TASKS)))
    lab = {"ROLLOUTLAB_HOME": str(tmp_path / "lab"), "ROLLOUTLAB_URL": served.base_url}
    environment = {**os.environ, **lab, "ROLLOUTLAB_API_KEY": served.token}

    def run(program: str, *options: str) -> dict[str, Any]:
        command = ["-m", "rolloutlab", "capture", "agent", "--over", str(rows), "-n", "4", "--seed", "1", *options]
        agent = [sys.executable, "-W", "ignore", str(AGENTS / f"{program}.py")]
        for arguments in ([*command, "--", *agent], [str(AGENTS.parent / "captured.py"), "agent"]):
            done = subprocess.run(
                [PYTHON, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=600
            )
            assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


TWO_TURNS = ["user", "sampled", "user", "sampled"]
SYSTEM = ["system", *TWO_TURNS]


@pytest.mark.parametrize(
    ("program", "histories"),
    [
        ("openai_loop", [[*SYSTEM, "user", "sampled"], ["system", "user", "sampled"], TWO_TURNS]),
        ("langgraph_loop", [SYSTEM]),
        ("litellm_loop", [[*TWO_TURNS, "user", "sampled"]]),
        ("inspect_loop", [TWO_TURNS, ["user", "sampled"], TWO_TURNS]),  # it asks the model for a "hello" in between
    ],
)
def test_each_turn_of_a_program_is_in_its_history_and_trains_as_it_was_sampled(capture, program, histories):
    found = capture(program, "--temperature", "1.3")
    assert found["logs"] == []
    assert found["shapes"] == [histories] * 8
    assert all(length is not None for length in found["lengths"])
    assert found["ratios"] == pytest.approx([1] * len(found["ratios"]), abs=1e-3)


def test_agents_of_openai_have_a_history_each_and_their_calls_and_results_in_it(capture):
    found = capture("agents_sdk")
    assert found["logs"] == []
    assert any("tool" in shapes[0] for shapes in found["shapes"])
    for shapes in found["shapes"]:
        main, *others = shapes
        assert main[:3] == ["system", "user", "sampled"]
        assert set(main[3:]) <= {"tool", "user", "sampled"}
        assert ["system", "user", "sampled"] in others
    assert found["ratios"] == pytest.approx([1] * len(found["ratios"]), abs=1e-3)
