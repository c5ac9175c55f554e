"""A Tinker server samples and trains as the embedded service does; what it cannot do is refused by name."""

import json
import math
import shutil
from array import array
from dataclasses import replace
from itertools import chain
from random import Random

import pytest

pytest.importorskip("tinker")

from tinker.lib.internal_client_holder import InternalClientHolder
from tinker.lib.public_interfaces.training_client import TrainingClient

from rolloutlab import errors
from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.engines.engine import KeepsElsewhere, partial_of
from rolloutlab.engines.local import LocalEngine
from rolloutlab.engines.sampling_check import step_of
from rolloutlab.integrations.tinker import client as tinker_client
from rolloutlab.integrations.tinker.client import Datum
from rolloutlab.integrations.tinker.engine import PLACE
from rolloutlab.integrations.tinker.trainer import SavedProgress
from rolloutlab.objective.options import settle
from rolloutlab.policy.checkpoints import copy_files, open_draft, read_checkpoint, seal
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.model import base_of, describe, read_adapter
from rolloutlab.policy.steps import TrainingSequence
from rolloutlab.policy.task import Callbacks, Task
from rolloutlab.policy.token_sequence import TokenSequence
from tests.integrations.tinker.tinker_server import PATIENCE, Server, engine_of, serving

SQUARES = "def loss(new, old, advantage, weight, history):\n    return ((new - old - advantage) ** 2 * weight).mean()"
PROMPT = (5, 6, 7, 8)


@pytest.fixture(scope="module")
def local(policy):
    engine = LocalEngine(policy)
    yield engine
    engine.close()


def filled(folder, fill):
    """A checkpoint that an engine has filled."""
    with open_draft(folder) as draft:
        fill(draft)
        seal(draft, folder)
    return folder


def sequence(seed, prompt=6, sampled=9, known=True):
    random = Random(seed)
    ids = array("i", [random.randrange(4, 260) for _ in range(prompt + sampled)])
    logprobs = [-5.7 + random.uniform(-1.5, 1.5) if known else math.nan for _ in range(sampled)]
    return TokenSequence(ids, bytearray([0] * prompt + [1] * sampled), array("f", [0.0] * prompt + logprobs))


def task_of(steps=1, known=True, loss_source=None, reference=None, **config):
    """Steps of sequences of different lengths, with advantages of both signs."""
    made = [
        step_of(
            [
                TrainingSequence(sequence(10 * i + j, 4 + j, 5 + 3 * j, known), advantage=1.0 - 0.8 * j, weight=1.0)
                for j in range(3)
            ]
        )
        for i in range(steps)
    ]
    options = settle(ExperimentalTrainingConfig(**config))
    return Task(made, [1e-3] * steps * options.epochs, options, 1, {}, loss_source=loss_source, reference=reference)


def trained(engine, source, folder, task, cancelled=lambda: False):
    """The checkpoint of a task, and the metrics of its steps."""
    events = []
    callbacks = Callbacks(lambda kind, data: events.append(data), cancelled, progress_seconds=math.inf)
    return filled(folder, lambda draft: engine.train(source, draft, task, callbacks)), events


def place(folder):
    return json.loads((folder / PLACE).read_text())


def distance(policy, ours, theirs):
    """Between two adapters, in parts of how far the first is from a new one."""
    new = read_adapter(policy.lora_copy())
    moved = sum(float((ours[name] - new[name]).norm()) ** 2 for name in new)
    return math.sqrt(sum(float((ours[name] - theirs[name]).norm()) ** 2 for name in new) / moved)


