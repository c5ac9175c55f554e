"""Environments of public packages, each from one cell, with the practice policy: `make acceptance-environments`.

The packages are installed beside rolloutlab here: environments run in their user's process. Servers of openenv are
processes of their own (openenv_servers.py).
"""

import html
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from rolloutlab.environments import adapters
from rolloutlab.environments.source import source_of
from rolloutlab.integrations import gymnasium, reasoning_gym, textarena
from rolloutlab.magics import register
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings

pytestmark = pytest.mark.filterwarnings("default")  # these packages warn as they please
NAMES = [
    "reasoning-gym:basic_arithmetic", "reasoning-gym:chain_sum", "reasoning-gym:lcm", "reasoning-gym:spell_backward",
    "textarena:2048-v0", "textarena:GuessTheNumber-v0", "textarena:Mastermind-v0", "textarena:TowerOfHanoi-v0",
    "gymnasium:CliffWalking-v1", "gymnasium:FrozenLake-v1",
    "openenv:adder", "openenv:sums",
]  # fmt: skip
"""The last two stand for the addresses of servers."""
REWARD = "%%reward {} --weight env=0\nreturn {{'reward': 2.0 ** int(trajectory.name.rpartition('/')[2])}}"
"""None of a group of four has the mean."""
TRAIN = "%%train {}\nlearning_rate: 1e-9\nmask_prob_ratio: true\nepsilon: 0.001\nepsilon_high: 0.001"
OFFLINE = [
    name
    for name in textarena.names()
    if not re.match("Hangman|Wordle|Word[LS]|Twenty|GuessWho|Klondike|UltimateTexas|Sokoban-v0-medium", name)
]
"""Games that need no network, no key, and no newer Python, and begin within a minute."""


