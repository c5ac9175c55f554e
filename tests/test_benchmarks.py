"""What the benchmarks share: goals against the last release, and the environments of their peers."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rolloutlab import __version__

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def history(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("history")


@pytest.fixture
def measure(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("measure")


def goals(**figures: float):
    """Ratios that are to be large; a name that ends in _seconds is to be small."""
    return {
        name: {"figure": figure, "relation": "<=" if name.endswith("_seconds") else ">="}
        for name, figure in figures.items()
    }


@pytest.mark.parametrize(
    ("now", "before", "names"),
    [
        (goals(a=0.86), goals(a=1.0), []),
        (goals(a=0.84), goals(a=1.0), ["a"]),
        (goals(a=2.0), goals(a=1.0), []),
        (goals(a_seconds=1.17), goals(a_seconds=1.0), []),
        (goals(a_seconds=1.18), goals(a_seconds=1.0), ["a_seconds"]),
        (goals(a_seconds=0.1), goals(a_seconds=1.0), []),
        (goals(a=0.8, b=0.1, c_seconds=2.0), goals(a=1.0, b=1.0, c_seconds=1.0), ["b", "c_seconds", "a"]),
        (goals(new=0.1), goals(old=1.0), []),
        (goals(a=0.0, b_seconds=0.0), goals(a=0.0, b_seconds=0.0), []),
        (goals(a_seconds=0.1), goals(a_seconds=0.0), []),
    ],
)
def test_what_lost_more_than_fifteen_percent_is_named_worst_first(history, now, before, names):
    assert [line.split()[1] for line in history.fallen(now, before)] == names


def test_the_lines_of_goals_are_read_as_they_are_printed(history, monkeypatch):
    goal = importlib.import_module("goals").Goal
    printed = [
        str(goal("search_recall", 1.0, ">=", 1.0)),
        "p50 3.1 ms",
        str(goal("lab_opening_seconds", 0.25, "<=", 0.1)),
    ]
    assert history.read(printed) == goals(search_recall=1.0, lab_opening_seconds=0.25)


@pytest.mark.parametrize(
    ("releases", "current", "last"),
    [
        ([], "0.2.0", None),
        (["0.1.0"], "0.2.0", "0.1.0"),
        (["0.1.0", "0.2.0"], "0.2.0", "0.1.0"),
        (["0.1.0"], "0.1.0", "0.1.0"),
    ],
)
def test_a_run_is_compared_with_the_release_before_it(history, releases, current, last):
    assert history.last_release({release: {} for release in releases}, current) == last


def test_a_run_says_what_fell_fails_for_missed_goals_only_and_saves_on_demand(tmp_path):
    shutil.copy(BENCHMARKS / "history.py", tmp_path)
    kept = {"0.0.9": goals(speed=4.0, recall=1.0)}
    (tmp_path / "history.json").write_text(json.dumps(kept))
    (tmp_path / "fast.py").write_text("print('GOAL speed 3 >= 2 met')\nprint('GOAL recall 1 >= 1 met')")
    (tmp_path / "missed.py").write_text("print('GOAL speed 1 >= 2 missed')\nraise SystemExit(1)")

    def run(*arguments: str):
        command = [sys.executable, "history.py", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    first = run("fast.py")
    assert first.returncode == 0, first.stderr
    assert "FELL speed 4 -> 3, 25 % worse" in first.stdout
    assert "recall" not in first.stdout.partition("against 0.0.9")[2]
    assert json.loads((tmp_path / "history.json").read_text()) == kept
    assert run("missed.py").returncode == 1
    assert run("--save", "fast.py").returncode == 0
    assert json.loads((tmp_path / "history.json").read_text()) == {**kept, __version__: goals(speed=3.0, recall=1.0)}


def test_the_history_that_is_kept_names_goals_with_figures_and_relations(history):
    for release in json.loads(history.PATH.read_text()).values():
        for name, figure in release.items():
            assert name.split() == [name]
            assert figure.keys() == {"figure", "relation"}
            assert figure["relation"] in {"<=", ">="}


def test_a_peers_environment_is_made_before_its_python_is_used(measure, tmp_path):
    made = ".venvs/%/.ready:\n\tmkdir -p $(@D)/bin\n\tcp /bin/true $(@D)/bin/python\n\ttouch $@\n"
    (tmp_path / "Makefile").write_text(made)
    assert subprocess.run([measure.peer_python("vectors", tmp_path)], check=False).returncode == 0


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_no_benchmark_uses_an_environment_that_it_does_not_make(path):
    assert path.name == "measure.py" or ".venvs" not in path.read_text()


def test_the_benchmark_of_searching_runs_beside_a_writer_at_its_smallest_size(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    search = importlib.import_module("search")
    monkeypatch.setattr(search, "BATCH", 50)
    assert search.fill(tmp_path / "50.db", 50) > 0
    [(_, vectors_ND, rewards_N)] = search.made(50)
    answers = search.ask(tmp_path / "50.db", vectors_ND[:2])
    assert search.recall(answers["ids"], [search.exact(vectors_ND, rewards_N, each) for each in vectors_ND[:2]]) == 1
    beside = search.beside_a_writer(tmp_path / "50.db", vectors_ND[0], searches=2)
    assert beside["rate"] > 0
    assert beside["age"] < 60
