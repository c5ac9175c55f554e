"""`rolloutlab engine check`: the engine of this process passes, and each kind of broken engine fails by name."""

import json
import math
import shutil
import sys
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM

from rolloutlab.cli.commands import main
from rolloutlab.engines.check import GRADIENTS
from rolloutlab.engines.engine import partial_of
from rolloutlab.engines.local import LocalEngine
from rolloutlab.engines.sampling_check import divergence, limit, ranks
from rolloutlab.errors import ServiceError
from rolloutlab.objective.options import Options
from rolloutlab.policy.model import base_of

EVERY_GRADIENT = {f"gradient: {name}" for name in GRADIENTS}
# Advantages of turns, and the weights and the divisor of an aggregation, are in the steps that an engine is given.
IN_THE_STEPS = {"gradient: credit turn", "gradient: loss_aggregation token_mean", "gradient: loss_aggregation constant"}
OPTIONS = EVERY_GRADIENT - IN_THE_STEPS - {"gradient: default", "gradient: custom_loss"}


class OtherScores(LocalEngine):
    def logprobs(self, checkpoint, sequences):
        return [[each - 0.01 for each in some] for some in super().logprobs(checkpoint, sequences)]


class OtherSamples(LocalEngine):
    def sample(self, checkpoint, requests, on_token=None):
        future = Future()

        def shifted(inner):
            rows = inner.result()
            future.set_result([replace(row, logprobs=[each - 0.01 for each in row.logprobs]) for row in rows])

        inner = super().sample(checkpoint, requests, on_token)
        inner.add_done_callback(lambda done: future.cancel() if done.cancelled() else shifted(done))
        cancel = future.cancel
        future.cancel = lambda: inner.cancel() and cancel()
        return future


class NoOptions(LocalEngine):
    def train(self, source, target, task, callbacks):
        super().train(source, target, replace(task, options=Options()), callbacks)


class NoLossOfOnesOwn(LocalEngine):
    def train(self, source, target, task, callbacks):
        super().train(source, target, replace(task, loss_source=None), callbacks)


class TwiceTheWeight(LocalEngine):
    def train(self, source, target, task, callbacks):
        heavy = [[replace(each, weight=2 * each.weight) for each in step.sequences] for step in task.steps]
        steps = [replace(step, sequences=each) for step, each in zip(task.steps, heavy, strict=True)]
        super().train(source, target, replace(task, steps=steps), callbacks)


class TwiceTheRate(LocalEngine):
    def train(self, source, target, task, callbacks):
        super().train(source, target, replace(task, rates=[2 * rate for rate in task.rates]), callbacks)


class OtherStepsAfterAStop(LocalEngine):
    def train(self, source, target, task, callbacks):
        steps = task.steps[::-1] if partial_of(target).exists() else task.steps
        super().train(source, target, replace(task, steps=steps), callbacks)


class FewerStepsAfterAStop(LocalEngine):
    def train(self, source, target, task, callbacks):
        kept = slice(partial_of(target).exists(), None)
        super().train(source, target, replace(task, steps=task.steps[kept], rates=task.rates[kept]), callbacks)


class OneAdvantage(LocalEngine):
    def train(self, source, target, task, callbacks):
        steps = [
            replace(
                step,
                sequences=[
                    replace(s, advantage=float(torch.as_tensor(s.advantage).flatten()[0])) for s in step.sequences
                ],
            )
            for step in task.steps
        ]
        super().train(source, target, replace(task, steps=steps), callbacks)


class MeanOverTokens(LocalEngine):
    def train(self, source, target, task, callbacks):
        steps = [replace(step, divisor=float(step.trained)) for step in task.steps]
        super().train(source, target, replace(task, steps=steps), callbacks)


class FirstBatchAlone(LocalEngine):
    def train(self, source, target, task, callbacks):
        steps = [replace(step, sequences=step.sequences[:100]) for step in task.steps]
        super().train(source, target, replace(task, steps=steps), callbacks)


