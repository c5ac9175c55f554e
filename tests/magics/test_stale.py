"""Completions of older checkpoints: what the report and the curves say of them, and that the advice is true."""

import asyncio
import json
import re

import pytest

from rolloutlab.api.inference import score_histories
from rolloutlab.errors import NotFoundError, RefusedError, ServiceError, UnreachableError
from rolloutlab.training import lag

CHAT = "%%chat capitals -n 6 --over countries --max-tokens 12 --seed 1\nuser: Capital of {{country}}?"
REWARD = "%%reward capitals\nreturn float(sum(map(ord, answer)) % 7)"
REMEDY = "sample capitals anew"
FRESH = {"kl": pytest.approx(0, abs=1e-4), "old_new_correlation": pytest.approx(1, abs=1e-3)}


@pytest.fixture
def service(start, practice_policy):
    """A policy that has something to lose, untrained before each test: a random one hardly moves."""
    return start(practice_policy)


def sample(notebook, *options: str) -> None:
    notebook.run(CHAT.replace(" --over", f" {' '.join(options)} --over"))
    notebook.run(REWARD)


def train(notebook, learning_rate: float = 0.02, options: str = ""):
    return notebook.run(f"%%train capitals\nlearning_rate: {learning_rate}\n{options}")


def first_step(job):
    return job.metrics().iloc[0]


def odd(job) -> dict[str, str]:
    return job.state()["head"]["odd"]


def test_the_report_says_how_far_behind_its_completions_are(notebook, capsys):
    sample(notebook)
    train(notebook)
    train(notebook)
    capsys.readouterr()
    message = f"12 trajectories sampled at step 0, train from step 2: lag 2 -> {REMEDY}"
    assert message in repr(notebook.run("%%train capitals --dry-run")).splitlines()
    assert message in repr(notebook.run("%%train capitals --form")).splitlines()
    train(notebook)
    assert message in capsys.readouterr().out.splitlines()


def test_fresh_completions_have_no_lag(notebook, capsys):
    sample(notebook)
    train(notebook)
    sample(notebook)
    capsys.readouterr()
    assert dict(first_step(train(notebook))[list(FRESH)]) == FRESH
    assert "lag" not in capsys.readouterr().out


def test_a_conversation_that_went_on_is_as_old_as_its_oldest_turn(notebook):
    sample(notebook)
    train(notebook)
    notebook.run("%%chat capitals --continue --max-tokens 4\nuser: why?")
    notebook.run(REWARD)
    lines = repr(notebook.run("%%train capitals --dry-run")).splitlines()
    assert f"12 trajectories sampled at step 0, train from step 1: lag 1 -> {REMEDY}" in lines
    assert not any("ratios of earlier turns" in line or "precalculate" in line for line in lines)


def test_recomputing_the_logprobs_of_older_completions_is_advised_against(notebook):
    sample(notebook)
    train(notebook)
    lines = repr(notebook.run("%%train capitals --dry-run\nprecalculate_logprobs: true")).splitlines()
    assert (
        "precalculate_logprobs removes the correction for this lag: every ratio begins at 1 "
        "-> precalculate_logprobs: false" in lines
    )
    corrected = "%%train capitals --dry-run\nprecalculate_logprobs: true\ntruncated_importance_sampling: 2.0"
    lines = repr(notebook.run(corrected)).splitlines()
    assert any("lag 1" in line for line in lines)
    assert not any(line.startswith("precalculate_logprobs removes") for line in lines)


def test_the_distance_and_the_correlation_tell_old_completions_and_neither_advises_to_recompute(notebook):
    sample(notebook)
    assert odd(train(notebook)) == {}
    job = train(notebook)
    assert first_step(job)["kl"] > 0.05
    assert {"KL to the sampler", "agreement"} <= odd(job).keys()
    assert "precalculate" not in json.dumps(job.state()["head"]) + repr(job) + job._repr_html_()
    assert [name for name in ("kl", "old_new_correlation", "ratio_mean") if name in repr(job)] == sorted(
        ("kl", "old_new_correlation", "ratio_mean"), key=repr(job).index
    )


def test_at_another_temperature_recomputed_logprobs_change_nothing_and_are_not_advised(notebook, capsys):
    sample(notebook, "--temperature 0.5")
    capsys.readouterr()
    recorded = first_step(train(notebook, 1e-9))
    warning = "12 trajectories sampled at temperature 0.5: importance ratios assume 1, kl_base leaves them out"
    assert f"{warning} -> sample at 1\n" in capsys.readouterr().out
    recomputed = first_step(train(notebook, 1e-9, "precalculate_logprobs: true"))
    names = ["loss", "kl", "ratio_mean", "ratio_max", "clipped"]
    assert list(recomputed[names]) == pytest.approx(list(recorded[names]), abs=1e-3)