class Notebook:
    """Runs cells as a notebook does."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell

    def run(self, cell: str) -> Any:
        """The value of the cell, or the error that stopped it is raised."""
        result = self.shell.run_cell(cell, store_history=False)
        result.raise_error()
        return result.result


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, str]]:
    """The addresses of two servers of openenv, by name."""
    script = str(Path(__file__).with_name("openenv_servers.py"))
    with ExitStack() as running:
        processes = {}
        for name in ("adder", "sums"):
            command = [sys.executable, script, name]
            processes[name] = running.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            running.callback(processes[name].terminate)
        yield {name: f"http://127.0.0.1:{int(process.stdout.readline())}" for name, process in processes.items()}


@pytest.fixture
def lab(served, tmp_path) -> Iterator[Session]:
    address = Address(served.base_url, served.inference_base_url, served.token)
    session = Session(Settings(home=tmp_path, service=address))
    yield session
    session.close()


@pytest.fixture
def notebook(lab) -> Notebook:
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    register(shell, lab)
    return Notebook(shell)


def addressed(name: str, servers: dict[str, str]) -> str:
    prefix, _, rest = name.partition(":")
    return f"{prefix}:{servers.get(rest, rest)}"


@pytest.mark.parametrize("temperature", ["1", "1.5"])
@pytest.mark.parametrize("name", NAMES)
def test_one_cell_runs_it_and_its_trajectories_are_read_and_trained_on(notebook, servers, name, temperature):
    options = f"--env {addressed(name, servers)} --limit 2 --max-turns 4 --max-tokens 40 --seed 1"
    played = notebook.run(f"%%chat played -n 4 {options} --temperature {temperature}\nsystem: Use the tools.")
    assert [len(group.trajectories) for group in played.groups] == [4, 4]
    ends = {t.extra["metadata"]["episode_end"] for t in played.trajectories}
    assert ends <= {"done", "max_turns", "length"}, [t.extra.get("logs") for t in played.trajectories]
    if not name.startswith("reasoning-gym"):
        assert max(len(t.choices) for t in played.trajectories) > 1
    last_line = played.trajectories[0].messages[1]["content"].rpartition("\n")[2]
    assert html.escape(last_line) in notebook.run("%group played/0")._repr_html_()
    notebook.run(REWARD.format("played"))
    metrics = notebook.run(TRAIN.format("played")).metrics()
    sampled = sum(len(choice.sampled_tokens()) for t in played.trajectories for choice in t.choices)
    assert metrics["row_tokens"].sum() == sampled
    assert metrics["ratio_max"].max() == pytest.approx(1, abs=1e-3)
    assert metrics["masked"].max() == 0, "a token of some turn has a ratio further from 1"


@pytest.mark.parametrize("name", NAMES)
def test_interleaved_play_equals_sequential_play(lab, servers, name):
    def play(label: str, concurrency: int) -> list[Any]:
        env = addressed(name, servers)
        given = {"env": env, "n": 2, "limit": 3, "max_turns": 3, "max_tokens": 12, "seed": 7, "temperature": 1.5}
        return [(t.messages, t.reward) for t in lab.chat(label, "", concurrency=concurrency, **given).trajectories]

    assert play("interleaved", 6) == play("sequential", 1)


# reasoning-gym


def test_the_answer_is_taken_out_of_a_sentence_before_it_is_scored():
    source = reasoning_gym.source("chain_sum")
    [row] = source.rows(1, seed=3)
    assert source.environment(row).reset(0) == row["question"]
    for text in ("{}", "The answer is {}.", "I think\n<answer> {} </answer>", "**Answer:** {}"):
        step = source.environment(row).step(text.format(row["solution"]))
        assert (step.reward, step.done) == (1.0, True), text
    assert source.environment(row).step("no idea").reward < 1.0


def test_a_scorer_that_raises_fails_its_own_trajectory(lab, monkeypatch):
    source = lab.environment("reasoning-gym:chain_sum")
    [first, _] = source.rows(2, seed=1)
    right = source._score

    def raises(answer, entry):
        if entry["question"] == first["question"]:
            raise RuntimeError("no score")
        return right(answer, entry)

    monkeypatch.setattr(source, "_score", raises)
    played = lab.chat("sums", "", env=source, n=2, limit=2, seed=1, max_tokens=8)
    assert [t.extra["metadata"]["episode_end"] for t in played.trajectories] == ["error", "error", "done", "done"]
    assert "RuntimeError: no score" in played.trajectories[0].extra["logs"][-1]
    assert [t.reward is None for t in played.trajectories] == [True, True, False, False]


@pytest.mark.parametrize("name", reasoning_gym.names())
def test_every_data_set_makes_the_same_question_from_its_row_again_and_leaves_the_generators_alone(name):
    before = random.getstate(), np.random.get_state()[1].tolist()
    rows = reasoning_gym.source(name).rows(1, seed=5)
    question = reasoning_gym.source(name).environment(rows[0])
    assert question.reset(0) == rows[0]["question"]
    if rows[0]["solution"] is not None:
        assert question.step(str(rows[0]["solution"])).reward > 0
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


# textarena


@pytest.mark.parametrize("name", OFFLINE)
def test_games_at_the_same_time_are_as_one_after_the_other_and_leave_the_generators_alone(name):
    others = [("2048-v0", 3), ("Blackjack-v0", 4)]
    before = random.getstate(), np.random.get_state()[1].tolist()
    alone = [list(game(*each)) for each in [(name, 1), (name, 2), *others]]
    together = [game(*each) for each in [(name, 1), (name, 2), *others, (name, 1)]]
    mixed: list[list[Any]] = [[] for _ in together]
    for _ in range(10):
        for place, each in enumerate(together):
            mixed[place] += islice(each, 1)
    assert mixed[:4] == alone
    assert mixed[4] == mixed[0]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def game(name: str, seed: int) -> Iterator[Any]:
    """What a game says to some answers."""
    answers = random.Random(seed).choices(["left", "up", "hit", "7", "A B", "B C", "0 0", "red", "1 2 3 4"], k=8)
    played = textarena.source(name).environment({})
    yield played.reset(seed)
    for answer in answers:
        step = played.step(answer)
        yield step
        if step.done:
            return


def test_a_turn_says_what_is_new_and_a_bare_answer_counts():
    played = textarena.source("GuessTheNumber-v0").environment({})
    assert "between 1 and 20" in played.reset(1)
    assert played.step("7").observation in {"The target number is higher.", "The target number is lower."}


def test_options_are_the_games(lab):
    played = lab.environment("textarena:GuessTheNumber-v0", max_number=3).environment({})
    assert "between 1 and 3" in played.reset(1)


# gymnasium


def test_the_first_observation_has_the_rules_the_legend_the_actions_and_the_drawing(lab):
    source = lab.environment("gymnasium:FrozenLake-v1", is_slippery=False)
    assert source.name == "gymnasium:FrozenLake-v1(is_slippery=False)"
    first = source.environment({}).reset(1).split("\n")
    assert first[0].startswith("Frozen lake involves crossing a frozen lake")
    assert first[1:4] == [
        "Map: [ ] you, S start, F ice, H hole, G goal.", "Answer with one action: left, down, right, up.", "[S]FFF",
    ]  # fmt: skip


def test_an_answer_takes_the_last_action_that_it_names(lab):
    lake = lab.environment("gymnasium:FrozenLake-v1", is_slippery=False).environment({})
    lake.reset(1)
    assert lake.step("Not left: I go DOWN.").observation == "  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG"
    silent = lake.step("Hello!")
    assert silent.observation.startswith("This names no action. Answer with one action: left")
    assert (silent.done, silent.info) == (False, {"no_action": True})
    assert lake.step("right").done  # into a hole


def test_colours_become_brackets():
    taxi = gymnasium.source("Taxi-v4").environment({}).reset(1)
    assert "pickup, dropoff" in taxi
    drawing = taxi.partition("+---------+\n")[2]
    assert [drawing.count(mark) for mark in "[(<"] == [1, 1, 1]
    assert "\x1b" not in taxi


def test_an_environment_that_does_not_draw_itself_is_refused(lab):
    with pytest.raises(adapters.InputError, match="does not draw itself as text"):
        lab.environment("gymnasium:CartPole-v1")


# openenv


def test_rollouts_queue_for_the_only_session_of_a_server_and_their_logs_say_so(lab, servers):
    played = lab.chat("sums", "", env=f"openenv:{servers['adder']}", n=4, max_turns=2, max_tokens=8, concurrency=4)
    logs = [" ".join(t.extra.get("logs", ())) for t in played.trajectories]
    assert sum("for a session of" in log and "CAPACITY_REACHED" in log for log in logs) == 3


def test_it_is_as_with_the_packages_own_client(servers):
    from openenv import GenericEnvClient

    actions = [{"expression": text} for text in ("12 + 34", "1", "2 + 2")]
    with GenericEnvClient(base_url=servers["sums"]).sync() as client:
        theirs = [client.reset(seed=3).observation["text"]]
        theirs += [(step.observation["text"], step.reward, step.done) for step in map(client.step, actions)]
    assert stepped(servers["sums"], [action["expression"] for action in actions]) == theirs


def stepped(url: str, answers: list[str]) -> list[Any]:
    import asyncio

    async def play() -> list[Any]:
        environment = source_of(f"openenv:{url}").environment({})
        await environment.open()
        seen = [await environment.reset(3)]
        steps = [await environment.step(answer) for answer in answers]
        await environment.close()
        return seen + [(step.observation, step.reward, step.done) for step in steps]

    return asyncio.run(play())


# names


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("textarena:Mastermind", "textarena:Mastermind-v0"),
        ("reasoning-gym:chainsum", "reasoning-gym:chain_sum"),
        ("gymnasium:frozenlake-v1", "gymnasium:FrozenLake-v1"),
        ("gymnasim:FrozenLake-v1", "gymnasium:NAME"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_those_near_it(lab, name, near):
    with pytest.raises(adapters.InputError) as refused:
        lab.environment(name)
    assert near in refused.value.hint


def test_names_are_completed_after_the_option(notebook):
    def completed(line: str) -> list[str]:
        return notebook.shell.Completer.complete(line_buffer=line, cursor_pos=len(line))[1]

    assert "textarena:" in completed("%%chat x --env te")
    assert "textarena:Mastermind-v0" in completed("%%chat x --env textarena:Mas")
    assert "reasoning-gym:chain_sum" in completed("%%chat x --env reasoning-gym:chain_")
    assert "gymnasium:FrozenLake-v1" in completed("%%chat x --env gymnasium:Fro")
