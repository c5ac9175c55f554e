"""Every benchmark at its smallest size, goals against the last release, and the environments of the peers."""

import importlib
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from rolloutlab import __version__
from rolloutlab.policy.practice import FOLDER
from rolloutlab.session import Session
from rolloutlab.settings import ModelSettings, Settings
from rolloutlab.store.lab import Lab
from tests.forked import fork_embedded

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


@pytest.fixture(scope="module")
def practice_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A lab with its embedded service, as benchmarks open one."""
    yield from running(Session(Settings(home=tmp_path_factory.mktemp("lab"), linger=0.5)))


def running(lab: Session) -> Iterator[Session]:
    """A lab whose service is forked, as torch has been imported here."""
    with pytest.MonkeyPatch.context() as patch:
        fork_embedded(patch)
        lab.embedded.address()
    yield lab
    lab.embedded.stop()
    lab.close()


@pytest.fixture
def smallest(monkeypatch):
    """Imports a benchmark and changes its sizes, or a peer. What it has a process alone do is done in this one."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(BENCHMARKS)

    def load(benchmark: str, **changed: Any) -> Any:
        module = importlib.import_module(benchmark)
        if hasattr(module, "alone"):
            changed["alone"] = lambda work, *arguments: work(*arguments)
        for name, value in changed.items():
            monkeypatch.setattr(module, name, value)
        return module

    yield load
    torch.set_num_threads(threads)


@pytest.fixture
def small_model(smallest):
    """Makes a small model in place of the mid-size one."""
    sizes = json.loads((FOLDER / "config.json").read_text())
    return partial(smallest("models").mid_size, sizes["vocab_size"], 32, 1)


@pytest.fixture
def printed(capsys, history):
    """What main() printed for `history`: the names of its goals. Each has a figure."""

    def read(status: int) -> set[str]:
        figures = history.read(capsys.readouterr().out.splitlines())
        assert status in {0, 1}
        assert all(math.isfinite(each["figure"]) for each in figures.values())
        return set(figures)

    return read


def names(goals: Iterable[Any]) -> set[str]:
    """The names of goals that all have a figure, as `history` reads them."""
    goals = list(goals)
    assert all(math.isfinite(goal.figure) for goal in goals)
    assert all(goal.name.split() == [goal.name] for goal in goals)
    return {goal.name for goal in goals}


@pytest.mark.long
def test_the_benchmark_of_starting_runs_at_its_smallest_size(smallest, practice_lab, tmp_path, printed):
    notebook = tmp_path / "loop.ipynb"
    empty = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [{**empty, "id": "loop", "source": "print('0.23 -> 0.97 in 1 s')"}]
    notebook.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    folders = SimpleNamespace(TemporaryDirectory=lambda **_: nullcontext(str(practice_lab.settings.home)))
    start = smallest("start", IMPORTS=1, COMPLETIONS=1, NOTEBOOK=notebook, tempfile=folders)
    expected = {"import_and_load_ext_over_import_pandas", "first_completion_seconds", "first_loop_seconds"}
    assert printed(start.main()) == expected


@pytest.mark.long
def test_the_benchmark_of_sampling_runs_at_its_smallest_size(smallest, practice_lab, small_model, printed):
    once = partial(smallest("measure").best, repeats=1, seconds=0)
    sizes = {
        "THREADS": [1],
        "TOKENS": 8,
        "BATCHES": (2,),
        "CHATS": 2,
        "PROMPTS": 4,
        "best": once,
        "mid_size": small_model,
        "smollm2": lambda: "practice",
    }
    sampling = smallest("sampling", session=lambda: nullcontext(practice_lab), **sizes)
    compared = {f"sampling_over_generate_{name}" for name in ("practice_2", "mid-size_2", "smollm2_2")}
    kinds = {f"{name}_{kind}" for name in compared for kind in ("equal", "ragged")}
    assert printed(sampling.main()) == kinds | {"chat_beside_training_over_idle"}


@pytest.mark.long
def test_the_benchmark_of_sharing_runs_at_its_smallest_size(smallest, practice_lab):
    sharing = smallest("sharing", CHATS=2, TOKENS=2, ROUNDS=1, LARGE=2)
    measured = practice_lab._connector.http.run(sharing.measure(sharing.Client(practice_lab)))
    assert names(measured) == {"eight_requests_over_one_of_eight", "short_chat_p95_beside_512_over_alone"}