class ClipsAtOne(LocalEngine):
    def train(self, source, target, task, callbacks):
        options = replace(task.options, max_grad_norm=1.0)
        super().train(source, target, replace(task, options=options), callbacks)


class DecaysByATenth(LocalEngine):
    def train(self, source, target, task, callbacks):
        options = replace(task.options, weight_decay=0.1)
        super().train(source, target, replace(task, options=options), callbacks)


class CancelledBetweenSteps(LocalEngine):
    def train(self, source, target, task, callbacks):
        taken = [0]

        def report(kind, data):
            taken[0] += kind == "gradient_step"
            callbacks.report(kind, data)

        between = replace(callbacks, report=report, cancelled=lambda: bool(taken[0]) and callbacks.cancelled())
        super().train(source, target, task, between)


class NoSeed(LocalEngine):
    calls = count()

    def sample(self, checkpoint, requests, on_token=None):
        seed = next(self.calls)
        return super().sample(checkpoint, [replace(each, seed=seed) for each in requests], on_token)


class OneSeed(LocalEngine):
    def sample(self, checkpoint, requests, on_token=None):
        return super().sample(checkpoint, [replace(each, seed=0) for each in requests], on_token)


class OnlyTheBase(LocalEngine):
    def sample(self, checkpoint, requests, on_token=None):
        return super().sample(None, requests, on_token)


class Sampled(LocalEngine):
    changes: dict

    def sample(self, checkpoint, requests, on_token=None):
        return super().sample(checkpoint, [replace(each, **self.changes) for each in requests], on_token)


class Colder(Sampled):
    changes = {"temperature": 0.7}


class Nucleus(Sampled):
    changes = {"top_p": 0.8}


class NoStops(Sampled):
    changes = {"stops": ()}


class NoEnds(LocalEngine):
    def __init__(self, policy, **options):
        super().__init__(replace(policy, end_ids=frozenset()), **options)
        self.base = base_of(policy)


class OtherFinish(LocalEngine):
    def sample(self, checkpoint, requests, on_token=None):
        future = super().sample(checkpoint, requests, on_token)
        future.add_done_callback(
            lambda done: done.cancelled() or [setattr(r, "finish", "length") for r in done.result()]
        )
        return future


class BaseAsReference(LocalEngine):
    def train(self, source, target, task, callbacks):
        super().train(source, target, replace(task, reference=None), callbacks)


class NeverCancelled(LocalEngine):
    def sample(self, checkpoint, requests, on_token=None):
        future = Future()
        future.set_running_or_notify_cancel()
        super().sample(checkpoint, requests, on_token).add_done_callback(lambda done: future.set_result(done.result()))
        return future

    def train(self, source, target, task, callbacks):
        super().train(source, target, task, replace(callbacks, cancelled=lambda: False))


class NoNumbers(LocalEngine):
    def logprobs(self, checkpoint, sequences):
        return [[float("nan")] * sum(each.trained) for each in sequences]


class NoSampling(LocalEngine):
    def sample(self, checkpoint, requests, on_token=None):
        raise ServiceError("no sampler is left")


class NoTraining(LocalEngine):
    def train(self, source, target, task, callbacks):
        raise ServiceError("no trainer is left", hint="start one")


class FewerOptions(NoOptions):
    unsupported = {name.partition(" ")[0]: "it has no such loss" for name in [*GRADIENTS, "max_grad_norm"]}


class NoOptionsNorSeeds(NoOptions, NoSeed):
    pass


class Elsewhere(LocalEngine):
    def trial(self, checkpoint):
        raise NotImplementedError


class ElsewhereWithoutOptions(Elsewhere, NoOptions):
    pass


class BaseAsReferenceElsewhere(Elsewhere, BaseAsReference):
    pass


