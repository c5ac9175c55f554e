"""Episodes that were cut short: they go on from their stored answers, and what is finished is not played again."""

import asyncio
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from rolloutlab.store.lab import Lab

LONG = partial(pytest.param, marks=pytest.mark.long)

COUNT = '''
made = []
class Count:
    """Three turns; it tells how many answers it had."""
    prefix = "turn"
    def __init__(self, row):
        self.row, self.turns = row, 0
        made.append(row["item"])
    def reset(self, seed): return f"{self.prefix} 0 of {seed}"
    def step(self, answer):
        self.turns += 1
        return Step(f"{self.prefix} {self.turns} after {answer}", 1.0, self.turns == 3)
'''
CHAT = "%%chat counted --over range(3) --env Count --seed 3\n"
RESUME = "%%chat counted --resume --env Count"


@pytest.fixture
def cut_short(notebook, policy):
    """A notebook with two finished episodes, and one that was interrupted after its second answer."""
    given = iter(range(1000))
    policy.answer = lambda messages: f"answer {next(given)}"

    async def gate(messages):
        if messages[0]["content"] == "turn 0 of 5" and len(messages) > 4:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

    policy.gate = gate
    notebook.run(COUNT)
    error = notebook.shell.run_cell(CHAT.replace("--env", "--concurrency 1 --env"), store_history=False).error_in_exec
    assert "%%chat counted:1 --resume --env Count samples the other 1" in "".join(error._render_traceback_())
    policy.gate = None
    notebook["made"].clear()
    policy.taken.clear()
    return notebook


def test_a_resumed_episode_goes_on_from_its_stored_answers(cut_short, policy):
    before = [t.items for t in unfinished(cut_short.lab.store)]
    collection = cut_short.run(RESUME)
    assert [t.reward for t in collection.trajectories] == [3.0] * 3
    assert [t.items[: len(items)] for t, items in zip(collection.trajectories, before, strict=True)] == before
    assert "logs" not in collection.trajectories[2].extra
    assert (cut_short["made"], len(policy.taken)) == ([2], 1)


def test_an_episode_whose_environment_does_other_than_before_starts_over_and_says_so(cut_short, policy):
    cut_short.run("Count.prefix = 'another'")
    (*_, last) = cut_short.run(RESUME).trajectories
    assert last.messages[0]["content"] == "another 0 of 5"
    assert last.extra["logs"] == ["started over: given the stored answers, the environment did not do the same again"]
    assert (len(last.choices), last.reward, len(policy.taken)) == (3, 3.0, 3)


def test_an_environment_that_fails_at_a_resume_leaves_the_episode_as_it_is(cut_short, policy):
    before = unfinished(cut_short.lab.store)
    cut_short.run("class Broken(Count):\n  def reset(self, seed): return self.nothing\nBroken.__name__ = 'Count'")
    assert "Count.reset raised AttributeError" in cut_short.error(RESUME.replace("Count", "Broken"))
    assert unfinished(cut_short.lab.store) == before
    assert [t.reward for t in cut_short.run(RESUME).trajectories] == [3.0] * 3


def test_calls_of_tools_are_replayed_too(notebook, policy):
    from tests.environments.test_short_form_and_tools import SAFE, call

    interrupts = iter([True])

    async def gate(messages):
        if len(messages) == 5 and next(interrupts, False):
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

    policy.gate = gate
    policy.answer = lambda messages: call("turn", digit=1 + len(messages) // 4) if len(messages) < 5 else "stop"
    notebook.run(SAFE)
    notebook.run('codes = [{"code": [1, 9]}]')
    assert isinstance(
        notebook.shell.run_cell("%%chat safe --over codes --env Safe\n", store_history=False).error_in_exec,
        KeyboardInterrupt,
    )
    (found,) = notebook.run("%%chat safe --resume --env Safe").trajectories
    assert found.turn_rewards == [0.1, 0.1, 0.0]
    assert "logs" not in found.extra


PLAYER = (
    COUNT
    + """
import asyncio, pathlib, sys
import httpx
from rolloutlab import Session, Step
from rolloutlab.api.http.client import HttpClient
from rolloutlab.settings import Settings
from tests.environments.conftest import Answerer
from tests.sampling_services import URL

policy, given = Answerer(), iter(range(10**6))
policy.answer = lambda messages: f"answer {next(given)}"

async def gate(messages):
    if len(policy.taken) == int(sys.argv[2]):
        while not lab.store.collections():  # a slow disk has stored nothing yet, and there would be nothing to resume
            await asyncio.sleep(0.01)
        print("in the middle", flush=True)
        await asyncio.Event().wait()

policy.gate = gate
lab = Session(Settings(home=pathlib.Path(sys.argv[1])), http=HttpClient(httpx.MockTransport(policy), backoff=0))
lab.connect(URL)
lab.chat("counted", n=4, over=range(16), env=Count, seed=3, concurrency=8, model="tester/policy")
"""
)


def unfinished(lab):
    """Every stored trajectory, those between two turns among them."""
    return [t for group in lab.groups(lab.collection("counted"), unfinished=True) for t in group.trajectories]


@pytest.mark.process
@pytest.mark.parametrize("answers", [LONG(20), 97, LONG(150)])
def test_a_kill_in_the_middle_of_64_episodes_loses_none_and_plays_none_twice(notebook, policy, tmp_path, answers):
    home = notebook.lab.settings.home
    command = [sys.executable, "-c", PLAYER, str(home), str(answers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as player:
        assert player.stdout.readline() == b"in the middle\n"
        player.kill()
    lab = Lab(notebook.lab.settings.database)
    before = {t.name: t for t in unfinished(lab)}
    lab.close()
    stored = sum(len(t.choices) for t in before.values())
    assert 0 < stored <= answers
    notebook.run(COUNT)
    given = iter(range(10**6))
    policy.answer = lambda messages: f"later answer {next(given)}"
    policy.taken.clear()
    after = {t.name: t for t in notebook.run(RESUME).trajectories}
    assert len(after) == 64
    assert {(t.episode_end, t.reward, len(t.choices), "logs" in t.extra) for t in after.values()} == {
        ("done", 3.0, 3, False)
    }
    assert all(after[name].items[: len(t.items)] == t.items for name, t in before.items())
    assert len(policy.taken) == 64 * 3 - stored
    finished = sum(not t.pending for t in before.values())
    assert len(notebook["made"]) == 64 - finished
