"""`rolloutlab capture`: programs in processes of their own."""

import json
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rolloutlab.cli.commands import main
from rolloutlab.errors import RolloutlabError, SamplingError
from rolloutlab.settings import Profile, Served

AGENT = """
import json, os, sys, urllib.request
row = json.loads(sys.stdin.readline())
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": row["task"]}], "max_tokens": 4}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
answer = json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=240))
print("working")
"""


def has_ended(pid):
    status = Path("/proc", pid, "status")
    return not status.exists() or "zombie" in status.read_text()


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(json.dumps({"task": task}) for task in ("one", "two")))
    return str(path)


@pytest.fixture
def capture(session, monkeypatch, capsys, rows):
    """Runs the command with an agent that ends so; its status, what it printed, and the rewards."""
    monkeypatch.setattr("rolloutlab.session.Session", lambda: session)

    def run(end, *options):
        status = main(["capture", "agent", "--over", rows, *options, "--", sys.executable, "-c", AGENT + end])
        made = [] if session.collections().empty else session.collection("agent").groups
        return status, capsys.readouterr(), [t for group in made for t in group.trajectories]

    return run


def test_a_command_runs_for_each_row_and_its_last_line_is_the_reward(capture):
    status, printed, trajectories = capture('print(json.dumps({"right": 1, "brief": 0.5}))', "-n", "2")
    assert (status, printed.out) == (0, "agent:1 has 4 trajectories, mean reward 1.5\n")
    assert [trajectory.prompt for trajectory in trajectories] == ["one", "one", "two", "two"]
    assert all(trajectory.tokens > 0 for trajectory in trajectories)


def test_the_last_line_may_have_other_ends_of_lines_in_a_text(capture):
    *_, trajectories = capture('print(json.dumps({"right\\u2028": 1}, ensure_ascii=False))')
    assert [trajectory.reward for trajectory in trajectories] == [1.0, 1.0]


@pytest.mark.parametrize("line", ["done", "[" * 100_000], ids=["words", "brackets"])
def test_a_last_line_that_is_no_json_leaves_the_reward_open(capture, line):
    status, printed, trajectories = capture(f"print({line!r})")
    assert (status, printed.out) == (0, "agent:1 has 2 trajectories, not scored yet\n")
    assert [trajectory.extra["metadata"]["episode_end"] for trajectory in trajectories] == ["done", "done"]


def test_a_command_that_fails_ends_its_own_rollout_with_what_it_said(capture):
    *_, trajectories = capture("sys.exit('no luck') if row['task'] == 'one' else print(2)")
    assert [trajectory.reward for trajectory in trajectories] == [None, 2.0]
    assert trajectories[0].extra["logs"][0].startswith("ended by SamplingError: ")
    assert trajectories[0].extra["logs"][0].endswith("ended with status 1: no luck")


def test_a_command_that_is_not_there_cannot_be_started(session):
    with pytest.raises(SamplingError, match="no-such-command cannot be started: No such file"):
        session.rollouts("agent", ["no-such-command"])


def test_a_command_that_has_ended_is_over_though_a_child_holds_its_output(capture, tmp_path):
    end = f"""
import pathlib, subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(tmp_path)!r}, row["task"]).write_text(str(child.pid))
print(1.0)
"""
    *_, trajectories = capture(end, "--timeout", "60")
    assert [(t.reward, t.extra["metadata"]["episode_end"]) for t in trajectories] == [(1.0, "done")] * 2
    assert all(has_ended((tmp_path / task).read_text()) for task in ("one", "two"))


def test_a_command_may_print_more_than_a_pipe_holds_and_leave_its_input_unread(session, tmp_path):
    code = AGENT.replace("json.loads(sys.stdin.readline())", "{'task': 'x'}") + "print('x' * 3_000_000); print(2.0)"
    made = session.rollouts("agent", [sys.executable, "-c", code], over=[{"long": "y" * 300_000}])
    assert made.groups[0].trajectories[0].reward == 2.0


def test_a_command_that_hangs_is_ended_with_all_that_it_started(capture, tmp_path):
    end = f"""
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
import pathlib
pathlib.Path({str(tmp_path)!r}, row["task"]).write_text(str(child.pid))
child.wait()
"""
    *_, trajectories = capture(end, "--timeout", "8")
    assert [trajectory.extra["metadata"]["episode_end"] for trajectory in trajectories] == ["timeout"] * 2
    for task in ("one", "two"):
        assert has_ended((tmp_path / task).read_text())


def test_the_environment_of_a_command_has_no_secret_of_the_lab(capture, session, monkeypatch):
    token = session.settings.service.token
    monkeypatch.setenv("ROLLOUTLAB_API_KEY", "x" * 20)
    monkeypatch.setenv("MY_KEY", token)
    end = f"""
values = " ".join(f"{{k}}={{v}}" for k, v in os.environ.items())
print(float({token!r} in values or "ROLLOUTLAB_" in values))
"""
    *_, trajectories = capture(end)
    assert [trajectory.reward for trajectory in trajectories] == [0.0, 0.0]


