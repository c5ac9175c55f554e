"""A process that is forked from a notebook's: threads and event loops do not survive that, and its calls work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture.test_killed import service
from tests.forked import Forked

__all__ = ["service"]
pytestmark = [pytest.mark.process, pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")]

BEGIN = """
import multiprocessing, os, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from rolloutlab.session import Session
lab = Session()
lab.model("tester/policy")

def sample(name):
    made = lab.chat(name, "x", n=2)
    lab.reward(name, score, say=lambda _: None)
    lab.search("answer")
    return [t.reward for t in made.trajectories] or [t.reward for t in lab.collection(name).trajectories]

async def score(answer):
    return float(len(answer))

def works(name):
    sample(name)
    (group,) = lab.collection(name).groups
    assert [t.reward for t in group.trajectories] == [float(len(t.answer)) for t in group.trajectories]

works("before")
"""
WAYS = {
    "a pool": """
with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.map(works, ["a", "b", "c"], chunksize=1)
""",
    "a fork that ends as a script does": """
pid = os.fork()
works("a" if pid else "b")
if not pid:
    lab.close() if sys.argv[1:] else None
    works("c")
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
""",
    "a fork that has no use for the lab": """
for end in (sys.exit, os._exit):
    pid = os.fork()
    if not pid:
        end(0)
    assert os.waitpid(pid, 0)[1] == 0
for name in ("a", "b", "c"):
    works(name)
""",
    "a fork of a fork": """
pid = os.fork()
if not pid:
    works("a")
    inner = os.fork()
    if not inner:
        works("b")
        os._exit(0)
    assert os.waitpid(inner, 0)[1] == 0
    works("c")
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_forked_process_and_its_parent_sample_score_and_search(service, tmp_path, way):
    script = tmp_path / "script.py"
    script.write_text(BEGIN + WAYS[way] + "\nworks('after')\nprint(len(lab.collections()))\n")
    environment = {**os.environ, "ROLLOUTLAB_HOME": str(tmp_path / "lab"), "ROLLOUTLAB_URL": service.url}
    run = [sys.executable, "-W", "error::ResourceWarning", str(script)]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120, cwd=Path.cwd())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[-1] == "5"


@pytest.fixture
def embedded(tmp_path, tiny_policy):
    """The home of a lab whose service runs already, and ends when it is told."""
    home = tmp_path / "lab"
    command = ["rolloutlab", "serve", "--home", str(home), "--policy", str(tiny_policy)]
    process = Forked(command, stdout=subprocess.PIPE)
    try:
        assert "serves" in process.stdout.readline()
        yield home
    finally:
        process.terminate()
        process.communicate(timeout=240)


def test_a_forked_process_is_a_client_of_the_embedded_service_itself(embedded, tmp_path, tiny_policy):
    """It samples, and its end leaves the parent attached; a child that outlives its parent keeps the service."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import os, sys, time
from rolloutlab.session import Session
lab = Session()
lab.model()
clients = lab.settings.service_folder / "clients"
attached = lambda: sorted(path.name for path in clients.glob("*.lock"))
before = attached()
pid = os.fork()
lab.chat("parent" if pid else "child", "x", max_tokens=2)
if not pid:
    assert len(attached()) == 2
    lab.close()
    assert attached() == before
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
lab.chat("parent", "x", max_tokens=2)
assert attached() == before
print(len(lab.collections()))
lab.service("stop")
"""
    )
    home = {"ROLLOUTLAB_HOME": str(embedded), "ROLLOUTLAB_POLICY": str(tiny_policy)}
    done = subprocess.run(
        [sys.executable, str(script)], env=os.environ | home, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stderr, done.stdout.split()[-1:]) == (0, "", ["3"])
