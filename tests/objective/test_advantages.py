"""Rewards to advantages and token weights: by hand, and against a second implementation in exact arithmetic."""

import itertools
import math
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rolloutlab.objective.advantages import (
    Member,
    Reason,
    TokenWeight,
    apply_balance,
    group_advantages,
    job_weights,
    plain_weights,
    token_weights,
)
from rolloutlab.objective.options import Options

ANY_REWARD = st.floats(allow_nan=False, allow_infinity=False)
PLAIN_REWARD = st.sampled_from((0.0, 1.0, -1.0, 0.1, 0.5, 0.25, 2.0, 0.30000000000000004, 0.3, 1e-3)) | st.floats(-5, 5)
TOKENS_H = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)
BALANCE = st.sampled_from((-1.0, 1.0, 0.0)) | st.floats(-1, 1)
AGGREGATION = st.sampled_from(("sequence_mean", "token_mean", "constant"))
OPTIONS = st.builds(
    Options,
    scale_rewards=st.booleans(),
    advantage_balance=BALANCE,
    loss_aggregation=AGGREGATION,
    mask_truncated=st.booleans(),
)


def member(reward: float, *tokens_H: int, **fields: Any) -> Member:
    return Member(fields.pop("name", "m"), reward, tokens_H, **fields)


def members(*rewards_G: float, tokens: int = 2) -> list[Member]:
    return [member(reward, tokens, name=f"m{i}") for i, reward in enumerate(rewards_G)]


def jobs(rewards: st.SearchStrategy[float]) -> st.SearchStrategy[list[list[Member]]]:
    one = st.builds(Member, st.just("m"), rewards, TOKENS_H, st.booleans(), truncated=st.booleans())
    groups = st.lists(one, max_size=5) | st.tuples(rewards, st.integers(1, 4)).map(
        lambda same: members(*same[:1]) * same[1]
    )
    return st.lists(groups, max_size=4)


def trained(shares: list[list[TokenWeight]]) -> list[TokenWeight]:
    return [share for group in shares for share in group if share.reason is None]


def advantages(shares: list[list[TokenWeight]]) -> list[list[float]]:
    return [[share.advantage for share in group] for group in shares]


def weights(shares: list[list[TokenWeight]]) -> list[list[float]]:
    return [[share.weight for share in group] for group in shares]


def reasons(shares: list[list[TokenWeight]]) -> list[list[Reason | None]]:
    return [[share.reason for share in group] for group in shares]


# A second implementation of `token_weights`. Decimal has neither overflow nor, with 60 digits, rounding
# that matters. One entry per trainable token: (group, member, A, w).

Token = tuple[int, int, Decimal, Decimal]


def naive_tokens(groups: Sequence[Sequence[Member]], options: Options) -> list[Token]:
    with localcontext(Context(prec=60, Emin=-(10**6), Emax=10**6)):
        tokens: list[Token] = []
        for g, group in enumerate(groups):
            for i, advantage in enumerate(naive_group(group, options.scale_rewards)):
                count = sum(group[i].tokens_H)
                one = 1 / (count + Decimal("1e-6")) if options.loss_aggregation == "sequence_mean" else Decimal(1)
                if advantage != 0 and not (options.mask_truncated and group[i].truncated):
                    tokens += [(g, i, advantage, one)] * count
        if not tokens:
            return []
        mean_weight = sum(w for *_, w in tokens) / len(tokens)
        tokens = [(g, i, a, w / mean_weight) for g, i, a, w in tokens]
        b = Decimal(options.advantage_balance)
        if b > 0:
            tokens = [(g, i, a * (1 - b) if a <= 0 else a, w) for g, i, a, w in tokens]
        if b < 0:
            tokens = [(g, i, a * (1 + b) if a >= 0 else a, w) for g, i, a, w in tokens]
        mean_size = sum(abs(a) * w for *_, a, w in tokens) / len(tokens)
        return [(g, i, a / mean_size, w) for g, i, a, w in tokens] if mean_size else []