def test_the_benchmark_of_rollouts_runs_at_its_smallest_size(smallest, printed):
    rollouts = smallest("rollouts", CHATS=4, CONCURRENT=4, ROUNDS=1)
    rollouts = smallest("rollouts", sdk=rollouts.raw)
    assert printed(rollouts.main()) == {"rollouts_over_openai_sdk", "rollouts_over_aiohttp"}


@pytest.mark.long
def test_the_benchmark_of_capture_runs_at_its_smallest_size(smallest, practice_lab):
    capture = smallest("capture", CONCURRENT=2, ROLLOUTS=2, WARM_UP=2, ROUNDS=1)
    assert names(capture.measure(practice_lab)) == {"capture_calls_ratio"}


def test_the_benchmark_of_the_lab_runs_at_its_smallest_size(smallest, printed):
    once = partial(smallest("measure").best, repeats=1, seconds=0)
    lab = smallest("lab", GROUPS=2, TOTAL=10 * 2 * 8, best=once)
    assert printed(lab.main()) == {"lab_opening_seconds", "lab_listing_seconds", "lab_group_seconds"}


def test_the_benchmark_of_the_rewards_view_fills_its_lab_at_its_smallest_size(smallest, tmp_path):
    view = smallest("rewards_view", GROUPS=2, MEMBERS=2, TOTAL=4)
    view.fill(tmp_path / "lab.db")
    lab = Lab(tmp_path / "lab.db")
    stored = lab.collection("letters")
    assert (stored.trajectories, stored.scored) == (4, 4)
    lab.close()


def test_the_benchmark_of_the_view_of_runs_has_every_number_of_every_step(smallest):
    shown = smallest("runs").state(runs=2, steps=3)
    assert [course["name"] for course in shown["courses"]] == shown["names"] == ["lab/run-0", "lab/run-1"]
    assert len(shown["numbers"]) == 20
    assert {len(values) for course in shown["courses"] for values in course["numbers"].values()} == {3}


def test_the_benchmark_of_searching_runs_at_its_smallest_size(smallest, printed):
    search = smallest("search", BATCH=50, SIZES=(50, 100, 150), COMPARED=100, QUERIES=2, SEARCHES_BESIDE=2)

    def peer(_python: str, _name: str, folder: Path, deed: str) -> dict[str, Any]:
        return {"seconds": 1.0} if deed == "fill" else search.ask(folder / "100.db", np.load(folder / "queries.npy"))

    smallest("search", peer=peer, peer_python=lambda _: sys.executable)
    expected = {"recall", "chromadb_times_ours", "lancedb_times_ours", "million_seconds", "million_gigabytes"}
    expected |= {"writer_rows_per_second", "newest_row_seconds"}
    assert printed(search.main()) == {f"search_{name}" for name in expected}


def test_the_benchmark_of_training_runs_at_its_smallest_size(smallest, small_model, printed):
    shapes = {"SHAPES": ((1, 1, 2),), "MID_SHAPES": ((1, 1, 2),)}
    training = smallest("training", REPEATS=1, trl=lambda *_: 1.0, mid_size=small_model, **shapes)
    without_lengths = {name.rsplit("_", 2)[0] for name in printed(training.main())}
    assert without_lengths == {"training_over_trl_practice", "training_over_trl_mid-size"}


@pytest.mark.long
def test_the_benchmark_of_the_memory_of_a_job_runs_at_its_smallest_size(smallest, practice_lab):
    job_memory = smallest("job_memory", MEGABYTES=0.1, TIMES=(1,))
    expected = {"peak_growth_over_body_x1_accepting", "peak_growth_over_body_x1_until_its_end"}
    assert names(job_memory.measure(practice_lab)) == expected


