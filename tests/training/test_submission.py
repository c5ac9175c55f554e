"""From scored collections and options to a training job, with everything checked before it is sent."""

import math
import uuid
from itertools import chain
from typing import Any

import pytest

from rolloutlab.api.wire.chat import Choice
from rolloutlab.api.wire.training import CreateTrainingJob
from rolloutlab.errors import InputError, NothingTrainsError
from rolloutlab.objective.advantages import token_weights
from rolloutlab.objective.option_docs import OPTIONS
from rolloutlab.objective.options import settle
from rolloutlab.store.lab import Lab
from rolloutlab.training.models import Start
from rolloutlab.training.submission import check_config, gather, prepare
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.members import members_of
from tests.labs import lab_with

OUT_OF_RANGE = {
    "advantage_balance": -1.5,
    "epsilon": -0.1,
    "epsilon_high": -0.1,
    "importance_sampling_level": "word",
    "vendor_k2_tau": "much",
    "kimi_k2_tau": "much",
    "learning_rate": -1e-3,
    "mask_prob_ratio": "maybe",
    "max_negative_advantage_importance_sampling_weight": -1.0,
    "ppo": 1,
    "precalculate_logprobs": "no",
    "scale_rewards": 0.5,
    "kl_penalty_coef": -0.1,
    "kl_ref_step": 1.5,
    "truncated_importance_sampling": "much",
    "credit": "token",
    "groups_per_step": 2.5,
    "epochs": 0,
    "loss_aggregation": "sum",
    "loss_scale_factor": 0,
    "mask_truncated": 1,
    "max_grad_norm": -1.0,
    "weight_decay": -0.1,
}

MODEL = "lab/practice"


def choice(tokens: int = 2, **overrides: Any) -> Choice:
    content = [{"token": "a", "logprob": -0.5, "top_logprobs": []}] * tokens
    record = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "Paris"}}
    return Choice.model_validate(record | {"logprobs": {"content": content}} | overrides)


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


@pytest.fixture
def collect(lab):
    """Makes a collection out of the rewards of each group, None for an unscored trajectory."""

    def make(
        *groups: list[float | None], name: str = "capitals", tokens: int = 2, step: int = 0, **sampling: Any
    ) -> Collection:
        answers = [[choice(tokens)] * len(rewards) for rewards in groups]
        options = {"name": name, "rewards": chain(*groups), "model": MODEL, "step": step, "sampling": sampling}
        return Collection(lab, lab_with(lab, *answers, **options))

    return make


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("learning_rat", "learning_rate"),
        ("lerning_rate", "learning_rate"),
        ("epsilon_hi", "epsilon_high"),
        ("scale_reward", "scale_rewards"),
        ("k2_tau", "vendor_k2_tau"),
    ],
)
def test_an_unknown_option_names_the_closest(name, closest):
    with pytest.raises(InputError, match=f"unknown option '{name}'") as refused:
        check_config({name: 1})
    assert refused.value.hint.startswith(f"{closest}: ")


def test_an_option_like_no_other_names_them_all():
    with pytest.raises(InputError) as refused:
        check_config({"zeal": 1})
    assert all(name in refused.value.hint for name in OPTIONS)


@pytest.mark.parametrize(("name", "bad"), OUT_OF_RANGE.items())
def test_a_value_out_of_range_is_refused_with_its_name_and_itself(name, bad):
    with pytest.raises(InputError) as refused:
        check_config({"epsilon": 0.2, "learning_rate": 1e-3, name: bad})
    assert refused.value.message.startswith(f"{name}: ")
    assert repr(bad) in refused.value.message
    assert refused.value.hint.startswith(f"{name}: ")


def test_everything_that_is_wrong_with_the_options_is_said_at_once():
    with pytest.raises(InputError) as refused:
        check_config({"advantage_balance": 3, "learning_rate": 2e-3, "epsilon": -0.1, "lerning_rate": 1, "ppo": 1})
    assert refused.value.message == (
        "advantage_balance: 3 is outside -1 to 1; epsilon: -0.1 is below 0; unknown option 'lerning_rate'; "
        "ppo: 1 is neither true nor false"
    )
    assert refused.value.hint == "advantage_balance: 0.5; epsilon: 0.2; learning_rate: 2e-3; ppo: true"


@pytest.mark.parametrize("name", ["epsilon", "vendor_k2_tau", "kimi_k2_tau", "learning_rate"])
def test_the_hint_for_a_number_is_a_number(name):
    with pytest.raises(InputError) as refused:
        check_config({name: "much"})
    assert math.isfinite(float(refused.value.hint.partition(": ")[2]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, True, "1e-3"])