OPTIONS = {
    "defaults": {"steps": 2},
    "ppo": {"ppo": True},
    "masked": {"mask_prob_ratio": True, "epsilon": 0.3, "epsilon_high": 0.5},
    "k2": {"vendor_k2_tau": 0.1},
    "sequence": {"importance_sampling_level": "sequence"},
    "average": {"importance_sampling_level": "average"},
    "geometric": {"importance_sampling_level": "geometric_average"},
    "clip and decay": {"max_grad_norm": 0.05, "weight_decay": 0.0, "epochs": 2},
    "no clip": {"max_grad_norm": 0, "steps": 2},
    "max weight": {"ppo": True, "max_negative_advantage_importance_sampling_weight": 0.9},
    "truncated": {"precalculate_logprobs": True, "truncated_importance_sampling": 2.0},
    "kl": {"steps": 2, "kl_penalty_coef": 0.1},
    "own loss": {"loss_source": SQUARES},
    "fine-tuning": {"known": False},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_job_gives_the_weights_and_metrics_of_the_embedded_service(policy, server, engine, local, tmp_path, options):
    task = task_of(**options)
    ours, steps = trained(local, filled(tmp_path / "0", local.create_initial), tmp_path / "1", task)
    theirs, others = trained(engine, filled(tmp_path / "t0", engine.create_initial), tmp_path / "t1", task)
    # AdamW's step has the size of the rate also where a gradient is little more than rounding
    assert distance(policy, read_checkpoint(ours).adapter, server.saved[place(theirs)["state"]][0]) < 1e-3
    assert_same_steps(steps, others)


def assert_same_steps(steps, others):
    for here, there in zip(steps, others, strict=True):
        assert here.keys() - there.keys() == {"entropy"}
        # a server has no distribution over the vocabulary: the distance is an estimate by sampled tokens
        same = {name: value for name, value in there.items() if name != "kl_base" or "ratio_mean" not in there}
        assert same == pytest.approx({name: here[name] for name in same}, rel=1e-4, abs=1e-6)


def test_it_says_where_an_adapter_is_and_how_to_download_it(server, engine, tmp_path):
    assert isinstance(engine, KeepsElsewhere)
    first = filled(tmp_path / "0", engine.create_initial)
    assert engine.place(first).endswith(", and is not trained yet")
    second, _ = trained(engine, first, tmp_path / "1", task_of(1))
    assert engine.place(second).endswith(f": !tinker checkpoint download {place(second)['sampler']}")


def test_later_jobs_go_on_from_a_checkpoint_and_measure_their_distance_to_another(engine, local, tmp_path):
    results = []
    for each, name in ((local, "l"), (engine, "t")):
        first, _ = trained(each, filled(tmp_path / f"{name}0", each.create_initial), tmp_path / f"{name}1", task_of(2))
        again = task_of(2, kl_penalty_coef=0.2, kl_ref_step=1, reference=first)
        second, steps = trained(each, first, tmp_path / f"{name}2", again)
        sequences = again.steps[0].tokens
        results.append((steps, each.logprobs(first, sequences), each.logprobs(second, sequences)))
    (ours, *scored), (theirs, *others) = results
    assert_same_steps(ours, theirs)
    for expected, each in zip(chain(*scored), chain(*others), strict=True):
        assert each == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("means", "clips"), [(False, True), (True, False)])
