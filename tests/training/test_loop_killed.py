"""A process that runs a loop, killed at random moments with its service, makes what one makes that is not."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "faults" / "loops.py"


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("seeds", [0, 3])
def test_a_loop_that_is_killed_at_random_moments_equals_one_that_is_not(tmp_path, seeds):
    command = [sys.executable, str(SCRIPT), "--kills", "20", "--seeds", str(seeds), "--home", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "all as without kills" in ended.stdout
    assert "kills of client" in ended.stdout