def test_a_command_that_is_played_again_has_no_key_of_what_is_connected_then(session, monkeypatch):
    names = ("MY_KEY", "SEARCH_KEY", "TINKER_API_KEY", "VLLM_API_KEY", "A_COPY")
    end = f"print(float(sum(name in os.environ for name in {names})))"
    session.rollouts("agent", [sys.executable, "-c", AGENT + end], over=[{"task": "x"}])
    for name in names:
        monkeypatch.setenv(name, "a key of eight or more" if name in {"MY_KEY", "A_COPY"} else "short")
    profiles = {"other": Profile("http://127.0.0.1:1", api_key_env="MY_KEY")}
    search = Served("http://127.0.0.1:1", "SEARCH_KEY")
    session.settings = replace(session.settings, profiles=profiles, search=search)
    session.compare("agent", before=0, after=0)
    [played] = session.collection("compare.agent.lab.practice.step0").groups[0].trajectories
    assert played.reward == 0.0


def test_a_command_has_no_key_of_a_search_or_a_sign_in_that_failed(session, monkeypatch):
    names = ("SEARCH_KEY", "CLIENT_SECRET")
    for name in names:
        monkeypatch.setenv(name, f"the secret of {name}")
        monkeypatch.setenv(f"COPY_OF_{name}", f"Bearer the secret of {name}")
    nowhere = "http://127.0.0.1:1"
    calls = [
        lambda: session.connect(search=f"{nowhere}/other", key_env="SEARCH_KEY"),
        lambda: session.login(nowhere, client_id="me", secret_env="CLIENT_SECRET"),
    ]
    for call in calls:
        with pytest.raises(RolloutlabError):
            call()
    code = AGENT + f"print(float(sum(any(name in each for name in {names}) for each in os.environ)))"
    made = session.rollouts("agent", [sys.executable, "-c", code], over=[{"task": "x"}])
    assert made.groups[0].trajectories[0].reward == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--resume", "-n", "7", "--temperature", "0.5"],
            "--resume keeps the settings of the collection and cannot take n, ov",
        ),
        (["--results", "traces.jsonl"], "--sessions --results FILES"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(capture, options, message):
    capture("print(1)")
    status, printed, trajectories = capture("print(1)", *options)
    assert (status, len(trajectories)) == (2, 2)
    assert message in printed.err


def test_without_a_command_it_says_what_to_type(capsys):
    assert main(["capture", "agent"]) == 2
    assert "rolloutlab capture agent -- python agent.py" in capsys.readouterr().err


def test_a_command_has_no_key_that_was_named_for_searching(session, monkeypatch):
    monkeypatch.setenv("EMBEDDING_KEY", "a key of eight or more")
    monkeypatch.setenv("A_COPY", "a key of eight or more")
    monkeypatch.setenv("SEARCH_KEY", "short")
    session.settings = replace(session.settings, search=Served("http://127.0.0.1:1", "SEARCH_KEY"))
    session.connect(search="lab")
    with suppress(RolloutlabError):  # nothing listens there
        session.index.embed_with("http://127.0.0.1:1/v1", "model", "EMBEDDING_KEY")
    names = ("EMBEDDING_KEY", "A_COPY", "SEARCH_KEY")
    end = f"print(float(sum(name in os.environ for name in {names})))"
    made = session.rollouts("agent", [sys.executable, "-c", AGENT + end], over=[{"task": "x"}])
    assert made.groups[0].trajectories[0].reward == 0.0


def test_an_interrupted_command_prints_what_plays_the_rest(capture, monkeypatch):
    """The second rollout waits; the interrupt comes when the first is stored."""
    ended = []

    def tick(self, done, *_):
        if done and not ended:
            ended.append(done)
            raise KeyboardInterrupt

    monkeypatch.setattr("rolloutlab.widgets.progress.Progress.update", tick)
    end = "if row['task'] == 'two': import time; time.sleep(60)\nprint(1)"
    status, printed, trajectories = capture(end, "--concurrency", "2", "--timeout", "90")
    assert (status, len(trajectories)) == (130, 1)
    message, advice = printed.err.split("\n  -> ", 1)
    assert message == "1 of 2 rollouts had ended and are kept; this samples the other 1:"
    typed = shlex.split(advice)
    assert typed[:8] == ["rolloutlab", "capture", "agent:1", "--resume", "--concurrency", "2", "--timeout", "90"]
    assert typed[8:10] == ["--", sys.executable]


def test_advice_of_a_notebook_is_called_that_in_a_terminal(capture, session, capsys):
    command = ["--resume", "--", sys.executable, "-c", "1"]
    assert main(["capture", "nothing", *command]) == 2
    assert capsys.readouterr().err.endswith("-> in a notebook: %%chat nothing\n")
