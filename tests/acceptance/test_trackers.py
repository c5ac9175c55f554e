"""The numbers of a run in TensorBoard, Trackio and W&B themselves: read back, they are ours; no network is needed."""

import csv
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

os.environ["TRACKIO_DIR"] = tempfile.mkdtemp()  # read once, at the import
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_ERROR_REPORTING"] = "false"

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trackio.sqlite_storage import SQLiteStorage

from rolloutlab.runs.table import RunTable
from rolloutlab.runs.tracker import open_trackers
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from tests.runs.conftest import Trainer

BEGIN = datetime(2026, 11, 29, 12, 0, 0, 250_000, tzinfo=UTC)
ODD = [0.1, 1 / 3, 1e300, -1e-300, math.nan, math.inf, -math.inf, 2**53 + 1, 10**30, -0.0, 16_777_217]
PLACES = ["tensorboard", "trackio", "wandb"]
NAMES = ["a/b", "v1.2 final", "größe 長さ", "..", "a//b", "%", "x" * 200]


def table(count=3, **fields):
    numbers = {"reward": [0.1 * step for step in range(count)], "tokens": [1000 * step for step in range(count)]}
    wanted = {
        "project": "geo", "name": "capitals", "config": {"learning_rate": 1e-5, "base": "practice", "stop": None},
        "tags": ["first"], "steps": range(count), "numbers": numbers,
        "times": [BEGIN + timedelta(minutes=step) for step in range(count)],
    } | fields  # fmt: skip
    return RunTable(**wanted)


def send(place, home, run):
    (tracker,) = open_trackers([place], home)
    return tracker.log(run)


def in_tensorboard(home, run):
    """Numbers by name as (step, value), and the times by step."""
    return tensorboard_folder(home / "runs" / run.project / run.name)


def tensorboard_folder(folder):
    reader = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    reader.Reload()
    events = {tag: reader.Scalars(tag) for tag in reader.Tags()["scalars"]}
    times = {each.step: each.wall_time for several in events.values() for each in several}
    return {tag: [(each.step, each.value) for each in several] for tag, several in events.items()}, times


def in_trackio(home, run):
    numbers, times = {}, {}
    records = [each for each in SQLiteStorage.get_run_records(run.project) if each["name"] == run.name]
    assert len(records) == 1
    for row in SQLiteStorage.get_logs(run.project, run_id=records[0]["id"]):
        times[row["step"]] = datetime.fromisoformat(row["timestamp"]).timestamp()
        for name in row.keys() - {"step", "timestamp"}:
            numbers.setdefault(name, []).append((row["step"], row[name]))
    return {name: sorted(values, key=lambda each: each[0]) for name, values in numbers.items()}, times


def in_wandb(home, run):
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = (home / "wandb").glob("offline-run-*/*.wandb")
    numbers, times, give_up = {}, {}, time.monotonic() + 30
    records = []
    while not any(record.HasField("exit") for record in records):  # its own process writes the last of them
        assert time.monotonic() < give_up
        records = [Record.FromString(content) for content in wandb_records(file.read_bytes())]
    for record in records:
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for name in row.keys() - {"step", "_timestamp", "_step", "_runtime"}:
            numbers.setdefault(name, []).append((row["step"], float(row[name])))  # "NaN" and "Infinity" are texts
            times[row["step"]] = row["_timestamp"]
    return {name: sorted(values, key=lambda each: each[0]) for name, values in numbers.items()}, times


def wandb_records(content):
    """The records of a W&B file, which is a LevelDB log: blocks of 32 KiB, a header of 7 bytes before each part."""
    at, whole = 7, b""
    while at + 7 <= len(content):
        left = 32_768 - at % 32_768
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # a record in one part, or the last part of one
            yield whole
            whole = b""


READ = {"tensorboard": in_tensorboard, "trackio": in_trackio, "wandb": in_wandb}


def kept(place, value):
    """The number that a tracker has of ours."""
    if place == "tensorboard":
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    return value


def expected(place, run):
    return {
        name: [(step, kept(place, value)) for step, value in zip(run.steps, values, strict=True) if value is not None]
        for name, values in run.numbers.items()
        if any(value is not None for value in values)
    }


def check(place, home, run):
    numbers, times = READ[place](home, run)
    wanted = expected(place, run)
    assert numbers.keys() == wanted.keys()
    for name, values in wanted.items():
        assert [step for step, _ in numbers[name]] == [step for step, _ in values]
        np.testing.assert_array_equal([value for _, value in numbers[name]], [float(value) for _, value in values])
    known = {step: time.timestamp() for step, time in zip(run.steps, run.times, strict=True) if time}
    assert {step: times[step] for step in known.keys() & times.keys()} == pytest.approx(known, abs=1e-5)


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.setenv("NETRC", str(tmp_path / "no-login"))


