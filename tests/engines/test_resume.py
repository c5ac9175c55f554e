"""A job whose service stops goes on from its last steps, as if nothing had happened."""

import math
import threading
from array import array
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from rolloutlab.api.job_state import job_progress
from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.engines.engine import partial_of
from rolloutlab.engines.local import LocalEngine
from rolloutlab.engines.sampling_check import step_of
from rolloutlab.errors import Cancelled
from rolloutlab.objective.options import settle
from rolloutlab.policy import trainer
from rolloutlab.policy.checkpoints import State, open_draft, seal
from rolloutlab.policy.progress import Progress
from rolloutlab.policy.steps import TrainingSequence
from rolloutlab.policy.task import Callbacks, Task
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.service.model_registry import Registry

PATIENCE, STEPS = 30.0, 6
STATE = State({"a": torch.ones(3)}, {"a.step": torch.tensor(2.0)})


@pytest.fixture
def job(body, trajectory):
    """The JSON of a job of as many steps, each of one group, whose loss is one of many options."""

    def make(model, **config):
        group = {"trajectories": [trajectory(float(i % 2), tokens=100) for i in range(8)]}
        return body(model.id, trajectory_groups=[group] * STEPS, experimental_config={"groups_per_step": 1, **config})

    return make


@pytest.fixture
def steps(monkeypatch):
    """Counts whole gradient steps; holds before the one whose number is in `held` until `go_on`."""

    class Steps:
        taken, held, engine_closed = 0, -1, False
        reached, go_on = threading.Event(), threading.Event()

    step, steps = trainer._take_step, Steps()

    def counted(*values):
        if steps.taken == steps.held:
            steps.reached.set()
            assert steps.go_on.wait(PATIENCE)
        if steps.engine_closed:
            raise Cancelled
        taken = step(*values)
        steps.taken += 1
        return taken

    monkeypatch.setattr(trainer, "_take_step", counted)
    monkeypatch.setattr(Progress, "due", lambda self: True)
    return steps


def submit(service, body):
    return service.call("POST", "/v1/preview/training-jobs", json=body)["id"]


def tensors(service, model):
    folder = service.folder / "models" / str(model.id) / "1"
    return [load_file(folder / name) for name in ("adapter_model.safetensors", "optimizer.safetensors")]


def same(first, second):
    return all(a.keys() == b.keys() and all(a[n].equal(b[n]) for n in a) for a, b in zip(first, second, strict=True))


def metrics(events):
    return [event.data for event in events if event.type == "gradient_step"]


def stop_in_a_step(service, steps):
    """Stop a service while its job takes a step."""
    assert steps.reached.wait(PATIENCE)
    stopping = threading.Thread(target=service.stop)
    stopping.start()
    while not service.jobs._closed:
        pass
    steps.go_on.set()
    stopping.join()


