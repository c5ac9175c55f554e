"""What of a job will train, and in words why the rest will not."""

from typing import Any

import pytest

from rolloutlab.api.wire.trajectories import History, Trajectory
from rolloutlab.objective.advantages import Member, Reason, Turn, token_weights
from rolloutlab.objective.options import Options
from rolloutlab.objective.preflight import (
    Preflight,
    count,
    lag_warnings,
    member,
    preflight,
    sampled_tokens,
    sampling_warnings,
)


def token(text: str = "a") -> dict[str, Any]:
    return {"token": text, "logprob": -0.5, "top_logprobs": []}


def choice(content: int = 0, refusal: int = 0, **overrides: Any) -> dict[str, Any]:
    logprobs = {"content": [token()] * content, "refusal": [token()] * refusal}
    message = {"role": "assistant", "content": "a"}
    return {"finish_reason": "stop", "index": 0, "message": message, "logprobs": logprobs} | overrides


def trajectory(*items: dict[str, Any], **overrides: Any) -> Trajectory:
    return Trajectory.model_validate({"messages_and_choices": list(items), "reward": 1.0} | overrides)


USER = {"role": "user", "content": "hi"}

GROUPS = [
    [
        Member("a", 1.0, (3, 2)),
        Member("b", 0.0, (4,)),
        Member("c", 0.5, (1,)),
        Member("d", 1.0, ()),
        Member("e", 0.0, (0,)),
    ],
    [Member("f", 1.0, (5,)), Member("g", 1.0, (6,))],
    [Member("h", 1.0, (7,)), Member("i", 0.0, (0,), too_long=True)],
]


def test_the_shares_are_the_trainers_own():
    options = Options(advantage_balance=0.5, scale_rewards=False)
    assert preflight(GROUPS, options).shares == token_weights(GROUPS, options)


def test_everything_is_counted():
    report = preflight(GROUPS, Options(), unscored=["j", "k"])
    assert (report.trajectories, report.trainable_trajectories) == (11, 3)
    assert report.trainable_tokens == 5 + 4 + 7
    assert report.trainable_groups == 2
    assert report.unscored == ("j", "k")


def test_every_trajectory_that_does_not_train_is_named_under_its_reason():
    report = preflight(GROUPS, Options(), unscored=["j", "k"])
    assert report.skipped == {
        Reason.UNSCORED: ("j", "k"),
        Reason.MEAN_REWARD: ("c",),
        Reason.NO_LOGPROBS: ("d", "e"),
        Reason.ALL_PASSED: ("f", "g"),
        Reason.TOO_LONG: ("i",),
    }
    assert report.reasons() == {"unscored": 2, "mean_reward": 1, "no_logprobs": 2, "all_passed": 2, "too_long": 1}


def test_what_trains_and_what_does_not_add_up():
    report = preflight(GROUPS, Options(), unscored=["j"])
    assert report.trainable_trajectories + sum(report.reasons().values()) == report.trajectories


def test_a_job_in_which_everything_trains_has_no_reasons():
    report = preflight([[Member("a", 1.0, (2,)), Member("b", 0.0, (2,))]], Options())
    assert (report.skipped, report.reasons(), report.warnings) == ({}, {}, ())
    assert report.words() == ["2 of 2 trajectories will train: 4 tokens in 1 of 1 group"]


def test_the_words_say_what_trains_then_each_reason_then_the_warnings():
    report = preflight(GROUPS, Options(), unscored=["j", "k"], warnings=["mind the gap"])
    first, *reasons, last = report.words("sums")
    assert first == "3 of 11 trajectories will train: 16 tokens in 2 of 3 groups"
    assert [line.rpartition(" (")[2].partition(")")[0] for line in reasons] == ["j, k", "c", "d, e", "f, g", "i"]
    assert last == "mind the gap"