def naive_group(group: Sequence[Member], scale_rewards: bool) -> list[Decimal]:
    rewards = [Decimal(m.reward) for m in group]
    if not rewards:
        return []
    bound = Decimal("1e-9") * max(Decimal(1), abs(max(rewards)), abs(min(rewards)))
    mean = sum(rewards) / len(rewards)
    if max(rewards) - min(rewards) <= bound:
        return [Decimal(0)] * len(rewards)
    deviation = (sum((r - mean) ** 2 for r in rewards) / len(rewards)).sqrt()
    scale = deviation + Decimal("1e-6") if scale_rewards else Decimal(1)
    return [Decimal(0) if abs(r - mean) <= bound else (r - mean) / scale for r in rewards]


def is_clear(group: Sequence[Member]) -> bool:
    """Whether no distance is so near to the bound that rounding decides on which side of it it is."""
    rewards = [Decimal(m.reward) for m in group]
    if not rewards:
        return True
    bound = Decimal("1e-9") * max(Decimal(1), abs(max(rewards)), abs(min(rewards)))
    mean = sum(rewards) / len(rewards)
    distances = [max(rewards) - min(rewards), *(abs(r - mean) for r in rewards)]
    return all(abs(distance - bound) > bound / 1000 for distance in distances)


def assert_agrees_with_the_naive_one(groups: list[list[Member]], options: Options) -> None:
    tokens = naive_tokens(groups, options)
    expected = {(g, i): (float(a), float(w)) for g, i, a, w in tokens}
    found = {
        (g, i): (share.advantage, share.weight)
        for g, group in enumerate(token_weights(groups, options))
        for i, share in enumerate(group)
        if share.reason is None
    }
    assert found.keys() == expected.keys()
    for key, (advantage, weight) in expected.items():
        assert found[key] == (pytest.approx(advantage, rel=1e-6, abs=1e-9), pytest.approx(weight, rel=1e-9))


@given(jobs(PLAIN_REWARD), OPTIONS)
def test_shares_agree_with_a_naive_implementation(groups, options):
    assume(all(map(is_clear, groups)))
    assert_agrees_with_the_naive_one(groups, options)


@given(jobs(ANY_REWARD | PLAIN_REWARD), OPTIONS)
def test_shares_agree_with_a_naive_implementation_whatever_the_size_of_the_rewards(groups, options):
    assume(all(map(is_clear, groups)))
    assert_agrees_with_the_naive_one(groups, options)


@given(st.lists(st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 50)), min_size=1, max_size=6), max_size=5))
def test_the_plain_formula_gives_the_same_weights(job):
    plain = plain_weights([[r for r, _ in group] for group in job], [[n for _, n in group] for group in job])
    shares = [
        share
        for group in token_weights([[member(r, n) for r, n in group] for group in job], Options())
        for share in group
    ]
    found = [number for share in shares for number in (share.advantage, share.weight)]
    assert found == pytest.approx([number for pair in plain for number in pair], rel=1e-5)


