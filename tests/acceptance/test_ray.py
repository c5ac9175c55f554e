"""The engine on Ray on two nodes of this machine: as one process, and on after nodes and processes were killed.

`ray_nodes.py` does all of it, in namespaces of its own, where no other program can be met.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest

HERE = Path(__file__).parent
NAMESPACES = ["unshare", "-rnpf", "--mount-proc", "--kill-child"]
STEPS, TRIAL = 12, '{"trial"'
LIMIT = 1800
STARTS, DID_NOT_START = 3, 75


@pytest.fixture(scope="module")
def namespaces() -> list[str]:
    """The command that makes namespaces, if this user may."""
    if not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("there is no `unshare` or no `ip`")
    if subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode:
        pytest.skip("this user may not make namespaces: Ray would listen to other machines")
    return NAMESPACES


@pytest.fixture(scope="module")
def trials(namespaces: list[str], request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """The line of each trial, which is printed when it ends: no test asserts all that is measured."""
    shown = request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory(prefix="ray") as folder:
            (Path(folder) / "lab").mkdir()
            both = '"$0" "$1/ray_nodes.py" "$2" "$3/lab" && "$0" "$1/ray_service.py" "$2" "$3/home"'
            script = ["sh", "-c", both, sys.executable, str(HERE), "10.77.0.1:6379", folder]
            cluster = ["bash", str(HERE / "ray_cluster.sh"), sys.executable, folder, *script]
            with (Path(folder) / "errors").open("w+") as errors:
                with subprocess.Popen([*namespaces, *cluster], stdout=subprocess.PIPE, stderr=errors, text=True) as run:
                    timer = Timer(LIMIT, run.kill)
                    timer.start()
                    printed = []
                    for line in run.stdout or ():
                        printed.append(line)
                        with shown():
                            print(line if line.startswith(TRIAL) else "", end="", flush=True)
                    timer.cancel()
                errors.seek(0)
                failure = errors.read()[-3000:]
        if run.returncode != DID_NOT_START:
            break
    assert run.returncode == 0, f"{''.join(printed)[-3000:]}\n{failure}"
    lines = [json.loads(line) for line in printed if line.startswith(TRIAL)]
    return {line["trial"]: line for line in lines}


def test_samplers_give_the_completions_of_one_process_and_stream_them(trials: dict[str, Any]) -> None:
    assert trials["sampling"]["same"] == trials["sampling"]["of"]
    assert trials["sampling"]["streamed"]
    assert trials["sampling"]["logprob_gap"] <= 1e-5


OPTIONS = ["default", "ppo", "sequence ratios", "new logprobs", "KL penalty", "a loss of one's own"]


@pytest.mark.parametrize("name", OPTIONS)
def test_two_ranks_train_what_one_process_trains_to_the_last_bit(trials: dict[str, Any], name: str) -> None:
    trial = trials[f"training: {name}"]
    assert trial["steps"] == STEPS
    assert trial["same_bits"], trial


@pytest.mark.parametrize("what", ["lost", "hung"])
def test_a_request_survives_the_loss_of_a_sampler_and_no_token_comes_twice(trials: dict[str, Any], what: str) -> None:
    trial = trials[f"{what} sampler"]
    assert trial["same"] == trial["of"]
    assert trial["each_token_once"]


def test_a_cancelled_job_keeps_its_steps_and_goes_on_from_them(trials: dict[str, Any]) -> None:
    trial = trials["cancelled"]
    assert (trial["error"], trial["kept"], trial["steps"]) == ("Cancelled", True, STEPS)
    assert trial["same_bits"], trial


@pytest.mark.parametrize("what", ["trainer", "hung trainer", "node"])
def test_a_job_goes_on_after_a_loss_and_no_row_is_reported_or_applied_twice(trials: dict[str, Any], what: str) -> None:
    trial = trials[f"lost {what}"]
    assert trial["steps"] == STEPS
    assert trial["optimizer_steps"] == STEPS
    assert trial["same_bits"], trial


def test_the_node_that_is_left_does_all_of_it_until_another_one_comes(trials: dict[str, Any]) -> None:
    assert trials["nodes left"]["nodes"] == "1 (10.77.0.1)"
    assert trials["joined"]["nodes"] == "2 (10.77.0.1, 10.77.0.3)"
    assert trials["joined"]["trainers"] == 2
    assert trials["training: with a node that joined"]["same_bits"]


def test_a_node_on_which_nothing_can_be_loaded_is_shown_with_the_reason(trials: dict[str, Any]) -> None:
    trial = trials["without rolloutlab"]
    assert trial["nodes"] == "2 (10.77.0.1, 10.77.0.3)"
    assert trial["not used"] == "10.77.0.4 (no sampler: ModuleNotFoundError: no rolloutlab here)"


def test_a_job_of_a_killed_service_goes_on_as_if_nothing_had_happened(trials: dict[str, Any]) -> None:
    trial = trials["killed service"]
    assert (trial["status"], trial["jobs"], trial["restarts"]) == ("succeeded", 2, 1)
    assert trial["optimizer_steps"] == trial["expected_steps"] > 3
    assert trial["same_bits"]


def test_engine_check_passes(trials: dict[str, Any]) -> None:
    assert trials["check"]["passed"], trials["check"]
    assert trials["check"]["status"]["nodes"].startswith("2 ")


def test_the_first_notebook_runs_unchanged(trials: dict[str, Any]) -> None:
    figure = re.fullmatch(
        r"first loop: held-out mean reward 0.\d\d -> (\d.\d\d) in 25 jobs, \d+ s", trials["notebook"]["printed"]
    )
    assert figure, trials["notebook"]
    assert float(figure[1]) >= 0.9


def test_a_cluster_of_its_own_is_not_listened_to_by_others_and_asks_for_a_token(
    namespaces: list[str], tmp_path: Path
) -> None:
    script = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, str(HERE / "ray_alone.py")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["HOME"] = str(tmp_path)
    for _ in range(STARTS):
        run = subprocess.run([*namespaces, *script], capture_output=True, text=True, timeout=LIMIT, env=environment)
        if run.returncode != DID_NOT_START:
            break
    assert run.returncode == 0, run.stderr[-3000:]
    values = json.loads(run.stdout.splitlines()[-1])
    expected = {"listening": True, "refused": True, "elsewhere": [], "rows": 4, "token_file": False}
    assert values.pop("device") == "cpu"
    assert values.pop("nodes") == "1 (127.0.0.1)"
    assert values == expected


@pytest.fixture
def seats() -> list[Any]:
    """Those of two ranks on this machine, which count as hung after a second without a batch."""
    from rolloutlab.integrations.ray.trainers import GroupRank

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [GroupRank("task", rank, 2, address, 2, 1.0, 1.0) for rank in range(2)]


def summed(seat: Any, batches: int, stopped: Event) -> float:
    """The sum that a rank gets, which takes so many batches of a fifth of a second before it comes; then none."""
    import torch

    from rolloutlab.integrations.ray import trainers

    group = trainers._Group(seat, stopped.is_set)
    try:
        for _ in range(batches):
            group.beat()
            stopped.wait(0.2)
        if batches < 0:
            stopped.wait(LIMIT)
        flat_1 = torch.ones(1, dtype=torch.double)
        group.add(flat_1)
        return float(flat_1)
    finally:
        group.close()


def test_a_rank_waits_for_another_as_long_as_that_begins_batches(seats: list[Any], monkeypatch: Any) -> None:
    import ray

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(summed, seat, 15 * seat.rank, Event()) for seat in seats]
        assert [each.result(LIMIT) for each in both] == [2.0, 2.0]


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_rank_waits_neither_for_one_that_hangs_nor_when_it_is_to_stop(
    seats: list[Any], monkeypatch: Any, cancelled: bool
) -> None:
    import ray

    from rolloutlab.errors import Cancelled

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    first, second = Event(), Event()
    with ThreadPoolExecutor(2) as pool:
        waits, hangs = pool.submit(summed, seats[0], 0, first), pool.submit(summed, seats[1], -1, second)
        if cancelled:
            first.set()
        failure = waits.exception(LIMIT)
        second.set()
        hangs.exception(LIMIT)
    assert isinstance(failure, Cancelled) if cancelled else "no rank has begun a batch for 1 s" in str(failure)