@pytest.mark.parametrize(
    ("group", "unscored", "what", "fix"),
    [
        ([], ["a"], "reward", "%%reward sums"),
        ([Member("a", 1.0, (1,)), Member("b", 1.0, (1,))], [], "equal", "%%reward sums"),
        ([Member("a", 1.0, (0,))], [], "logprobs", "%logprobs sums"),
        ([Member("a", 1.0, (0,), too_long=True)], [], "longer than", "--max-tokens"),
        ([Member("a", 0.0, (1,)), Member("b", 1.0, ())], [], "advantage_balance", "advantage_balance: 0"),
    ],
)
def test_a_reason_comes_with_something_to_type(group, unscored, what, fix):
    report = preflight([group], Options(advantage_balance=1.0), unscored)
    said, _, to_type = report.words("sums")[1].partition(" -> ")
    assert what in said
    assert fix in to_type


def test_an_answer_that_was_cut_off_is_left_out_where_that_is_asked_for():
    group = [Member("a", 0.0, (1,)), Member("b", 1.0, (2,), truncated=True)]
    report = preflight([group], Options(mask_truncated=True))
    assert report.reasons() == {"truncated": 1}
    assert report.words("sums")[1] == (
        "1 left out: the last answer was cut off by max_tokens, and mask_truncated is on (b)"
        " -> sample sums with a larger --max-tokens, or mask_truncated: false"
    )
    assert preflight([group], Options()).trainable_tokens == 3


@pytest.mark.parametrize(
    ("items", "truncated"),
    [
        ([], False),
        ([choice(content=1, finish_reason="length")], True),
        ([choice(content=1, finish_reason="length"), choice(content=1)], False),
        ([choice(content=1), choice(content=1, finish_reason="length"), {"role": "assistant", "content": "x"}], True),
        ([choice(content=1, finish_reason="tool_calls")], False),
        ([choice(content=1, finish_reason="content_filter")], False),
    ],
)
def test_a_trajectory_is_cut_off_if_its_last_sampled_answer_is(items, truncated):
    further = [{"messages_and_choices": [USER, choice(content=1, finish_reason="length")]}]
    assert member("a", trajectory(USER, *items, additional_histories=further)).truncated == truncated


def test_the_lowest_reward_of_a_job_is_no_failure_in_itself():
    groups = [[Member(f"{reward}", reward, (2,))] * 2 for reward in (0.9, 1.0)]
    lines = preflight(groups, Options()).words("sums")[1:]
    assert ["the lowest of this job" in lines[0], "the highest of this job" in lines[1]] == [True, True]
    assert not any("fail" in line or "there is" in line for line in lines)


def test_groups_that_failed_and_groups_that_passed_are_two_reasons_with_different_advice():
    rewards = {"a": 0.0, "b": 1.0, "c": 0.5}
    groups = [[Member(f"{name}{i}", reward, (2,)) for i in range(2)] for name, reward in rewards.items()]
    mixed = [Member("d", 0.0, (2,)), Member("e", 1.0, (2,))]
    failed, passed, equal = preflight([*groups, mixed], Options()).words("sums")[1:]
    assert failed.startswith("2 left out: all rewards of the group are the lowest of this job")
    assert "(a0, a1) -> sample sums with a larger -n, or over easier rows" in failed
    assert passed.startswith("2 left out: all rewards of the group are the highest of this job")
    assert "(b0, b1) -> sample sums over harder rows" in passed
    assert equal.startswith(
        "2 left out: all rewards of the group are equal, so nothing in it is better or worse (c0, c1)"
    )


def test_the_words_for_a_member_at_the_mean_ask_for_nothing():
    lines = preflight([GROUPS[0][:3]], Options()).words()
    assert len(lines) == 2
    assert "mean reward" in lines[1]
    assert lines[1].endswith("-> nothing: this is expected")


def test_of_many_names_three_are_shown():
    report = preflight([], Options(), unscored=[f"t{i}" for i in range(5)])
    assert "(t0, t1, t2 and 2 more)" in report.words()[1]


def test_three_names_are_all_shown():
    assert "(t0, t1, t2)" in preflight([], Options(), unscored=["t0", "t1", "t2"]).words()[1]


def test_unknown_options_are_warned_of_before_the_other_warnings():
    report = preflight([], Options(unknown=("kl_coef", "zeal")), warnings=["w"])
    assert len(report.warnings) == 3
    assert "'kl_coef'" in report.warnings[0]
    assert "'zeal'" in report.warnings[1]
    assert report.warnings[2] == report.words()[-1] == "w"