@pytest.mark.parametrize("balance", [-1.0, -0.25, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("scale_rewards", [True, False])
def test_a_job_with_everything_in_it_agrees_with_the_naive_implementation(scale_rewards, balance):
    groups = [
        [member(1.0, 3, 0, 2), member(0.0, 4), member(0.0, 0), member(0.25, 1)],
        members(0.1, 0.1, 0.1),
        [member(10.0, 2), member(30.0, 7), member(20.0, 5)],
        [],
    ]
    assert_agrees_with_the_naive_one(groups, Options(scale_rewards=scale_rewards, advantage_balance=balance))


@given(jobs(ANY_REWARD | PLAIN_REWARD), OPTIONS)
def test_over_the_trainable_tokens_the_mean_weight_and_the_mean_weighted_advantage_are_one(groups, options):
    training = trained(token_weights(groups, options))
    tokens = [share for share in training for _ in range(share.member.tokens)]
    assume(tokens)
    assert math.fsum(share.weight for share in tokens) / len(tokens) == pytest.approx(1, rel=1e-9)
    assert math.fsum(abs(share.advantage) * share.weight for share in tokens) / len(tokens) == pytest.approx(
        1, rel=1e-9
    )


@given(jobs(ANY_REWARD), st.booleans(), BALANCE)
def test_nothing_is_ever_nan_or_infinite_and_what_does_not_train_is_zero(groups, scale_rewards, balance):
    shares = token_weights(groups, Options(scale_rewards=scale_rewards, advantage_balance=balance))
    assert [[share.member for share in group] for group in shares] == groups
    for share in itertools.chain.from_iterable(shares):
        assert math.isfinite(share.advantage)
        assert math.isfinite(share.weight)
        assert (share.weight > 0) == (share.reason is None)
        assert share.reason is None or share.advantage == 0


@given(st.lists(ANY_REWARD, max_size=5), st.booleans())
def test_advantages_of_a_group_are_never_nan(rewards_G, scale_rewards):
    advantages_G = group_advantages(rewards_G, scale_rewards)
    assert len(advantages_G) == len(rewards_G)
    assert not any(math.isnan(advantage) for advantage in advantages_G)


STEPS = st.sampled_from((0.0, 0.25, 0.5, 1.0, 2.0, -1.0))


@given(jobs(STEPS), st.booleans(), BALANCE, st.sampled_from((2.0, 1000.0, 1e12, 1e150)))
def test_a_global_scale_of_the_rewards_does_not_matter(groups, scale_rewards, balance, factor):
    options = Options(scale_rewards=scale_rewards, advantage_balance=balance)
    scaled = [[m._replace(reward=m.reward * factor) for m in group] for group in groups]
    shares, of_scaled = token_weights(groups, options), token_weights(scaled, options)
    assert reasons(shares) == reasons(of_scaled)
    assert weights(shares) == weights(of_scaled)
    for row, of_scaled_row in zip(advantages(shares), advantages(of_scaled), strict=True):
        assert row == pytest.approx(of_scaled_row, rel=1e-4)  # 1e-6 beside a deviation of 0.1 or more


@given(jobs(STEPS), st.booleans(), st.sampled_from((-8.0, 0.5, 64.0)))
def test_a_constant_added_to_the_rewards_of_every_group_does_not_matter(groups, scale_rewards, constant):
    options = Options(scale_rewards=scale_rewards)
    shifted = [[m._replace(reward=m.reward + constant) for m in group] for group in groups]
    shares, of_shifted = token_weights(groups, options), token_weights(shifted, options)
    assert reasons(shares) == reasons(of_shifted)
    for row, of_shifted_row in zip(advantages(shares), advantages(of_shifted), strict=True):
        assert row == pytest.approx(of_shifted_row, rel=1e-9)


def test_an_advantage_is_the_distance_from_the_mean_in_population_standard_deviations():
    # mean 2, squared distances 4, 0, 0, 4: population deviation sqrt(2), where the sample deviation would be sqrt(8/3)
    expected = [-2 / (math.sqrt(2) + 1e-6), 0, 0, 2 / (math.sqrt(2) + 1e-6)]
    assert group_advantages([0, 2, 2, 4]) == pytest.approx(expected, rel=1e-15)


def test_without_scale_rewards_an_advantage_is_the_distance_from_the_mean():
    assert group_advantages([0, 2, 2, 6], scale_rewards=False) == [-2.5, -0.5, -0.5, 3.5]


def test_the_deviation_is_never_less_than_one_millionth():
    assert group_advantages([0, 2e-8]) == pytest.approx([-1e-8 / 1.01e-6, 1e-8 / 1.01e-6], rel=1e-12)


@pytest.mark.parametrize(
    "rewards_G",
    [
        [],
        [5.0],
        [0.0, 0.0],
        [0.1, 0.1, 0.1],  # the float mean is 0.10000000000000002
        [0.1 + 0.2, 0.3],
        [1.0, 1.0 + 1e-9],
        [1e12, 1e12 + 999],
        [-1e12, -1e12 - 999],
        [-5e-10, 5e-10],
        [1e300, 1e300],
        [1e-300, 0.0],
    ],
)
@pytest.mark.parametrize("scale_rewards", [True, False])
def test_rewards_that_differ_by_rounding_alone_are_equal(rewards_G, scale_rewards):
    assert group_advantages(rewards_G, scale_rewards) == [0.0] * len(rewards_G)


@pytest.mark.parametrize("rewards_G", [[1.0, 1.0 + 1e-8], [1e12, 1e12 + 2100], [0.0, 2.1e-9]])
def test_rewards_that_differ_by_more_than_rounding_are_not_equal(rewards_G):
    low, high = group_advantages(rewards_G)
    assert low < 0 < high


def test_a_reward_within_rounding_of_the_mean_has_advantage_zero():
    assert group_advantages([0.0, 1.9e-9]) == [0.0, 0.0]
    assert group_advantages([0.1, 0.2, 0.3], scale_rewards=False)[1] == 0.0
    assert group_advantages([0.0, 1.0, 0.5 + 2e-9], scale_rewards=False)[2] > 0


def test_the_residue_of_equal_rewards_does_not_train():
    shares = token_weights([members(0.1, 0.1, 0.1)], Options())
    assert shares == [[TokenWeight(m, 0.0, 0.0, Reason.EQUAL_REWARDS) for m in members(0.1, 0.1, 0.1)]]


def test_two_members_of_unlike_length_weigh_the_same_in_all():
    (short, long), *_ = token_weights([[member(1.0, 1), member(0.0, 3)]], Options())
    # w is 1 and 1/3, whose mean over the four tokens is 1/2; |A| is the same for both
    assert (short.weight, long.weight) == pytest.approx((2, 2 / 3), rel=2e-6)
    assert (short.advantage, long.advantage) == pytest.approx((1, -1), rel=1e-12)


def test_the_length_of_a_member_is_that_of_all_its_histories():
    assert weights(token_weights([[member(1.0, 1), member(0.0, 1, 0, 2)]], Options())) == weights(
        token_weights([[member(1.0, 1), member(0.0, 3)]], Options())
    )


def test_scale_rewards_only_changes_the_weight_between_groups():
    groups = [members(0.0, 1.0), members(0.0, 3.0)]
    assert advantages(token_weights(groups, Options())) == [pytest.approx([-1, 1], rel=2e-6)] * 2
    unscaled = advantages(token_weights(groups, Options(scale_rewards=False)))
    # distances from the mean 0.5 and 1.5, whose mean is 1
    assert unscaled == [pytest.approx([-0.5, 0.5], rel=1e-12), pytest.approx([-1.5, 1.5], rel=1e-12)]


def test_the_statistics_of_a_group_are_over_all_its_members_also_those_without_tokens():
    shares = token_weights([[member(0.0, 2), member(1.0, 2), member(5.0, 0)]], Options(scale_rewards=False))
    # mean 2: distances -2 and -1, over their mean 1.5
    assert advantages(shares) == [pytest.approx([-4 / 3, -2 / 3, 0], rel=1e-12)]
    assert reasons(shares) == [[None, None, Reason.NO_LOGPROBS]]


def test_a_member_at_the_mean_is_dropped_and_does_not_count():
    shares = token_weights([[member(0.0, 1), member(0.5, 9), member(1.0, 1)]], Options())
    assert reasons(shares) == [[None, Reason.MEAN_REWARD, None]]
    assert weights(shares) == [pytest.approx([1, 0, 1], rel=1e-12)]
    assert advantages(shares) == [pytest.approx([-1, 0, 1], rel=1e-12)]


def test_a_group_of_equal_rewards_does_not_count_in_the_means_of_the_others():
    alone = token_weights([members(0.0, 1.0)], Options())
    beside = token_weights([members(7.0, 7.0, tokens=50), members(0.0, 1.0)], Options())
    assert beside[1] == alone[0]
    assert reasons(beside)[0] == [Reason.ALL_PASSED] * 2


@pytest.mark.parametrize(
    ("balance", "expected"),
    [
        # sizes 1 and 1 before; then over the mean of what the balance leaves
        (0.0, [-1, 1]),
        (0.5, [-2 / 3, 4 / 3]),
        (1.0, [0, 2]),
        (-0.5, [-4 / 3, 2 / 3]),
        (-1.0, [-2, 0]),
    ],
)
def test_the_balance_shrinks_one_side_and_the_scale_gives_it_to_the_other(balance, expected):
    shares = token_weights([members(0.0, 1.0)], Options(advantage_balance=balance))
    assert advantages(shares) == [pytest.approx(expected, rel=1e-12)]
    assert weights(shares) == [pytest.approx([1, 1], rel=1e-12)]
    assert reasons(shares) == [[None, None]]


def test_tokens_that_the_balance_sets_to_zero_still_count_in_the_means():
    (down, up), *_ = token_weights([[member(0.0, 3), member(1.0, 1)]], Options(advantage_balance=1.0))
    # w is 2/3 and 2 as without a balance; A·w summed over the four tokens is 4
    assert (down.weight, up.weight) == pytest.approx((2 / 3, 2), rel=2e-6)
    assert (down.advantage, up.advantage) == (0, pytest.approx(2, rel=2e-6))


@pytest.mark.parametrize(
    ("advantage", "balance", "expected"),
    [
        (2.0, 0.25, 2.0),
        (-2.0, 0.25, -1.5),
        (2.0, -0.25, 1.5),
        (-2.0, -0.25, -2.0),
        (-2.0, 0.0, -2.0),
        (2.0, 0.0, 2.0),
        (-2.0, 1.0, 0.0),
        (2.0, -1.0, 0.0),
        (0.0, 0.5, 0.0),
        (0.0, -0.5, 0.0),
    ],
)
def test_a_positive_balance_shrinks_negative_advantages_and_a_negative_one_positive(advantage, balance, expected):
    assert apply_balance(advantage, balance) == expected


def test_a_job_whose_whole_advantage_is_balanced_away_trains_nothing_and_says_why():
    shares = token_weights([[member(0.0, 2), member(1.0, 0)]], Options(advantage_balance=1.0))
    assert reasons(shares) == [[Reason.BALANCED_AWAY, Reason.NO_LOGPROBS]]
    assert (advantages(shares), weights(shares)) == ([[0.0, 0.0]], [[0.0, 0.0]])


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (member(1.0, 2), None),
        (member(1.0, 0), Reason.NO_LOGPROBS),
        (member(1.0), Reason.NO_LOGPROBS),
        (member(1.0, 0, too_long=True), Reason.TOO_LONG),
        (member(1.0, 2, too_long=True), None),  # another history of it still trains
        (member(0.5, 2), Reason.MEAN_REWARD),
        (member(1.0, 2, truncated=True), None),
    ],
)
def test_each_member_that_does_not_train_says_why(one, reason):
    others = [member(0.0, 2), member(1.0 if one.reward == 0.5 else 0.5, 2)]
    assert token_weights([[one, *others]], Options())[0][0].reason == reason