CONFIGS = [
    {},
    pytest.param({"precalculate_logprobs": True}, marks=pytest.mark.long),
    pytest.param({"kl_penalty_coef": 0.1}, marks=pytest.mark.long),
    {"epochs": 3, "groups_per_step": 3, "loss_aggregation": "token_mean", "weight_decay": 0.0},
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_job_goes_on_after_a_restart_with_the_same_bits_and_no_step_twice(start, job, steps, config):
    service = start()
    whole, model = service.register("whole"), service.register("stopped")
    expected = metrics(service.ended(submit(service, job(whole, **config))))
    assert (len(expected), steps.taken) == (STEPS, STEPS)
    steps.taken, steps.held = 0, 3
    job_id = submit(service, job(model, **config))
    stop_in_a_step(service, steps)
    service = start()
    events = service.ended(job_id)
    assert [event.type for event in events[:3]] == ["restarted", "training_started", "preflight"]
    assert metrics(events) == expected
    assert steps.taken == STEPS
    assert same(tensors(service, model), tensors(service, whole))
    assert [path.name for path in service.folder.glob("models/*/.*")] == []


def test_a_job_whose_engine_is_closed_as_the_service_stops_is_not_cancelled(start, job, steps):
    service = start()
    model = service.register("stopped")
    steps.held = 2
    job_id = submit(service, job(model))
    assert steps.reached.wait(PATIENCE)
    service.jobs.end_streams()  # the service does so before it closes the engine
    steps.engine_closed = True
    steps.go_on.set()
    service.jobs._thread.join(PATIENCE)
    service.stop()
    steps.engine_closed = False
    service = start()
    events = service.ended(job_id)
    assert [events[0].type, events[-1].type] == ["restarted", "training_ended"]
    assert len(metrics(events)) == STEPS


def test_a_job_of_another_base_waits_for_it_and_loses_nothing(start, job, steps, practice_policy):
    service = start()
    model = service.register("stopped")
    steps.held = 3
    job_id = submit(service, job(model))
    stop_in_a_step(service, steps)
    other, changed = start(practice_policy), threading.Event()
    with other.jobs.subscribe(changed.set):
        while (last := other.jobs.events(job_id, 0, 99)[-1]).type != "waiting":
            assert changed.wait(PATIENCE)
            changed.clear()
    assert "lab/stopped was trained on another base policy" in last.data["reason"]
    assert (other.jobs.job(job_id).status, other.jobs.busy()) == ("queued", False)
    assert job_progress([last])[2].startswith("queued: lab/stopped was trained on another base policy")
    events = start().ended(job_id)
    assert (events[-1].type, len(metrics(events)), steps.taken) == ("training_ended", STEPS, STEPS)


def test_the_base_of_a_job_is_compared_as_it_is_queued_and_not_again_as_it_starts(start, job, monkeypatch):
    service, compare, compared = start(), Registry.conflict, []
    monkeypatch.setattr(Registry, "conflict", lambda self, model_id: compared.append(1) or compare(self, model_id))
    service.ended(submit(service, job(service.register("first"))))
    assert len(compared) == 1


def test_what_another_job_kept_is_not_read(tmp_path):
    Progress(tmp_path / "kept", "one").write(STATE, [{"loss": 1.0}])
    assert Progress(tmp_path / "kept", "other").read() is None
    state, reported = Progress(tmp_path / "kept", "one").read()
    assert same([state.adapter, state.optimizer], [STATE.adapter, STATE.optimizer])
    assert reported == [{"loss": 1.0}]


def row(*ids):
    tokens = TokenSequence(array("i", ids), bytearray([0, 1, 1]), array("f", [0.0, -5.0, -5.0]))
    return TrainingSequence(tokens, 1.0, 1.0)


A, B, C = row(5, 6, 7), row(8, 9, 10), row(11, 12, 13)
TASK = Task([step_of([A, B]), step_of([C])], [1e-3] * 2, settle(None), 1, {})
OTHERS = {
    "packing": replace(TASK, steps=[step_of([A]), step_of([B, C])]),
    "tokens": replace(TASK, steps=[step_of([A, row(8, 9, 11)]), step_of([C])]),
    "advantages": replace(TASK, steps=[step_of([A, replace(B, advantage=-0.5)]), step_of([C])]),
    "rates": replace(TASK, rates=[2e-3] * 2),
    "divisors": replace(TASK, steps=[step_of([A, B]), replace(step_of([C]), divisor=7.0)]),
    "epochs": replace(TASK, rates=[1e-3] * 4, options=settle(ExperimentalTrainingConfig(epochs=2))),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_task_of_as_many_other_steps_does_not_go_on_from_what_was_kept(policy, tmp_path, other):
    engine, steps = LocalEngine(policy, least_seconds=0.0), []

    def train(target, task, most=9):
        (tmp_path / target).mkdir(exist_ok=True)
        steps.clear()
        callbacks = Callbacks(
            lambda kind, data: steps.append(data), lambda: len(steps) == most, progress_seconds=math.inf
        )
        engine.train(tmp_path / "0", tmp_path / target, task, callbacks)
        return list(steps)

    with open_draft(tmp_path / "0") as draft:
        engine.create_initial(draft)
        seal(draft, tmp_path / "0")
    with pytest.raises(Cancelled):
        train("job", TASK, most=1)
    assert partial_of(tmp_path / "job").exists()
    assert train("job", other) == train("whole", other)
    engine.close()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, -1])
def test_what_a_loss_of_power_cut_off_is_not_read(tmp_path, size):
    Progress(tmp_path / "kept", "one").write(STATE, [])
    content = (tmp_path / "kept").read_bytes()
    (tmp_path / "kept").write_bytes(content[:size])
    assert Progress(tmp_path / "kept", "one").read() is None


def test_a_kill_while_progress_is_written_leaves_files_in_the_draft_of_the_job_alone(tmp_path, monkeypatch):
    def killed(tensors, file, metadata):
        file.with_name(".tmpAbC123").write_bytes(b"half")  # the name that safetensors gives what it writes
        raise SystemExit

    kept = partial_of(tmp_path / ".job-1")
    monkeypatch.setattr("rolloutlab.policy.progress.save_file", killed)
    monkeypatch.setattr("rolloutlab.policy.progress.remove", lambda _: None)
    with pytest.raises(SystemExit):
        Progress(kept, "one").write(STATE, [])
    assert [path.name for path in tmp_path.iterdir()] == [f"{kept.name}.draft"]
    assert kept.name.startswith(".job-1."), "the next start of the service removes it, and so does the end of the job"
    monkeypatch.undo()
    Progress(kept, "one").write(STATE, [])
    assert list(tmp_path.iterdir()) == [kept]


def test_a_full_disk_does_not_end_a_job(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    progress = Progress(tmp_path / "kept", "one")
    progress.write(STATE, [{"loss": 1.0}])
    monkeypatch.setattr("rolloutlab.policy.progress.save_file", full)
    progress.write(STATE, [{"loss": 1.0}, {"loss": 2.0}])
    assert progress.read()[1] == [{"loss": 1.0}]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