def test_an_empty_job_trains_nothing():
    report = preflight([], Options())
    assert (report.trajectories, report.trainable_groups, report.trainable_tokens) == (0, 0, 0)
    assert report.words() == ["0 of 0 trajectories will train: 0 tokens in 0 of 0 groups"]


def test_a_report_made_from_shares_alone_has_the_same_reasons():
    assert Preflight(token_weights(GROUPS, Options())).reasons() == preflight(GROUPS, Options()).reasons()


def test_the_tokens_of_a_history_are_those_of_its_choices_with_logprobs():
    items = [
        USER,
        choice(content=3),
        {"role": "assistant", "content": "context only"},
        choice(content=2, refusal=9),
        choice(refusal=4),
        choice(logprobs=None),
        choice(),
    ]
    assert sampled_tokens(History.model_validate({"messages_and_choices": items})) == 3 + 2 + 4


def test_a_history_without_items_has_no_tokens():
    assert sampled_tokens(History.model_validate({"messages_and_choices": []})) == 0


def test_a_member_has_the_reward_and_the_tokens_of_each_history():
    further = [{"messages_and_choices": [USER]}, {"messages_and_choices": [choice(content=2)]}]
    recorded = trajectory(USER, choice(content=5), reward=0.25, additional_histories=further)
    expected = Member("sums/0/1", 0.25, (5, 0, 2), too_long=False, turns=(Turn(0.25, 5),))
    assert member("sums/0/1", recorded) == expected
    assert member("sums/0/1", recorded).tokens == 7


@pytest.mark.parametrize(
    "metadata",
    [{}, {"temperature": 1, "top_p": 1.0}, {"temperature": 1.0}, {"temperature": None, "top_p": None}, {"note": "x"}],
)
def test_sampling_at_one_gives_no_warning(metadata):
    assert sampling_warnings([trajectory(metadata=metadata)]) == []


def test_sampling_at_another_temperature_or_top_p_gives_one_warning_per_setting():
    sampled = [
        trajectory(metadata={"temperature": 0.7}),
        trajectory(metadata={"temperature": 0.7, "top_p": 0.9}),
        trajectory(metadata={"temperature": 1, "top_p": 1}),
        trajectory(metadata={"temperature": 0}),
    ]
    warnings = sampling_warnings(sampled)
    assert [warning.partition(":")[0] for warning in warnings] == [
        "2 trajectories sampled at temperature 0.7",
        "1 trajectory sampled at top_p 0.9",
        "1 trajectory sampled at temperature 0",
    ]
    assert all(warning.endswith(" -> sample at 1") for warning in warnings)


@pytest.mark.parametrize(
    ("sampled", "said"),
    [
        ({3: 48}, "48 trajectories sampled at step 3, train from step 13: lag 10"),
        ({3: 1, 13: 5}, "1 trajectory sampled at step 3, trains from step 13: lag 10"),
        ({3: 2, 9: 2}, "4 trajectories sampled at steps 3 to 9, train from step 13: lag up to 10"),
    ],
)
def test_the_lag_is_that_of_the_oldest_completions(sampled, said):
    assert lag_warnings(sampled, 13, "caps") == [f"{said} -> sample caps anew"]


@pytest.mark.parametrize("sampled", [{}, {13: 4}, {14: 1}])
def test_what_is_not_older_than_the_start_has_no_lag(sampled):
    assert lag_warnings(sampled, 13, "caps", recomputes=True) == []


def test_without_trajectories_there_is_no_sampling_warning():
    assert sampling_warnings([]) == []


@pytest.mark.parametrize(
    ("n", "noun", "words"),
    [
        (0, "group", "0 groups"),
        (1, "group", "1 group"),
        (1, "trajectory", "1 trajectory"),
        (2, "trajectory", "2 trajectories"),
        (2304, "token", "2,304 tokens"),
    ],
)
def test_a_count_reads_like_a_sentence(n, noun, words):
    assert count(n, noun) == words