@pytest.mark.parametrize(
    ("others", "reward", "reason"),
    [
        pytest.param([0.0, 1.0], 0.0, Reason.ALL_FAILED, id="the lowest"),
        pytest.param([0.0, 1.0], 1.0, Reason.ALL_PASSED, id="the highest"),
        pytest.param([0.0, 1.0], 0.5, Reason.EQUAL_REWARDS, id="neither"),
        pytest.param([0.1 + 0.2, 1.0], 0.3, Reason.ALL_FAILED, id="the lowest but for rounding"),
        pytest.param([-5.0, 1.0], 0.0, Reason.EQUAL_REWARDS, id="above the lowest"),
        pytest.param([0.0], 0.0, Reason.EQUAL_REWARDS, id="no other reward"),
        pytest.param([1e-12], 0.0, Reason.EQUAL_REWARDS, id="no other reward but for rounding"),
        pytest.param([1.0], 0.0, Reason.ALL_FAILED, id="the highest is of a group of its own"),
        pytest.param([-1e308, 1e308], 1e308, Reason.ALL_PASSED, id="huge"),
    ],
)
def test_groups_of_equal_rewards_failed_or_passed_by_the_rewards_of_the_whole_job(others, reward, reason):
    assert reasons(token_weights([members(reward, reward), members(*others)], Options()))[0] == [reason] * 2