def test_a_learning_rate_is_a_finite_number(bad):
    with pytest.raises(InputError, match="learning_rate"):
        check_config({"learning_rate": bad})


def test_every_option_of_the_specification_is_one():
    assert set(OPTIONS) | {"kimi_k2_tau"} == set(OUT_OF_RANGE)


def test_truncated_importance_sampling_needs_the_logprobs_to_be_computed_again():
    with pytest.raises(InputError, match="truncated_importance_sampling: only with precalculate_logprobs") as refused:
        check_config({"truncated_importance_sampling": 2.0})
    assert refused.value.hint == "precalculate_logprobs: true"
    assert check_config({"truncated_importance_sampling": 2.0, "precalculate_logprobs": True})


def test_the_report_names_who_honours_what_the_specification_lacks(collect):
    collection, given = collect([1.0, 0.0]), {"kl_penalty_coef": 0.1, "kl_ref_step": 2}
    [line] = [line for line in gather([collection], given, MODEL).report() if "kl_penalty_coef" in line]
    assert line == (
        "kl_penalty_coef, kl_ref_step: not in the specification, so this service may ignore it "
        "-> %connect embedded honours it"
    )
    embedded = gather([collection], {}, MODEL, text_only=True)
    assert not any("specification" in line for line in embedded.report())
    [line] = [line for line in embedded.with_options(given).report() if "kl_penalty_coef" in line]
    assert "honoured by the embedded service" in line


def test_the_options_are_sent_as_given_and_nothing_else_is():
    given = {"learning_rate": 2e-3, "ppo": True, "importance_sampling_level": "sequence", "advantage_balance": -1}
    assert check_config(given).to_wire() == given
    assert check_config({}).to_wire() == {}


def test_the_k2_tau_of_real_services_is_the_one_of_the_specification():
    assert check_config({"kimi_k2_tau": 0.5}).vendor_k2_tau == 0.5


def test_what_has_no_reward_is_left_out_and_groups_stay_groups(collect):
    submission = prepare([collect([1.0, None, 0.0], [None, None], [0.5, 0.25])], {}, MODEL)
    assert [[t.reward for t in group.trajectories] for group in submission.groups] == [[1.0, 0.0], [], [0.5, 0.25]]
    assert submission.check.unscored == ("capitals/0/1", "capitals/1/0", "capitals/1/1")


def test_groups_of_several_collections_follow_one_another_and_never_merge(collect):
    first, second = collect([1.0, 0.0]), collect([0.5, 0.0], [1.0, 0.5], name="rivers")
    submission = prepare([first, second], {}, MODEL)
    names = [[t.metadata["name"] for t in group.trajectories] for group in submission.groups]
    assert names == [
        ["capitals/0/0", "capitals/0/1"],
        ["rivers/0/0", "rivers/0/1"],
        ["rivers/1/0", "rivers/1/1"],
    ]


def test_a_submission_names_its_collections_so_that_a_newer_generation_does_not_take_their_place(collect, lab):
    submission = prepare([collect([1.0, 0.0])], {}, MODEL)
    collect([1.0, 0.0])
    assert [lab.collection(name).generation for name in submission.collections] == [1]


def test_the_check_is_over_exactly_what_is_sent(collect):
    submission = prepare([collect([1.0, None, 0.0], [0.5, 0.5])], {}, MODEL)
    sent = [[t.metadata["name"] for t in group.trajectories] for group in submission.groups]
    assert [[share.member.name for share in shares] for shares in submission.check.shares] == sent
    assert (submission.check.trainable_trajectories, submission.check.trajectories) == (2, 5)


def test_the_check_is_made_with_the_options_of_the_job(collect):
    collection, options = collect([1.0, 0.0, 0.25], [10.0, 2.0]), {"scale_rewards": False, "advantage_balance": 0.5}
    shares = prepare([collection], options, MODEL).check.shares
    assert shares == token_weights(members_of(collection.groups), settle(check_config(options)))
    assert shares != prepare([collection], {}, MODEL).check.shares


def test_a_submission_becomes_the_job_of_the_specification(collect):
    model_id = str(uuid.uuid4())
    submission = prepare([collect([1.0, 0.0])], {"epsilon": 0.2}, MODEL)
    job = submission.to_job(model_id).model_copy(update={"trajectory_groups": list(submission.groups)})
    body = job.to_wire()
    assert CreateTrainingJob.model_validate_json(job.to_json()).to_wire() == body
    assert (body["model_id"], body["experimental_config"]) == (model_id, {"epsilon": 0.2})
    (group,) = body["trajectory_groups"]
    assert [t["reward"] for t in group["trajectories"]] == [1.0, 0.0]
    assert [len(t["messages_and_choices"]) for t in group["trajectories"]] == [2, 2]