def test_what_a_server_does_with_a_gradient_is_measured(policy, local, tmp_path, means, clips):
    _, (expected,) = trained(local, filled(tmp_path / "0", local.create_initial), tmp_path / "1", task_of(1))
    with serving(Server(policy, "tiny", means=means, clips=clips)) as server, engine_of(server) as engine:
        _, (step,) = trained(engine, filled(tmp_path / "t0", engine.create_initial), tmp_path / "t1", task_of(1))
        ignored = engine.unsupported.get("max_grad_norm")
    assert step["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
    assert ignored == (None if clips else "the Tinker server does not clip gradients")


@pytest.mark.parametrize(("means", "requests"), [(True, "all"), (True, "each"), (False, "all")])
def test_a_step_of_several_requests_is_that_of_one(policy, local, tmp_path, monkeypatch, means, requests):
    monkeypatch.setattr(tinker_client, "_BYTES", 3 * 40 * 20)
    task = task_of(1, kl_penalty_coef=0.1)
    whole = [task_of(i + 1).steps[i].sequences for i in range(4)]
    task = replace(task, steps=[step_of([each for some in whole for each in some])])
    _, (expected,) = trained(local, filled(tmp_path / "0", local.create_initial), tmp_path / "1", task)
    with serving(Server(policy, "tiny", means=means, requests=requests)) as server, engine_of(server) as engine:
        before = server.calls["forward_backward"]
        _, (step,) = trained(engine, filled(tmp_path / "t0", engine.create_initial), tmp_path / "t1", task)
        assert server.calls["forward_backward"] - before == 3
        assert engine._capabilities.per_request == (requests == "each")
    assert_same_steps([expected], [step])


def test_a_server_that_forgets_a_request_is_refused_where_a_step_needs_several(policy, tmp_path, monkeypatch):
    with serving(Server(policy, "tiny", requests="last")) as server, engine_of(server) as engine:
        source = filled(tmp_path / "0", engine.create_initial)
        trained(engine, source, tmp_path / "1", task_of(1))
        monkeypatch.setattr(tinker_client, "_EXAMPLES", 9)
        target = tmp_path / "2"
        target.mkdir()
        with pytest.raises(errors.ServiceError, match="all but the last of 3 requests") as raised:
            engine.train(source, target, task_of(1), Callbacks(lambda *_: None))
        assert raised.value.hint == "a smaller groups_per_step"


@pytest.mark.parametrize(("number", "length"), [(3000, 8), (200, 2000), (1, 200_000), (1016, 127)])
def test_requests_are_those_that_the_sdk_sends_as_they_are(number, length):
    class Holder:
        estimate_bytes_count_in_chunk = InternalClientHolder.estimate_bytes_count_in_chunk
        estimate_bytes_count_in_model_input = InternalClientHolder.estimate_bytes_count_in_model_input

    sdk = TrainingClient.__new__(TrainingClient)
    sdk.holder = Holder()
    datum = Datum([1] * length, [0.0] * (length - 1), [0.0] * (length - 1)).to_sdk()
    filling = Datum([1, 1], [0.0], [0.0]).to_sdk()
    found = list(tinker_client.divide_into_requests([length] * number))
    assert [i for part in found for i in range(part.start, part.stop)] == list(range(number))
    for part in {part.stop - part.start for part in found}:
        data = [datum] * part + [filling] * tinker_client.count_padding([length] * part)
        assert len(list(sdk._chunked_requests_generator(data))) == 1


def test_a_server_that_reports_no_norm_trains_with_sums(policy, server, engine, tmp_path):
    with serving(Server(policy, "tiny", means=False, reports_norm=False)) as silent, engine_of(silent) as without:
        source = filled(tmp_path / "0", without.create_initial)
        result, (step,) = trained(without, source, tmp_path / "1", task_of(1))
        theirs = silent.saved[place(result)["state"]][0]
        assert "clipping" in " ".join(without.unsupported)
    expected, (reported,) = trained(engine, filled(tmp_path / "t0", engine.create_initial), tmp_path / "t1", task_of(1))
    assert reported.keys() - step.keys() == {"grad_norm"}
    assert distance(policy, theirs, server.saved[place(expected)["state"]][0]) < 1e-3


@pytest.fixture
def saving(monkeypatch):
    """Has the state saved after every row."""
    monkeypatch.setattr(SavedProgress, "due", lambda self: True)


def test_a_killed_job_goes_on_from_its_last_saved_state(server, engine, tmp_path, saving):
    source, task = filled(tmp_path / "0", engine.create_initial), task_of(3)
    whole, expected = trained(engine, source, tmp_path / "whole", task)
    target, events = tmp_path / "job", []
    target.mkdir()
    callbacks = Callbacks(lambda kind, data: events.append(data), lambda: len(events) == 2, progress_seconds=math.inf)
    with pytest.raises(errors.Cancelled):
        engine.train(source, target, task, callbacks)
    assert partial_of(target).exists()
    server.lose()
    taken = server.calls["optim_step"]
    with engine_of(server) as another:
        taken = server.calls["optim_step"]
        events = []
        another.train(
            source, target, task, Callbacks(lambda kind, data: events.append(data), progress_seconds=math.inf)
        )
    assert server.calls["optim_step"] == taken + 1
    assert events == expected
    first, second = (server.saved[place(folder)["state"]][0] for folder in (whole, target))
    assert all(first[name].equal(second[name]) for name in first)


def test_what_another_job_saved_is_not_read(tmp_path):
    SavedProgress(tmp_path / "kept", "one", 0.0).save(lambda: "tinker://m/weights/a", [{"loss": 1.0}])
    assert SavedProgress(tmp_path / "kept", "other", 0.0).read() is None
    assert SavedProgress(tmp_path / "kept", "one", 0.0).read() == ("tinker://m/weights/a", [{"loss": 1.0}])
    (tmp_path / "kept").write_bytes((tmp_path / "kept").read_bytes()[:20])
    assert SavedProgress(tmp_path / "kept", "one", 0.0).read() is None


def test_a_job_survives_the_loss_of_its_model_and_of_a_saved_state_and_reports_no_step_twice(
    server, engine, tmp_path, saving
):
    source, task = filled(tmp_path / "0", engine.create_initial), task_of(3)
    _, expected = trained(engine, source, tmp_path / "1", task)
    server.lose_after = server.calls["forward"] + 4  # two to prepare the rows, and one a step
    _, events = trained(engine, source, tmp_path / "2", task)
    assert events == expected
    target = tmp_path / "3"
    target.mkdir()
    kept = SavedProgress(partial_of(target), task.key(source), 0.0)
    kept.save(lambda: "tinker://model_1/weights/expired", expected[:1])
    events = []
    engine.train(source, target, task, Callbacks(lambda kind, data: events.append(data), progress_seconds=math.inf))
    assert events == expected


def test_a_completion_depends_on_its_seed_and_index_alone(engine):
    requests = [CompletionRequest(PROMPT, 8, seed=3, index=i) for i in range(3)]
    rows = engine.sample(None, requests).result(PATIENCE)
    (again,) = engine.sample(None, requests[1:2]).result(PATIENCE)
    assert (again.tokens, again.logprobs) == (rows[1].tokens, rows[1].logprobs)
    assert len({tuple(row.tokens) for row in rows}) == 3
    assert {(row.finish, len(row.tokens)) for row in rows} == {("length", 8)}
    assert scored(engine, rows[0]) == pytest.approx(rows[0].logprobs, rel=1e-4)


def test_completions_of_one_prompt_are_one_request(server, engine):
    requests = [CompletionRequest(prompt, 4, seed=3, index=i) for prompt in (PROMPT, (9, 10)) for i in range(5)]
    before = server.calls["asample"]
    rows = engine.sample(None, [*requests, requests[0]]).result(PATIENCE)
    assert server.calls["asample"] == before + 3
    assert [row.request for row in rows] == [*requests, requests[0]]
    assert rows[-1].tokens == rows[0].tokens
    assert len({(row.request.prompt, tuple(row.tokens)) for row in rows}) == 10


def test_a_server_sees_few_shapes_of_requests(server, engine, tmp_path):
    begun = len(server.bodies)
    trained(engine, filled(tmp_path / "0", engine.create_initial), tmp_path / "1", task_of(2))
    sent = [body for name, body in server.bodies[begun:] if name in ("forward", "forward_backward")]
    assert {len(body.get("forward_input", body.get("forward_backward_input"))["data"]) for body in sent} == {8}


def scored(engine, row, checkpoint=None):
    """Logprobs of a completion's tokens, by scoring."""
    ids = [*row.request.prompt, *row.tokens]
    marks = bytearray([0] * len(row.request.prompt) + [1] * len(row.tokens))
    return engine.logprobs(checkpoint, [TokenSequence(array("i", ids), marks, array("f", [0.0] * len(ids)))])[0]


def test_temperature_0_takes_the_most_likely_tokens_of_the_embedded_service(engine, local):
    request = CompletionRequest(PROMPT, 6, temperature=0.0)
    (ours,), (theirs,) = (each.sample(None, [request]).result(PATIENCE) for each in (local, engine))
    assert theirs.tokens == ours.tokens
    assert theirs.logprobs == pytest.approx(ours.logprobs, rel=1e-4)


def test_forced_tokens_come_first_with_their_logprobs(engine):
    request = CompletionRequest(PROMPT, 5, forced=(40, 41))
    row, short = engine.sample(None, [request, replace(request, max_tokens=1)]).result(PATIENCE)
    assert (row.tokens[:2], len(row.tokens)) == ([40, 41], 5)
    assert scored(engine, row) == pytest.approx(row.logprobs, rel=1e-4)
    assert (short.tokens, short.finish, short.logprobs) == ([40], "length", row.logprobs[:1])


def test_a_completion_ends_at_an_end_token_or_a_stop_string_and_tokens_come_in_order(server, engine):
    request = CompletionRequest(PROMPT, 12, seed=1)
    (whole,) = engine.sample(None, [request]).result(PATIENCE)
    end = next(i for i, token in enumerate(whole.tokens) if i >= 3 and token not in whole.tokens[:i])
    other = replace(engine.base, end_ids=frozenset({whole.tokens[end]}))
    with engine_of(server, base=other) as ending:
        (row,) = ending.sample(None, [request]).result(PATIENCE)
    assert (row.tokens, row.finish) == (whole.tokens[: end + 1], "stop")
    texts = [engine.base.tokenizer.decode(whole.tokens[: i + 1]) for i in range(12)]
    stop = next(texts[i][-1] for i in range(4, 12) if texts[i] and "\N{REPLACEMENT CHARACTER}" not in texts[i][-1])
    expected = next(i for i in range(12) if stop in texts[i])
    seen = []
    (row,) = engine.sample(None, [replace(request, stops=(stop,))], lambda row: seen.append(list(row.tokens))).result()
    assert (row.tokens, row.finish) == (whole.tokens[: expected + 1], "stop")
    assert seen == [whole.tokens[: i + 1] for i in range(expected + 1)]


def test_each_checkpoint_is_sampled_as_it_is_while_later_ones_are_trained(policy, tmp_path):
    """On the server, sampling a model's older path overwrites the weights that it trains, and steps shrink others."""
    with serving(Server(policy, "tiny", most=4, leaks=True)) as server, engine_of(server, slots=2) as engine:
        folders = [filled(tmp_path / "0", engine.create_initial)]
        task, sequences, first = replace(task_of(1), rates=[0.05]), task_of(1).steps[0].tokens, []
        for i in range(3):
            folders.append(trained(engine, folders[-1], tmp_path / str(i + 1), task)[0])
            first.append(engine.logprobs(folders[-1], sequences))
            engine.sample(folders[0], [CompletionRequest(PROMPT, 2)]).result(PATIENCE)
        assert [engine.logprobs(folder, sequences) for folder in folders[1:]] == first
        for folder in [*folders, *folders]:
            (row,) = engine.sample(folder, [CompletionRequest(PROMPT, 4, seed=9)]).result(PATIENCE)
            assert scored(engine, row, folder) == pytest.approx(row.logprobs, rel=1e-4)
        engine.forget(folders[-1])


def test_a_lost_model_is_made_again_for_sampling(server, engine):
    request = CompletionRequest(PROMPT, 4, seed=2)
    (before,) = engine.sample(None, [request]).result(PATIENCE)
    server.lose()
    (after,) = engine.sample(None, [request]).result(PATIENCE)
    assert after.tokens == before.tokens


def test_cancelling_and_closing_end_completions_that_wait(server):
    with engine_of(server) as engine:
        engine.sample(None, [CompletionRequest(PROMPT, 1)]).result(PATIENCE)
        server.held.clear()
        try:
            first, second = (engine.sample(None, [CompletionRequest(PROMPT, 1)]) for _ in range(2))
            assert first.cancel()
            engine.close()
            assert second.cancelled()
        finally:
            server.held.set()


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (CompletionRequest(PROMPT, 1, top=3), errors.InputError, "logprobs of sampled tokens alone"),
        (CompletionRequest((5, 292), 1), errors.RenderingError, "not below 292"),
        (CompletionRequest((), 1), errors.RenderingError, "no tokens"),
        (CompletionRequest((5,) * 129, 1), errors.RenderingError, "129 tokens is longer than"),
    ],
)
def test_what_the_server_cannot_sample_is_refused_before_it_is_sent(engine, request_, error, message):
    with pytest.raises(error, match=message):
        engine.sample(None, [request_])