class OtherLossRateAndRows(NoLossOfOnesOwn, TwiceTheRate, OtherStepsAfterAStop):
    pass


class NeverStopsNorIsCancelled(NoStops, NeverCancelled):
    pass


class FewerRowsAndOneSeed(FewerStepsAfterAStop, OneSeed):
    pass


@pytest.fixture
def check(tiny_policy, capsys, monkeypatch):
    """The exit status of the command, and its report as JSON, for an engine in the place of this process's."""

    def run(engine=LocalEngine, *options, policy=tiny_policy):
        monkeypatch.setattr("rolloutlab.engines.open.LocalEngine", engine)
        status = main(["engine", "check", "--policy", str(policy), "--json", *options])
        return status, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def few(monkeypatch):
    """Three gradients instead of all: each takes a fifth of a second, and the lines are measured independently."""
    some = {name: GRADIENTS[name] for name in ("default", "ppo", "custom_loss")}
    monkeypatch.setattr("rolloutlab.engines.check.GRADIENTS", some)


def failed(report) -> set[str]:
    return {line["name"] for line in report["lines"] if line["result"] == "fail"}


def test_the_engine_of_this_process_passes(check):
    status, report = check()
    assert failed(report) == set()
    assert (status, report["passed"], report["engine"], report["status"]) == (0, True, "local", {"device": "cpu"})
    results = {line["name"]: line for line in report["lines"]}
    assert results.keys() >= EVERY_GRADIENT
    assert results["resume"]["gap"] == results["seed: repeated"]["gap"] == 0.0
    assert "went on" in results["resume"]["note"]
    assert "completions/s" in results["throughput: sampling"]["note"]


@pytest.mark.parametrize(
    ("engine", "lines"),
    [
        (OtherSamples, {"logprobs: scored as sampled", "logprobs: after training", "first ratio"}),
        (
            OtherLossRateAndRows,
            {"gradient: custom_loss", "optimizer", "clip and decay", "resume"},
        ),
        (NeverStopsNorIsCancelled, {"stop", "cancel: sampling", "cancel: training", "cancel: inside a step"}),
    ],
)
@pytest.mark.long
def test_a_broken_engine_fails_by_name(check, few, engine, lines):
    status, report = check(engine)
    assert failed(report) == lines
    assert (status, report["passed"]) == (1, False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "lines"),
    [
        (OtherScores, {"logprobs: scored as sampled", "logprobs: as in this process", "logprobs: after training"}),
        (OnlyTheBase, {"logprobs: after training", "first ratio"}),
        (FewerRowsAndOneSeed, {"resume", "seed: another"}),
    ],
)
def test_of_sampling_and_resuming_a_broken_engine_fails_its_own_lines(check, engine, lines):
    _, report = check(engine, "--only=logprobs:", "--only=first", "--only=resume", "--only=seed", "--only=stop")
    assert failed(report) == lines


@pytest.mark.long
def test_an_engine_without_options_nor_seeds_fails_each_of_them_by_name(check):
    status, report = check(NoOptionsNorSeeds)
    assert failed(report) == OPTIONS | {"clip and decay", "seed: repeated"}
    assert (status, report["passed"]) == (1, False)


def test_an_engine_that_gives_all_turns_the_advantage_of_the_first_fails_their_gradient_by_name(check):
    _, report = check(OneAdvantage, "--only=credit", "--only=default")
    assert failed(report) == {"gradient: credit turn"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "only", "lines"),
    [
        (
            MeanOverTokens,
            "gradient: loss_agg",
            {"gradient: loss_aggregation token_mean", "gradient: loss_aggregation constant"},
        ),
        (FirstBatchAlone, "accumulation", {"accumulation"}),
        (ClipsAtOne, "decay", {"clip and decay"}),
        (DecaysByATenth, "decay", {"clip and decay"}),
        (CancelledBetweenSteps, "cancel: ", {"cancel: inside a step"}),
    ],
)
def test_an_engine_that_takes_other_steps_fails_by_name(check, engine, only, lines):
    _, report = check(engine, f"--only={only}")
    assert failed(report) == lines