@pytest.fixture
def project(request):
    """A project of Trackio for each test."""
    return "t" + str(abs(hash(request.node.name)))


@pytest.mark.parametrize("place", PLACES)
def test_every_number_is_read_back_at_its_step_and_time(place, tmp_path, project):
    numbers = {"reward": ODD, "held_out": [None, 0.5] * 5 + [None], "reward.format": [0.25] * 11, "never": [None] * 11}
    times = [BEGIN + timedelta(hours=i) for i in range(11)]
    run = table(project=project, steps=[*range(0, 55, 5)], times=times, numbers=numbers)
    send(place, tmp_path, run)
    check(place, tmp_path, run)


@pytest.mark.parametrize("place", PLACES)
def test_a_run_that_is_sent_again_is_there_once(place, tmp_path, project):
    for steps in (2, 2, 4, 4):
        send(place, tmp_path, table(steps, project=project))
    check(place, tmp_path, table(4, project=project))


@pytest.mark.parametrize("place", PLACES)
def test_late_and_changed_numbers_replace_what_was_there(place, tmp_path, project):
    first = {"reward": [1.0, 2.0, 3.0], "held_out": [None, None, 0.5]}
    late = {"reward": [1.0, 2.0, 3.0], "held_out": [0.1, None, 0.5]}
    changed = {"reward": [1.0, 7.0, 3.0], "held_out": [0.1, None, None]}
    for numbers in (first, late, changed):
        run = table(project=project, numbers=numbers)
        send(place, tmp_path, run)
        check(place, tmp_path, run)


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_run_is_one_in_trackio(name, tmp_path, project):
    run = table(project=project, name=name)
    send("trackio", tmp_path, run)
    check("trackio", tmp_path, run)


def test_any_name_of_a_run_is_a_folder_of_tensorboard(tmp_path):
    for i, name in enumerate(NAMES):
        send("tensorboard", tmp_path, table(name=name, numbers={"reward": [i, i, i]}))
    folders = [each.parent for each in (tmp_path / "runs").rglob("events.out.tfevents.*")]
    assert sorted(tensorboard_folder(each)[0]["reward"][0][1] for each in folders) == list(range(len(NAMES)))
    assert [each.name for each in tmp_path.iterdir()] == ["runs"]


def test_runs_of_one_name_in_two_projects_are_two(tmp_path, project):
    one, other = table(project=f"{project} a"), table(4, project=f"{project}-a", numbers={"reward": [9.0] * 4})
    for run in (one, other, one, other):
        send("tensorboard", tmp_path, run)
        send("trackio", tmp_path, run)
    check("tensorboard", tmp_path, one)
    check("tensorboard", tmp_path, other)
    ids = [each["id"] for each in SQLiteStorage.get_run_records(other.project)]
    assert sorted(len(SQLiteStorage.get_logs(other.project, run_id=each)) for each in ids) == [3, 4]


def test_trackio_says_that_it_has_no_run_without_a_number(tmp_path, project):
    run = table(project=project, numbers={"reward": [None, None, None]})
    assert "no numbers yet" in send("trackio", tmp_path, run)
    assert SQLiteStorage.get_run_records(project) == []


@pytest.mark.parametrize("place", PLACES)
def test_five_hundred_steps_of_twenty_five_numbers(place, tmp_path, project):
    numbers = {f"reward.{i}": [math.sin(i + step) for step in range(500)] for i in range(25)}
    run = table(500, project=project, numbers=numbers)
    send(place, tmp_path, run)
    check(place, tmp_path, run)


def test_event_files_of_other_writers_and_earlier_numbers_survive_a_killed_writer(tmp_path):
    send("tensorboard", tmp_path, table())
    folder = tmp_path / "runs" / "geo" / "capitals"
    other = folder / "events.out.tfevents.1.other"
    other.write_bytes(b"")
    (own,) = folder.glob("*.rolloutlab")
    whole = own.read_bytes()
    for length in range(len(whole) - 20, len(whole)):
        own.write_bytes(whole[:length])
        assert tensorboard_folder(folder)[0]["reward"][:2] == [(0, 0.0), (1, kept("tensorboard", 0.1))]
    send("tensorboard", tmp_path, table(4))
    check("tensorboard", tmp_path, table(4))
    assert other.exists()
    assert [each.stat().st_size > 0 for each in sorted(folder.glob("*.rolloutlab"))] == [False, True]