@pytest.mark.long
def test_the_benchmark_of_half_a_billion_runs_at_its_smallest_size(smallest, tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    half_billion = smallest("half_billion", SIZES=sizes, VOCABULARY=300)
    assert half_billion.write_policy(tmp_path / "policy") > 0
    model = ModelSettings(dtype="bfloat16", device="cpu", gradient_checkpointing=True)
    for lab in running(Session(Settings(tmp_path / "lab", policy=str(tmp_path / "policy"), model=model, linger=0.5))):
        assert names(half_billion.measure(lab)) == {"half_billion_job_gigabytes"}


@pytest.mark.long
def test_the_benchmark_of_guessing_runs_at_its_smallest_size(smallest, tmp_path):
    guess = smallest("guess", TARGETS=4, HELD_OUT=2, ROWS=2, COMPLETIONS=4, COMPARED=1, TURNS=3)
    for lab in running(Session(Settings(tmp_path, policy="practice-games", linger=0.5))):
        expected = {"turns_above_checkpoint_0_seed_0", "turns_above_random_player_seed_0"}
        assert names(guess.measure(lab, seeds=1, jobs=1)) == expected


@pytest.mark.long
def test_the_benchmark_of_sft_before_rl_runs_at_its_smallest_size(smallest, practice_lab, tmp_path):
    sft_then_rl = smallest("sft_then_rl", PROMPTS=4, COMPLETIONS=8, HELD_OUT=2, DEMONSTRATIONS=2)
    assert names(sft_then_rl.measure(practice_lab, tmp_path, seeds=1, rounds=1)) == {"gain_of_sft_before_rl"}


@pytest.mark.long
def test_the_benchmark_of_a_real_model_runs_at_its_smallest_size(smallest, small_model, tmp_path):
    sizes = {"EVERY": 1, "WORDS": 2, "HELD_OUT": 2, "COMPLETIONS": 4, "MAX_TOKENS": 4}
    real_model = smallest("real_model", **sizes)

    def reward(answer: str, kind: str) -> float:
        return float(len(kind) + sum(map(ord, answer)) % 7)

    smallest("real_model", OPTIONS=real_model.OPTIONS | {"groups_per_step": 1}, reward=reward)

    def peer(_folder: Path, _seed: int, rounds: list[Any], _held_out: Any) -> Any:
        ends = ({"tokens": 0.0, "seconds": 0.0}, {"tokens": 32.0, "seconds": 1.0})
        return [{**each, "held_out": 0.1 + 0.5 * i} for i, each in enumerate(ends)] if len(rounds) == 1 else None

    smallest("real_model", trl=peer)
    with small_model() as folder:
        for lab in running(Session(Settings(tmp_path, policy=str(folder), linger=0.5))):
            expected = {"real_model_gain_by_tokens_over_trl", "real_model_gain_by_seconds_over_trl"}
            assert names(real_model.compare(lab, folder, seeds=1, rounds=1)) == expected


def test_both_sides_of_a_real_model_have_the_same_words_of_which_none_is_held_out(smallest):
    real_model = smallest("real_model")
    rounds, held_out = real_model.words_of(1, 3)
    assert (rounds, held_out) == real_model.words_of(1, 3)
    assert rounds != real_model.words_of(2, 3)[0]
    trained = {row["word"] for words in rounds for row in words}
    assert not trained & {row["word"] for row in held_out}
    assert [row["kind"] for row in held_out].count("plant") == 8


def test_the_benchmark_of_a_length_bias_runs_at_its_smallest_size(smallest):
    length_bias = smallest("length_bias", GROUPS=1, COMPLETIONS=4, MEASURED=4, LONGEST=8)
    expected = {"length_bias_sequence_mean_low", "length_bias_token_mean_low", "length_bias_token_mean_high"}
    expected |= {"length_bias_of_sequence_mean_over_token_mean_low"}
    assert names(length_bias.measure(seeds=2, jobs=1)) == expected


@pytest.fixture
def gpu(smallest, monkeypatch):
    """The benchmark of a GPU, whose tiny shapes run in this process; what it changes for processes is undone."""
    monkeypatch.setenv("PYTHONPATH", "")

    def here(_seconds: float, work: Any, *arguments: Any) -> list[Any]:
        sent: list[Any] = []
        work(SimpleNamespace(send=sent.append, close=lambda: None), *arguments)
        return sent

    module = smallest("gpu", within=here)
    return smallest("gpu", TINY=replace(module.TINY, lines=("scored as sampled",)))


@pytest.mark.long
def test_the_benchmark_of_a_gpu_runs_at_its_smallest_size(gpu, printed, tmp_path):
    status = gpu.main(["--wheels", str(tmp_path), "--smollm2", "tiny", "--json", str(tmp_path / "gpu.json")])
    expected = {"engine_check_failures", "sampling_over_generate", "first_ratio_mean"}
    assert printed(status) == {f"tiny_{name}" for name in expected}
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert written["left_out"] == {}
    assert "no GPU" in written["device"]
    measured = {each["name"] for each in written["figures"]}
    assert {f"training_{size}{what}" for size in ("0.5B", "1.5B", "7B") for what in ("", "_peak")} <= measured
    assert {"reward_after_1_jobs_at_1e-05", "reward_after_1_jobs_at_5e-05", "smollm2_gain"} <= measured


def test_a_part_that_fails_is_named_and_the_others_go_on(gpu, monkeypatch, capsys, tmp_path):
    def fails(*_: object) -> Iterator[Any]:
        yield gpu.Figure("before", 1.0, "")
        raise ValueError("no such layer")

    monkeypatch.setitem(gpu.PARTS, "sampling", (1.0, fails))
    monkeypatch.setitem(gpu.PARTS, "engine check", (1.0, lambda *_: iter([gpu.Figure("after", 2.0, "")])))
    assert gpu.main(["--wheels", str(tmp_path), "--only", "sampling", "--only", "engine check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "left out: sampling: ValueError: no such layer" in lines
    assert [line.split()[0] for line in lines if line.startswith(("before", "after"))] == ["before", "after"]


def test_a_part_without_smollm2_is_named_and_is_no_fault(gpu, capsys, tmp_path):
    assert gpu.main(["--wheels", str(tmp_path), "--only", "SmolLM2"]) == 0
    assert "left out: SmolLM2: SmolLM2 is not here" in capsys.readouterr().out


def test_a_part_is_ended_when_its_time_is_over(smallest, tmp_path):
    (tmp_path / "stuck.py").write_text("import signal\n\n\ndef forever(_to):\n    signal.pause()\n")
    gpu = smallest("gpu", PRELOADED=[])
    sys.path.insert(0, str(tmp_path))
    assert [*gpu.within(0.5, importlib.import_module("stuck").forever)] == ["its 0.5 seconds were over"]


def test_wheels_are_unpacked_where_the_machine_has_nothing_newer_and_what_lacks_is_named(gpu, monkeypatch, tmp_path):
    wheels, folder = tmp_path / "wheels", tmp_path / "to"
    wheels.mkdir()
    folder.mkdir()
    for name, version in (("carried_here", "1.0"), ("numpy", "0.1"), ("carried_in_parts", "2.1")):
        with ZipFile(wheels / f"{name}-{version}-py3-none-any.whl", "w") as packed:
            packed.writestr(f"{name}.py", f"version = {version!r}")
    whole = wheels / "carried_in_parts-2.1-py3-none-any.whl"
    for part, content in zip(("aa", "ab"), (whole.read_bytes()[:100], whole.read_bytes()[100:]), strict=True):
        whole.with_name(f"{whole.name}.{part}").write_bytes(content)
    whole.unlink()
    monkeypatch.setattr(gpu, "NEEDED", ("carried_here", "carried_in_parts", "numpy", "in_no_wheel"))
    assert gpu.bring(wheels, folder) == ["in_no_wheel"]
    assert importlib.import_module("carried_in_parts").version == "2.1"
    assert sorted(each.stem for each in (folder / "packages").glob("*.py")) == ["carried_here", "carried_in_parts"]


@pytest.mark.long
def test_the_benchmark_of_topping_up_runs_at_its_smallest_size(smallest, practice_lab):
    loops = {"without": (2, 1.0), "top-up 2": (2, 2.0)}
    top_up = smallest("top_up", PROMPTS=4, LOOPS=loops, HELD_OUT=2, HELD_OUT_N=2)
    expected = {"trained_per_sampled_gain_of_top_up_2", "jobs_more_with_top_up_2"}
    assert names(top_up.measure(practice_lab, seeds=2, jobs=1)) == expected


def test_every_benchmark_of_the_makefile_has_a_test_of_its_smallest_size():
    made = re.search(r"^BENCHMARKS := (.+)$", (BENCHMARKS.parent / "Makefile").read_text(), re.MULTILINE)
    assert made
    tests = Path(__file__).read_text()
    assert [name for name in made[1].split() if f'smallest("{name}"' not in tests] == []