def test_checkpoints_of_elsewhere_do_not_fit(engine, local, tmp_path):
    foreign, own = filled(tmp_path / "l", local.create_initial), filled(tmp_path / "t", engine.create_initial)
    assert not engine.fits(foreign)
    assert engine.fits(own)
    with pytest.raises(errors.CheckpointError, match="damaged"):
        engine.sample(foreign, [CompletionRequest(PROMPT, 1)])
    content = place(own) | {"state": "tinker://elsewhere/weights/a"}
    gone = filled(tmp_path / "g", lambda draft: (draft / PLACE).write_text(json.dumps(content)))
    with pytest.raises(errors.CheckpointError, match="has no tinker://elsewhere/weights/a"):
        engine.sample(gone, [CompletionRequest(PROMPT, 1)]).result(PATIENCE)
    other = filled(tmp_path / "o", lambda draft: (draft / PLACE).write_text(json.dumps(content | {"rank": 3})))
    assert not engine.fits(other)
    (own / PLACE).write_text("{}")
    with pytest.raises(errors.CheckpointError, match="checksum"):
        engine.fits(own)


def test_a_checkpoint_is_verified_once_until_it_is_forgotten(engine, tmp_path):
    folder = filled(tmp_path / "0", engine.create_initial)
    sampled = engine.sample(folder, [CompletionRequest(PROMPT, 2, seed=1)]).result(PATIENCE)
    (folder / PLACE).write_text("{}")
    again = engine.sample(folder, [CompletionRequest(PROMPT, 2, seed=1)]).result(PATIENCE)
    assert [row.tokens for row in again] == [row.tokens for row in sampled]
    engine.forget(folder)
    with pytest.raises(errors.CheckpointError, match="checksum"):
        engine.sample(folder, [CompletionRequest(PROMPT, 2)])