def test_a_group_of_one_neither_failed_nor_passed():
    assert reasons(token_weights([members(0.0), members(0.0, 1.0)], Options()))[0] == [Reason.EQUAL_REWARDS]


def test_missing_logprobs_and_equal_rewards_are_reported_apart():
    shares = token_weights([[member(1.0, 2), member(1.0, 0), member(1.0, 0, too_long=True)]], Options())
    assert reasons(shares) == [[Reason.EQUAL_REWARDS, Reason.NO_LOGPROBS, Reason.TOO_LONG]]


@pytest.mark.parametrize("groups", [[], [[]], [[], []], [[member(1.0, 3)]], [[member(1.0, 0), member(0.0, 0)]]])
def test_a_job_with_nothing_to_train_has_shares_of_zero(groups):
    shares = token_weights(groups, Options())
    assert [len(group) for group in shares] == [len(group) for group in groups]
    assert trained(shares) == []


@pytest.mark.parametrize("scale_rewards", [True, False])
@pytest.mark.parametrize("huge", [1e200, 1e300, 1.7976931348623157e308])
def test_huge_rewards_train_like_any_others(huge, scale_rewards):
    options = Options(scale_rewards=scale_rewards)
    assert advantages(token_weights([members(-huge, huge)], options)) == [pytest.approx([-1, 1], rel=1e-9)]
    assert advantages(token_weights([members(huge, -huge, -huge)], options)) == [
        pytest.approx([1.5, -0.75, -0.75], rel=1e-9)
    ]


