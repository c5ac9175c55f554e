"""`engine check` of a Tinker server: an honest one passes, and one whose steps are others fails in `optimizer`."""

import math
from array import array
from dataclasses import replace

import pytest
import torch

pytest.importorskip("tinker")

from rolloutlab.engines.check import Conformance
from rolloutlab.engines.step_check import gradient_gaps
from rolloutlab.errors import ServiceError
from rolloutlab.policy.token_sequence import TokenSequence
from tests.integrations.tinker.tinker_server import Server, engine_of, serving

SAMPLING = ["logprobs: after", "first ratio", "distribution", "kl_ref_step", "seed", "stop"]


class AdamOf(Server):
    """A server that takes steps with other settings of AdamW than it is sent."""

    def settings(self, adam):
        raise NotImplementedError

    def _optim_step(self, body):
        return super()._optim_step(body.model_copy(update={"adam_params": self.settings(body.adam_params)}))


class ThreeTimesTheRate(AdamOf):
    def settings(self, adam):
        return adam.model_copy(update={"learning_rate": 3 * adam.learning_rate})


class NoRate(AdamOf):
    def settings(self, adam):
        return adam.model_copy(update={"learning_rate": 0.0})


class OtherMoments(AdamOf):
    def settings(self, adam):
        return adam.model_copy(update={"beta2": 0.5, "weight_decay": 0.0})


class ClipsElsewhere(AdamOf):
    def settings(self, adam):
        return adam.model_copy(update={"grad_clip_norm": 1.5 * adam.grad_clip_norm})


class DropsTheLast(Server):
    def _forward_backward(self, body):
        data = list(body.forward_backward_input.data)
        some = body.forward_backward_input.model_copy(update={"data": data[: max(1, len(data) - 1)]})
        return super()._forward_backward(body.model_copy(update={"forward_backward_input": some}))


class Uphill(Server):
    def _optim_step(self, body):
        model = self.models[body.model_id]
        model.gradients = {name: -each for name, each in model.gradients.items()}
        return super()._optim_step(body)


@pytest.fixture
def optimizer(tmp_path, monkeypatch):
    """A line of the check for a server; other capabilities than the engine has measured can be given."""
    for name in ("_COMPLETIONS", "_TOKENS"):  # the checkpoint that the steps begin with is trained on what is sampled
        monkeypatch.setattr(f"rolloutlab.engines.check.{name}", 4)

    def check(server, name="optimizer", **capabilities):
        with serving(server), engine_of(server) as engine:
            engine._capabilities = replace(engine._capabilities, **capabilities)
            engine.base = replace(engine.base, batch_tokens=64)  # nothing is batched by it: the server takes examples
            (line,) = Conformance(engine, None, tmp_path, 1e-4).run(only=[name])
        return line

    return check


@pytest.mark.parametrize("means", [True, False])
def test_an_honest_server_passes(policy, optimizer, means):
    line = optimizer(Server(policy, "tiny", means=means, clips=means, leaks=means))
    assert (line.result, line.limit) == ("pass", 0.03)
    assert line.gap < 0.02
    assert "up to 0.03 passes" in line.note
    assert "no norm" not in line.note


@pytest.mark.parametrize(
    ("kind", "options", "result"),
    [
        (Server, {}, "pass"),
        (ClipsElsewhere, {}, "fail"),
        (Server, {"clips": False}, "refused"),
        (Server, {"means": False, "reports_norm": False}, "measured"),
    ],
)
def test_clipping_is_seen_by_the_size_of_a_step(policy, optimizer, kind, options, result):
    assert optimizer(kind(policy, "tiny", **options), "clip and decay").result == result


@pytest.mark.long
def test_a_step_of_more_examples_than_a_request_has_is_that_of_few(policy, optimizer, monkeypatch):
    monkeypatch.setattr("rolloutlab.engines.check._REQUEST", 40)
    monkeypatch.setattr("rolloutlab.integrations.tinker.client._EXAMPLES", 32)
    for requests in ("all", "each"):
        assert optimizer(Server(policy, "tiny", requests=requests), "accumulation").result == "pass"
        line = optimizer(Server(policy, "tiny", requests=requests), "accumulation", per_request=requests == "all")
        assert line.result == "fail"
    assert optimizer(Server(policy, "tiny", requests="last"), "accumulation").result == "fail"


@pytest.mark.long
def test_an_honest_server_samples_as_it_is_asked(policy, tmp_path, monkeypatch):
    monkeypatch.setattr("rolloutlab.engines.sampling_check._KNOWN", 24)
    monkeypatch.setattr("rolloutlab.engines.sampling_check._DRAWS", 32)
    server = Server(policy, "tiny", leaks=True)
    with serving(server), engine_of(server) as engine:
        lines = list(Conformance(engine, None, tmp_path, 1e-4).run(only=SAMPLING))
    assert len(lines) == 7
    assert [line for line in lines if line.result != "pass"] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("broken", "means", "why"),
    [
        (ThreeTimesTheRate, True, "size"),
        (NoRate, True, "no step changes a logprob"),
        (OtherMoments, True, "momentum"),
        (Uphill, True, ""),
    ],
)
def test_a_server_whose_steps_are_others_fails(policy, optimizer, broken, means, why):
    line = optimizer(broken(policy, "tiny", means=means))
    assert line.result == "fail"
    assert line.note.startswith(why)
    assert line.advice.startswith("optimizer: ")


def test_a_server_that_drops_a_sequence_is_refused_at_the_start(policy):
    server = DropsTheLast(policy, "tiny", means=False)
    with serving(server), pytest.raises(ServiceError, match="neither means nor sums"), engine_of(server):
        pass


class LeavesOneOut:
    """A model of one weight, the logprob of each token, whose steps leave out the sequence that begins with 1."""

    def __init__(self):
        self.weight = -2.0

    def logprobs(self, sequences):
        return [torch.full((each.trainable,), self.weight, dtype=torch.float64) for each in sequences]

    def step(self, sloped, rate, eps=None, max_norm=0.0):
        gradient = sum(float(slope_S.sum()) for tokens, slope_S in sloped if tokens.ids[0] != 1)
        self.weight -= rate / (eps or 1.0) * gradient
        return abs(gradient)


def test_a_sequence_that_an_engine_leaves_out_is_a_gap_and_no_error():
    sequences = [TokenSequence(array("i", [i, 5]), bytearray([0, 1]), array("f", [0, 0])) for i in range(2)]
    gaps = gradient_gaps(LeavesOneOut(), [(each, torch.tensor([0.5], dtype=torch.float64)) for each in sequences])
    assert gaps["size"] == math.inf


@pytest.mark.long
@pytest.mark.parametrize("wrong", ["per_token", "per_row"])
def test_means_that_are_taken_for_sums_fail(policy, optimizer, wrong):
    assert optimizer(Server(policy, "tiny"), **{wrong: False}).result == "fail"


@pytest.mark.long
def test_without_a_norm_the_size_is_not_compared_and_the_rest_is(policy, optimizer):
    line = optimizer(Server(policy, "tiny", means=False, reports_norm=False))
    assert line.result == "pass"
    assert line.note.endswith("no norm is reported: the size of a step is not compared")


def test_without_a_norm_a_server_that_goes_uphill_fails(policy, optimizer):
    assert optimizer(Uphill(policy, "tiny", means=False, reports_norm=False)).result == "fail"