@pytest.mark.long
@pytest.mark.parametrize("engine", [Colder, Nucleus])
def test_tokens_of_another_distribution_fail_though_their_logprobs_are_right(check, engine):
    status, report = check(engine, "--only=logprobs", "--only=ratio", "--only=distribution", policy="practice")
    assert (status, failed(report)) == (1, {"sampled distribution"})


def test_the_practice_policy_draws_tokens_of_the_distribution_that_it_is_scored_by(check):
    status, report = check(LocalEngine, "--only=distribution", policy="practice")
    (line,) = report["lines"]
    assert status == 0
    assert line["gap"] < line["limit"] < 0.02


def test_an_engine_that_draws_as_it_scores_passes_in_all_but_one_of_10000_cases():
    random = Random(1)
    alarms = sum(divergence([random.random() for _ in range(64)]) > limit(64) for _ in range(20_000))
    assert alarms <= 1
    # ranks are uniform whatever the distribution, and whichever of its tokens are known
    weights = [random.expovariate(1.0) ** 3 for _ in range(80)]
    logprobs = {token: math.log(weights[token] / sum(weights)) for token in range(0, 80, 2)}
    draws = random.choices(range(80), weights, k=50_000)
    assert divergence(ranks(draws, logprobs, random)) < limit(50_000)
    assert divergence(ranks(draws, {token: 1.2 * each for token, each in logprobs.items()}, random)) > limit(1000)


def test_another_seed_of_a_policy_that_nearly_always_says_the_same_is_no_failure(check, tiny_policy, tmp_path):
    peaked = tmp_path / "peaked"
    shutil.copytree(tiny_policy, peaked)
    model = AutoModelForCausalLM.from_pretrained(peaked)
    model.lm_head.weight.data *= 1e6
    model.save_pretrained(peaked)
    status, report = check(LocalEngine, "--only=seed", "--only=distribution", policy=peaked)
    results = {line["name"]: line["result"] for line in report["lines"]}
    assert results == {"sampled distribution": "pass", "seed: repeated": "pass", "seed: another": "measured"}
    assert status == 0


@pytest.mark.parametrize(("engine", "why"), [(NoEnds, "after an end token"), (OtherFinish, "is not finished by it")])
def test_completions_that_do_not_end_where_they_should_fail(check, engine, why):
    _, report = check(engine, "--only=stop", policy="practice")
    (line,) = report["lines"]
    assert line["result"] == "fail"
    assert why in line["note"]
    assert line["advice"].startswith("stop: ")


def test_each_way_that_seeds_are_wrong_has_its_own_advice(check):
    for engine, name in ((NoSeed, "seed: repeated"), (OneSeed, "seed: another")):
        _, report = check(engine, "--only=seed")
        assert failed(report) == {name}
        assert [line["advice"].startswith(f"{name}: ") for line in report["lines"] if line["advice"]] == [True]


@pytest.mark.long
def test_a_reference_that_is_not_the_one_asked_for_fails(check):
    for options in ((), ("--tolerance=0.05",)):
        assert failed(check(BaseAsReference, "--only=gradient: kl", *options, policy="practice")[1]) == {
            "gradient: kl_ref_step"
        }
    assert failed(check(BaseAsReferenceElsewhere, "--only=gradient: kl")[1]) == {"gradient: kl_ref_step"}


@pytest.mark.long
def test_a_wrong_scale_of_the_loss_fails_every_gradient(check):
    _, report = check(TwiceTheWeight, "--only=gradient")
    assert failed(report) >= EVERY_GRADIENT - {"gradient: custom_loss"}