def test_an_earlier_turn_keeps_the_logprobs_of_the_checkpoint_that_said_it(notebook):
    """What the service says of that turn under each checkpoint: the recorded logprobs are those of the older one."""
    sample(notebook)
    train(notebook)
    continued = notebook.run("%%chat capitals --continue --max-tokens 4 --seed 2\nuser: why?")
    result, session = continued.trajectories[0], notebook.lab
    assert result.steps == [0, 1]
    recorded = [entry.logprob for entry in result.choices[0].sampled_tokens()]
    response = []
    for step in result.steps:
        asked = score_histories(
            session._connector.http, session.settings.service, f"lab/practice@{step}", result.histories()
        )
        content = session._connector.http.run(asked).data[0].turns[0].logprobs.content
        response.append([entry.logprob for entry in content])
    assert response[0] == pytest.approx(recorded, abs=1e-4)
    assert response[1] != pytest.approx(recorded, abs=1e-3)


def prediction(text: str) -> tuple[float, float, str] | None:
    """The mean and the largest predicted ratio, and what they are from."""
    pattern = r"^lag \d+: importance ratio (\S+) on average, (\S+) at most, predicted from (.+)$"
    found = re.search(pattern, text, re.MULTILINE)
    return found and (float(found[1]), float(found[2]), found[3])


LEVELS = ["token", "sequence", "average", "geometric_average"]


def test_the_predicted_ratio_is_what_the_first_gradient_step_measures(notebook, capsys, monkeypatch):
    monkeypatch.setattr(lag, "SAMPLE", 100)
    sample(notebook)
    train(notebook)
    for level in LEVELS:
        predicts(notebook, capsys, level)


def predicts(notebook, capsys, level):
    check = notebook.run(f"%%train capitals --dry-run\nimportance_sampling_level: {level}")
    capsys.readouterr()
    job = train(notebook, options=f"importance_sampling_level: {level}")
    predicted = prediction(capsys.readouterr().out)
    assert predicted == prediction(repr(check))
    [report] = [event.data for event in job.events() if event.type == "preflight"]
    trains = report["trainable_trajectories"]
    assert predicted[2] == f"{trains} of {trains} trajectories"
    assert len(job.metrics()) == 1  # one row: the same tokens
    measured = first_step(job)
    assert measured["ratio_max"] != pytest.approx(1, abs=0.02)
    assert predicted[:2] == pytest.approx((measured["ratio_mean"], measured["ratio_max"]), rel=6e-3)  # three digits


def test_a_prediction_is_from_some_trajectories(notebook, monkeypatch):
    monkeypatch.setattr(lag, "SAMPLE", 4)
    sample(notebook)
    train(notebook)
    *_, sampled = prediction(repr(notebook.run("%%train capitals --dry-run")))
    assert re.fullmatch(r"4 of ([5-9]|1\d) trajectories", sampled)


def test_nothing_is_predicted_of_recomputed_logprobs_or_fresh_completions(notebook):
    sample(notebook)
    assert prediction(repr(notebook.run("%%train capitals --dry-run"))) is None
    train(notebook)
    assert prediction(repr(notebook.run("%%train capitals --dry-run"))) is not None
    assert prediction(repr(notebook.run("%%train capitals --dry-run\nprecalculate_logprobs: true"))) is None


def test_nothing_is_predicted_where_the_service_gives_no_logprobs(notebook, monkeypatch):
    sample(notebook)
    train(notebook)
    for error in (ServiceError, RefusedError, UnreachableError, NotFoundError):

        async def refuse(*_, error=error, **__):
            raise error("no logprobs here")

        monkeypatch.setattr(lag, "score_histories", refuse)
        lines = repr(notebook.run("%%train capitals --dry-run")).splitlines()
        assert f"12 trajectories sampled at step 0, train from step 1: lag 1 -> {REMEDY}" in lines
        assert prediction("\n".join(lines)) is None


def test_a_service_that_never_answers_delays_a_report_for_a_limited_time(notebook, monkeypatch):
    sample(notebook)
    train(notebook)
    monkeypatch.setattr(lag, "score_histories", lambda *_, **__: asyncio.Event().wait())
    monkeypatch.setattr(lag, "SECONDS", 0.05)
    assert prediction(repr(notebook.run("%%train capitals --dry-run"))) is None


def test_a_prediction_that_takes_too_long_is_from_what_was_scored_until_then(notebook, monkeypatch):
    sample(notebook)
    train(notebook)
    calls = []

    async def slow(*arguments, **options):
        calls.append(arguments)
        if len(calls) > 2:
            raise TimeoutError  # as `asyncio.timeout` does
        return await score_histories(*arguments, **options)

    monkeypatch.setattr(lag, "score_histories", slow)
    *_, sampled = prediction(repr(notebook.run("%%train capitals --dry-run")))
    assert sampled.startswith("2 of ")