def test_a_wrong_option_is_refused_before_the_trajectories_are_looked_at(collect):
    with pytest.raises(InputError, match="epsilon"):
        prepare([collect([None])], {"epsilon": -1}, MODEL)


@pytest.mark.parametrize(
    ("groups", "tokens", "options", "why", "fix"),
    [
        ([[None, None]], 2, {}, "no reward yet", "%%reward capitals"),
        ([[1.0, 1.0], [0.0, 0.0]], 2, {}, "all rewards of the group are the highest of this job", "%%reward capitals"),
        ([[1.0, 0.0]], 0, {}, "no sampled tokens with logprobs", "%logprobs capitals"),
        ([], 2, {}, "no trajectories", "%%chat capitals"),
    ],
)
def test_when_nothing_trains_the_message_says_why_and_the_hint_what_to_type(collect, groups, tokens, options, why, fix):
    with pytest.raises(NothingTrainsError, match="nothing in capitals would train") as refused:
        prepare([collect(*groups, tokens=tokens)], options, MODEL)
    assert why in refused.value.message
    assert fix in refused.value.hint


def test_when_nothing_trains_the_message_gives_every_reason(collect):
    with pytest.raises(NothingTrainsError) as refused:
        prepare([collect([1.0, 1.0, None]), collect([1.0, 0.0], name="rivers", tokens=0)], {}, MODEL)
    message = refused.value.message
    assert "nothing in capitals, rivers would train" in message
    assert all(
        why in message
        for why in (
            "no reward yet",
            "all rewards of the group are the highest of this job",
            "no sampled tokens with logprobs",
        )
    )
    assert all(name in message for name in ("capitals/0/2", "capitals/0/0", "rivers/0/0"))


def test_a_check_has_what_would_train_also_when_nothing_would(collect):
    submission = gather([collect([1.0, 1.0], [None])], {}, MODEL)
    assert submission.check.trainable_trajectories == 0
    assert [len(group) for group in submission.seats] == [2, 1]
    assert submission.report()[0].startswith("0 of 3 trajectories will train")


def test_nothing_at_all_trains_nothing():
    with pytest.raises(NothingTrainsError):
        prepare([], {}, MODEL)


def test_completions_of_another_model_than_the_one_that_trains_are_warned_of(collect):
    (warning,) = prepare([collect([1.0, 0.0])], {}, "lab/other").check.warnings
    assert warning == "2 trajectories sampled from lab/practice, not lab/other -> %model lab/practice"


def test_completions_of_a_checkpoint_that_is_the_same_as_the_one_of_the_start_are_not_warned_of(collect):
    fresh, same = gather([collect([1.0, 0.0])], {}, "lab/other"), frozenset({MODEL, "lab/other"})
    assert fresh.with_start(Start(0, same)).check.warnings == ()
    assert fresh.with_start(Start(0, same)).with_options({"epsilon": 0.1}).check.warnings == ()
    for start in (None, Start(0), Start(0, frozenset({"lab/other"})), Start(1, same)):
        [warning] = fresh.with_start(start).check.warnings
        assert "2 trajectories sampled from lab/practice, not lab/other" in warning


def test_completions_of_a_trained_checkpoint_of_another_model_are_warned_of(collect):
    later = gather([collect([1.0, 0.0], step=1)], {}, "lab/other").with_start(Start(0, frozenset({MODEL, "lab/other"})))
    assert "2 trajectories sampled from lab/practice, not lab/other" in later.check.warnings[0]


def test_completions_that_were_not_sampled_at_one_are_warned_of(collect):
    (warning,) = prepare([collect([1.0, 0.0], temperature=0.5)], {}, MODEL).check.warnings
    assert "temperature 0.5" in warning
    assert prepare([collect([1.0, 0.0], temperature=1.0, top_p=1.0)], {}, MODEL).check.warnings == ()


def test_a_loss_of_ones_own_takes_no_options_of_an_algorithm_for_another_loss(collect):
    submission = prepare([collect([1.0, 0.0])], {"algorithm": "dr_grpo", "loss_scale_factor": 9}, MODEL)
    with pytest.raises(InputError) as refused:
        submission.with_loss("0" * 64)
    assert refused.value.message == (
        "algorithm: dr_grpo sets ppo, loss_aggregation, which a loss of one's own replaces"
    )
    assert refused.value.hint == "leave out algorithm"