@pytest.mark.parametrize(
    ("engine", "lines", "error"),
    [
        (
            NoSampling,
            {"throughput: sampling", "seed: another", "stop", "sampled distribution"},
            "ServiceError: no sampler is left",
        ),
        (NoTraining, {"throughput: training", "resume", "optimizer"}, "ServiceError: no trainer is left -> start one"),
    ],
)
def test_an_error_of_the_engine_fails_its_lines_and_the_others_are_measured(check, few, engine, lines, error):
    status, report = check(engine)
    assert status == 1
    assert failed(report) >= lines
    assert all(line["note"] == error for line in report["lines"] if line["name"] in lines)
    assert failed(report) != {line["name"] for line in report["lines"]} or engine is NoSampling


def test_lines_can_be_chosen_by_what_their_names_have(check):
    _, report = check(LocalEngine, "--only=ratio", "--only=cancel")
    assert [line["name"] for line in report["lines"]] == ["first ratio", "gradient: mask_prob_ratio"] + [
        f"cancel: {what}" for what in ("sampling", "training", "inside a step")
    ]


@pytest.mark.long
def test_a_gap_that_is_no_number_fails(check, few):
    status, report = check(NoNumbers)
    assert status == 1
    assert failed(report) >= {"logprobs: scored as sampled", "logprobs: as in this process", "resume"}
    assert {line["gap"] for line in report["lines"] if line["name"].startswith("logprobs")} == {None}


@pytest.mark.long
def test_an_option_that_the_engine_refuses_by_name_does_not_fail(check):
    status, report = check(FewerOptions)
    refused = {line["name"] for line in report["lines"] if line["result"] == "refused"}
    assert (status, refused >= OPTIONS) == (0, True)


@pytest.mark.long
def test_gradients_of_an_engine_that_has_its_tensors_elsewhere_are_compared_by_its_own_norms(check, few):
    assert check(Elsewhere, "--only=gradient")[0] == 0
    assert failed(check(ElsewhereWithoutOptions, "--only=gradient")[1]) == {"gradient: ppo"}


@pytest.mark.long
def test_the_report_is_a_table_with_progress_beside_it(tiny_policy, capsys, few):
    assert main(["engine", "check", "--policy", str(tiny_policy), "--tolerance", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(
        "engine local, policy tiny, device cpu\n\nresult        gap  check (a gap of up to 1.0e+00"
    )
    assert printed.out.endswith("\n\nnothing failed\n")
    assert max(map(len, printed.out.splitlines())) <= 80
    assert "1 of 20: logprobs: scored as sampled\n" in printed.err


def test_a_failure_is_explained_once_and_progress_takes_one_line_of_a_terminal(tiny_policy, few, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("rolloutlab.engines.open.LocalEngine", NoTraining)
    assert main(["engine", "check", "--policy", str(tiny_policy)]) == 1
    out, err = capsys.readouterr()
    assert "FAIL               optimizer (ServiceError: no trainer is left -> start one)" in out
    assert out.count("-> gradient: the engine computes another loss: leave this option out on it\n") == 1
    assert max(map(len, out.splitlines())) <= 80
    assert "\r\x1b[K1 of 20: logprobs: scored as sampled" in err
    assert err.endswith("\r\x1b[K")
    assert "\n" not in err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--tolerance=0"], "--tolerance must be a number > 0, not 0.0"),
        (["--tolerance=nan"], "--tolerance must be a number > 0, not nan"),
        (["--only=speed", "--only=colour"], "no line of the check has 'speed' or 'colour'"),
        (["--policy=/no/such/folder"], "the policy '/no/such/folder' could not be loaded"),
        (["--engine=cloud"], "--engine: must be 'local', 'ray' or 'tinker', not 'cloud'"),
        (["--engine-url=http://127.0.0.1:1"], "the engine local computes in this process, at no URL"),
    ],
)
def test_what_cannot_be_checked_is_an_error_in_words(capsys, options, problem):
    assert main(["engine", "check", *options]) == 2
    assert problem in capsys.readouterr().err