def test_a_copy_of_a_checkpoint_outlives_the_original(engine, tmp_path):
    """So a model can be made from a checkpoint of another: the copy names the same state on the server."""
    initial = filled(tmp_path / "0", engine.create_initial)
    callbacks = Callbacks(lambda kind, data: None)
    first = filled(tmp_path / "1", lambda draft: engine.train(initial, draft, task_of(), callbacks))
    copy = filled(tmp_path / "copy", lambda draft: copy_files(first, draft))
    scored = engine.logprobs(first, [sequence(1)])
    assert engine.logprobs(copy, [sequence(1)]) == scored != engine.logprobs(initial, [sequence(1)])
    engine.forget(first)
    shutil.rmtree(first)
    assert engine.fits(copy)
    assert engine.logprobs(copy, [sequence(1)])[0] == pytest.approx(scored[0], abs=1e-5)
    second = filled(tmp_path / "2", lambda draft: engine.train(copy, draft, task_of(), callbacks))
    assert engine.logprobs(second, [sequence(1)]) != scored


def test_a_loss_that_is_no_number_ends_the_job_by_its_step(engine, tmp_path):
    source = "def loss(new, old, advantage, weight, history):\n    return (new * torch.tensor(float('inf'))).sum()"
    target = tmp_path / "1"
    target.mkdir()
    initial = filled(tmp_path / "0", engine.create_initial)
    with pytest.raises(errors.TrainingError, match="the loss of step 0 is not a finite number"):
        engine.train(initial, target, task_of(1, loss_source=source), Callbacks(lambda kind, data: None))
    assert list(target.iterdir()) == []


def test_a_base_is_described_without_its_weights(policy, tiny_policy):
    base, rank = describe(str(tiny_policy))
    names = ["name", "context", "vocabulary", "end_ids", "learning_rate", "batch_tokens", "bound_options"]
    loaded = base_of(policy)
    assert [getattr(base, name) for name in names] == [getattr(loaded, name) for name in names]
    assert rank == policy.lora.r
    assert base.fingerprint != loaded.fingerprint