@pytest.mark.parametrize("huge", [1e200, 1e300])
def test_huge_rewards_of_one_group_do_not_silence_another(huge):
    shares = token_weights([members(0.0, huge), members(0.0, 1.0)], Options())
    assert advantages(shares) == [pytest.approx([-1, 1], rel=2e-6)] * 2


@pytest.mark.parametrize("huge", [1e160, 1e300])
def test_advantages_of_a_group_with_huge_rewards_are_those_of_any_other(huge):
    assert group_advantages([0.0, huge]) == pytest.approx([-1, 1], rel=1e-9)


def test_tiny_rewards_below_the_bound_are_equal_and_above_it_train_fully():
    assert reasons(token_weights([members(0.0, 1e-10)], Options())) == [[Reason.EQUAL_REWARDS] * 2]
    assert advantages(token_weights([members(0.0, 1e-8)], Options())) == [pytest.approx([-1, 1], rel=1e-9)]


def test_answers_of_unlike_length_weigh_by_their_tokens_where_the_loss_is_no_mean_over_sequences():
    groups = [[member(0.0, 1), member(1.0, 3)], [member(0.0, 9), member(0.0, 9)]]
    for aggregation in ("token_mean", "constant"):
        assert weights(token_weights(groups, Options(loss_aggregation=aggregation))) == [[1.0, 1.0], [0.0, 0.0]]
    assert weights(token_weights(groups, Options()))[0] == pytest.approx([2.0, 2 / 3])


MASKED = Options(scale_rewards=False, mask_truncated=True)


def test_a_masked_answer_trains_nothing_and_its_reward_stays_in_the_mean_of_its_group():
    group = [member(0.0, 2), member(1.0, 4), member(5.0, 9, truncated=True)]
    [shares] = token_weights([group], MASKED)
    assert [share.reason for share in shares] == [None, None, Reason.TRUNCATED]
    assert (shares[2].advantage, shares[2].weight, shares[2].tokens) == (0.0, 0.0, 0)
    assert shares[0].advantage / shares[1].advantage == pytest.approx(2.0)  # 0 and 1 below a mean of 2
    assert [share.weight for share in shares[:2]] == pytest.approx([1.5, 0.75])  # N is 6, without the 9


def test_a_group_of_masked_answers_alone_trains_nothing():
    shares = token_weights([[member(float(i), 2, truncated=True) for i in range(2)]], MASKED)
    assert reasons(shares) == [[Reason.TRUNCATED] * 2]


def test_what_would_not_train_without_the_mask_either_has_its_own_reason():
    group = [member(0.0, 2), member(2.0, 2), member(1.0, 2, truncated=True), member(1.0, 0, truncated=True)]
    assert reasons(token_weights([group], MASKED)) == [[None, None, Reason.MEAN_REWARD, Reason.NO_LOGPROBS]]
    equal = [member(1.0, 2, truncated=True)] * 2
    assert reasons(token_weights([equal, members(1.0, 2.0)], MASKED))[0] == [Reason.ALL_FAILED] * 2


@pytest.mark.parametrize("scale_rewards", [True, False])
def test_the_factor_of_all_advantages_is_that_of_the_job(scale_rewards):
    groups = [[member(0.0, 1), member(1.0, 3)], [member(3.0, 2), member(5.0, 2), member(10.0, 2)], members(1.0, 1.0)]
    options = Options(scale_rewards=scale_rewards)
    shares, scale = job_weights(groups, options)
    assert shares == token_weights(groups, options)
    for group, share in zip(groups[:2], shares[:2], strict=True):
        raw = group_advantages([each.reward for each in group], scale_rewards)
        assert [each.advantage for each in share] == pytest.approx([scale * a for a in raw])
    assert job_weights(groups[2:], options).advantage_scale is None