def test_a_reader_that_follows_the_run_sees_additions_and_a_rewrite(tmp_path):
    send("tensorboard", tmp_path, table())
    reader = EventAccumulator(str(tmp_path / "runs" / "geo" / "capitals"), size_guidance={"tensors": 0, "scalars": 0})

    def seen():
        reader.Reload()
        return [(each.step, each.value) for each in reader.Scalars("reward")]

    assert len(seen()) == 3
    send("tensorboard", tmp_path, table(5))
    assert len(seen()) == 5
    send("tensorboard", tmp_path, table(numbers={"reward": [7.0, 8.0, 9.0]}))
    assert seen() == [(0, 7.0), (1, 8.0), (2, 9.0)]


WRITER = """
import sys, tempfile
from pathlib import Path
place, home, here, database = sys.argv[1:]
tempfile.mkdtemp = lambda: database
sys.path[:0] = [here]
from test_trackers import send, table
for steps in range(1, 12):
    send(place, Path(home), table(steps, project="both"))
"""


@pytest.mark.parametrize("place", ["tensorboard", "trackio"])
def test_two_kernels_that_write_one_run_leave_it_once(place, tmp_path):
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", WRITER, place, str(tmp_path), here, os.environ["TRACKIO_DIR"]]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [each.wait(timeout=120) for each in both] == [0, 0]
    check(place, tmp_path, table(11, project="both"))


def test_a_run_of_the_notebook_in_trackio_and_its_dashboard_names_stay(tmp_path, project):
    SQLiteStorage.bulk_log(project, "capitals", [{"reward": 5.0}], steps=[0], run_id="of-the-user")
    send("trackio", tmp_path, table(project=project))
    records = {each["id"]: each["name"] for each in SQLiteStorage.get_run_records(project)}
    (own,) = records.keys() - {"of-the-user"}
    SQLiteStorage.rename_run(project, "capitals", "renamed", run_id=own)
    send("trackio", tmp_path, table(5, project=project))
    assert {each["id"]: each["name"] for each in SQLiteStorage.get_run_records(project)} == {
        "of-the-user": "capitals", own: "renamed",
    }  # fmt: skip
    assert len(SQLiteStorage.get_logs(project, run_id=own)) == 5
    assert SQLiteStorage.get_run_config(project, "renamed", run_id=own)["learning_rate"] == 1e-5


def test_what_is_written_for_wandb_has_no_key_no_packages_and_no_path_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    send("wandb", tmp_path, table())
    in_wandb(tmp_path, table())  # it is complete
    files = {each.resolve() for each in (tmp_path / "wandb").rglob("*") if each.is_file()}
    files = [each for each in files if "logs" not in each.parts]  # which stay here
    assert {each.suffix for each in files} == {".lock", ".wandb"}
    content = b"".join(each.read_bytes() for each in files)
    assert [
        text for text in ("k" * 40, str(tmp_path), str(Path.home()), "test_trackers") if text.encode() in content
    ] == []


@pytest.fixture
def runs(tmp_path):
    """A session whose lab has a run with held-out rows, components of rewards, and a step without them."""
    session = Session(Settings(home=tmp_path))
    trainer = Trainer(session.store)
    for step, held in enumerate(([[0.0, 1.0], [1.0, 1.0]], None, [[1.0, 1.0], [1.0, 0.0]])):
        if held:
            trainer.sample("held_out.letters", held, step=step)
        rewards = [[0.1 * step, 1 / 3], [0.7, 0.2]]
        made = trainer.sample("letters", rewards, step=step, components=lambda reward: {"format": reward / 3})
        trainer.train(made, step=step + 1, steps=[{"entropy": 0.5 / (step + 1), "kl": 1e-9 * step, "loss": -0.25}])
    yield session
    session.close()


def test_the_view_the_csv_and_the_trackers_have_the_same_numbers(runs, tmp_path):
    view = runs.runs("lab/practice")
    view.send(["tensorboard", "trackio"], say=lambda _: None)
    [course], run = view.state()["courses"], view.runs[0].table()
    shown = {
        name: [(step, value) for step, value in zip(course["steps"], values, strict=True) if value is not None]
        for name, values in course["numbers"].items()
    }
    with view.to_csv(tmp_path / "run.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    written = {name: [(int(row["step"]), float(row[name])) for row in rows if row[name]] for name in shown}
    assert (written, len(rows[0])) == (shown, len(shown) + 2)
    assert shown == in_trackio(tmp_path, run)[0]
    in_32_bits = {name: [(step, float(np.float32(value))) for step, value in values] for name, values in shown.items()}
    assert in_32_bits == in_tensorboard(tmp_path, run)[0]
    assert {"reward", "held_out", "reward.format", "entropy", "kl", "nothing"} <= shown.keys()
