"""Credit per turn: rewards to go and their advantages, by hand and against a second implementation."""

import math
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from itertools import chain

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rolloutlab.objective.advantages import Member, Reason, Turn, token_weights
from rolloutlab.objective.credit import turn_rewards, turns
from rolloutlab.objective.options import Options
from rolloutlab.objective.preflight import TurnCount, preflight

TURN = Options(credit="turn")
UNSCALED = Options(credit="turn", scale_rewards=False)


def member(
    reward: float, rewards_K: Sequence[float], tokens_K: Sequence[int], more: int = 0, name: str = "m"
) -> Member:
    """A trajectory with a reward and a number of tokens for each turn. more: tokens of an additional history."""
    metrics = {f"turn_reward/{k}": value for k, value in enumerate(rewards_K)}
    return Member(name, reward, (sum(tokens_K), more), turns=turns(reward, metrics, tokens_K))


def test_the_reward_to_go_of_a_turn_has_its_own_reward_the_later_ones_and_the_rest_of_the_reward():
    # 4 = 1 + 0 + 2 of the turns, and 1 at the end: 1+0+2+1, 0+2+1, 2+1
    given_ = turns(4.0, {"turn_reward/0": 1.0, "turn_reward/2": 2.0, "right": 7.0}, [5, 6, 7])
    assert given_ == (Turn(4.0, 5), Turn(3.0, 6), Turn(3.0, 7))


def test_rewards_of_turns_are_metrics_by_that_name_alone():
    metrics = {"turn_reward/0": True, "turn_reward/11": 2, "turn_reward/01": 1, "turn_reward/-1": 1, "turn_reward/": 1}
    assert turn_rewards({**metrics, "turn_reward/x": 1, "my_turn_reward/3": 1, "reward": 1}) == {0: 1.0, 11: 2.0}


# Three episodes of one group, with turn rewards 1, 0, 2 and 1 at the end; 0, 1; and 1 at the end alone:
#
#            reward to go      tokens
#   turn     0    1    2      0   1   2
#   a        4    3    3      2   3   5
#   b        1    1           4   1
#   c        1               10
#   mean     2    2    3
#
# Differences from the mean: a 2, 1, 0; b -1, -1; c -1. Turn 2 of a has no peers: a trains 5 tokens, b 5, c 10, N = 20.
# Weights 1/5, 1/5, 1/10 have the mean (5/5 + 5/5 + 10/10) / 20 = 3/20: scaled 4/3, 4/3, 2/3.
GROUP = [
    member(4.0, [1.0, 0.0, 2.0], [2, 3, 5], name="a"),
    member(1.0, [0.0, 1.0], [4, 1], name="b"),
    member(1.0, [], [10], name="c"),
]
WEIGHTS = [4 / 3, 4 / 3, 2 / 3]


def test_without_scale_the_advantages_of_the_table_are_these():
    shares = token_weights([GROUP], UNSCALED)[0]
    # sum of |A|·w over the tokens: (2·2 + 3·1)·4/3 + (4·1 + 1·1)·4/3 + 10·1·2/3 = 28/3 + 20/3 + 20/3 = 68/3;
    # over 20 tokens 17/15, by which all are divided
    assert [share.turns for share in shares] == [
        (pytest.approx(30 / 17), pytest.approx(15 / 17), None, None),
        (pytest.approx(-15 / 17), pytest.approx(-15 / 17), None),
        (pytest.approx(-15 / 17), None),
    ]
    assert [share.weight for share in shares] == pytest.approx(WEIGHTS, rel=1e-6)
    assert [share.tokens for share in shares] == [5, 5, 10]


def test_with_scale_each_turn_is_divided_by_the_deviation_of_its_own_index():
    shares = token_weights([GROUP], TURN)[0]
    # turn 0: deviation √((4 + 1 + 1)/3) = √2, so 2/√2 = √2 and -1/√2; turn 1: deviation 1, so 1 and -1
    root = math.sqrt(2)
    # sum of |A|·w: (2·√2 + 3·1)·4/3 + (4/√2 + 1)·4/3 + 10/√2·2/3
    size = ((2 * root + 3) * 4 / 3 + (4 / root + 1) * 4 / 3 + 10 / root * 2 / 3) / 20
    assert [share.turns for share in shares] == [
        (pytest.approx(root / size, rel=3e-6), pytest.approx(1 / size, rel=3e-6), None, None),
        (pytest.approx(-1 / root / size, rel=3e-6), pytest.approx(-1 / size, rel=3e-6), None),
        (pytest.approx(-1 / root / size, rel=3e-6), None),
    ]
    assert [share.weight for share in shares] == pytest.approx(WEIGHTS, rel=1e-6)


def test_the_report_counts_each_turn():
    check = preflight([GROUP], TURN)
    assert check.turns() == [TurnCount(0, 3, 3, 16), TurnCount(1, 2, 2, 4), TurnCount(2, 1, 0, 0)]
    assert check.words()[:2] == [
        "3 of 3 trajectories will train: 20 tokens in 1 of 1 group",
        "turn 0 trains in 3 of 3 (16 tokens), turn 1 trains in 2 of 2 (4 tokens), turn 2 trains in 0 of 1 (0 tokens)",
    ]
    assert preflight([GROUP], Options()).turns() == []


# A second implementation. One entry per trained token: (group, member, turn, A, w); turn -1 is an additional history.

Episode = tuple[list[Decimal], Decimal, list[int], int]
"""Turn rewards, what comes at the end, tokens of each turn, and those of additional histories."""
Token = tuple[int, int, int, Decimal, Decimal]


def to_go(episode: Episode, k: int) -> Decimal:
    rewards, end, *_ = episode
    return sum(rewards[max(k, 0) :], end)


def peers(group: list[Episode], k: int) -> list[Decimal]:
    return [to_go(each, k) for each in group if k < len(each[2])]


def bound(group: list[Episode]) -> Decimal:
    every = [to_go(each, k) for each in group for k in range(-1, len(each[2]))]
    return Decimal("1e-9") * max([Decimal(1), *map(abs, every)])


def naive_advantage(group: list[Episode], i: int, k: int, scale_rewards: bool) -> Decimal:
    values = peers(group, k)
    mean = sum(values) / len(values)
    difference = to_go(group[i], k) - mean
    if max(values) - min(values) <= bound(group) or abs(difference) <= bound(group):
        return Decimal(0)
    deviation = (sum((value - mean) ** 2 for value in values) / len(values)).sqrt()
    return difference / (deviation + Decimal("1e-6")) if scale_rewards else difference


def naive(groups: list[list[Episode]], scale_rewards: bool, balance: Decimal) -> list[Token]:
    found: list[Token] = []
    for g, group in enumerate(groups):
        for i, (_, _, tokens_K, more) in enumerate(group):
            counts = {**dict(enumerate(tokens_K)), -1: more}
            trained = {k: a for k in counts if (a := naive_advantage(group, i, k, scale_rewards)) and counts[k]}
            weight = 1 / (sum(counts[k] for k in trained) + Decimal("1e-6"))
            found += [(g, i, k, a, weight) for k, a in trained.items() for _ in range(counts[k])]
    if not found:
        return []
    mean = sum(w for *_, w in found) / len(found)
    factors = {True: 1 - max(balance, Decimal(0)), False: 1 + min(balance, Decimal(0))}
    balanced = [(g, i, k, a * factors[a < 0], w / mean) for g, i, k, a, w in found]
    size = sum(abs(a) * w for *_, a, w in balanced) / len(balanced)
    return [(g, i, k, a / size, w) for g, i, k, a, w in balanced] if size else []


def is_clear(group: list[Episode]) -> bool:
    """Whether no distance is so near to the bound that rounding decides on which side of it it is."""
    distances = []
    for k in range(-1, max((len(each[2]) for each in group), default=0)):
        if values := peers(group, k):
            mean = sum(values) / len(values)
            distances += [max(values) - min(values), *(abs(value - mean) for value in values)]
    return all(abs(distance - bound(group)) > bound(group) / 100 for distance in distances)


REWARD = st.sampled_from((0.0, 1.0, -1.0, 0.1, 0.30000000000000004, 1e-3)) | st.floats(-5, 5)
ANY_REWARD = REWARD | st.floats(allow_nan=False, allow_infinity=False)


def episodes(rewards: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[list[float], float, list[int], int]]:
    pairs = st.lists(st.tuples(rewards, st.integers(0, 4)), max_size=4)
    return st.tuples(pairs, rewards, st.sampled_from((0, 0, 3))).map(
        lambda drawn: ([r for r, _ in drawn[0]], drawn[1], [n for _, n in drawn[0]], drawn[2])
    )


def jobs(rewards: st.SearchStrategy[float]):
    return st.lists(st.lists(episodes(rewards), max_size=4), max_size=3)


def members(job) -> list[list[Member]]:
    return [[member(math.fsum([*r, end]), r, n, more) for r, end, n, more in group] for group in job]


@given(jobs(REWARD), st.booleans(), st.sampled_from((0.0, 1.0, -1.0, 0.3, -0.25)))
def test_advantages_and_weights_of_turns_agree_with_a_naive_implementation(job, scale_rewards, balance):
    with localcontext(Context(prec=60)):
        exact = [[([Decimal(r) for r in rs], Decimal(end), n, more) for rs, end, n, more in group] for group in job]
        assume(all(map(is_clear, exact)))
        expected = {(g, i, k): (float(a), float(w)) for g, i, k, a, w in naive(exact, scale_rewards, Decimal(balance))}
    options = Options(credit="turn", scale_rewards=scale_rewards, advantage_balance=balance)
    found = {
        (g, i, -1 if each.turn is None else each.turn): (each.advantage, share.weight)
        for g, group in enumerate(token_weights(members(job), options))
        for i, share in enumerate(group)
        for each in share.by_turn()
        if each.advantage is not None
    }
    assert found.keys() == expected.keys()
    for key, (advantage, weight) in expected.items():
        assert found[key] == (pytest.approx(advantage, rel=1e-5, abs=1e-8), pytest.approx(weight, rel=1e-9))


@given(jobs(ANY_REWARD), st.booleans(), st.floats(-1, 1))
def test_over_the_trained_tokens_mean_weight_and_mean_weighted_advantage_are_one_whatever_the_rewards(
    job, scale_rewards, balance
):
    job = [[(r, end, n, more) for r, end, n, more in group if math.isfinite(sum([*r, end]))] for group in job]
    groups = [[member(sum([*r, end]), r, n, more) for r, end, n, more in group] for group in job]
    options = Options(credit="turn", scale_rewards=scale_rewards, advantage_balance=balance)
    shares = list(chain.from_iterable(token_weights(groups, options)))
    tokens = [
        (abs(each.advantage) * share.weight, share.weight)
        for share in shares
        for each in share.by_turn()
        if each.advantage is not None
        for _ in range(each.tokens)
    ]
    assert all((share.reason is None) == (share.tokens > 0) == (share.weight > 0) for share in shares)
    assume(tokens)
    assert math.fsum(size for size, _ in tokens) / len(tokens) == pytest.approx(1, rel=1e-9)
    assert math.fsum(weight for _, weight in tokens) / len(tokens) == pytest.approx(1, rel=1e-9)


@given(st.lists(st.lists(st.tuples(ANY_REWARD, st.integers(0, 5)), max_size=4), max_size=3), st.booleans())
def test_episodes_of_one_turn_train_as_with_credit_per_trajectory(job, scale_rewards):
    groups = [[member(reward, [reward], [tokens]) for reward, tokens in group] for group in job]
    by_turn = token_weights(groups, Options(credit="turn", scale_rewards=scale_rewards))
    whole = token_weights(groups, Options(scale_rewards=scale_rewards))
    for share, other in zip(chain.from_iterable(by_turn), chain.from_iterable(whole), strict=True):
        assert (share.tokens, share.weight) == (0 if other.reason else other.member.tokens, other.weight)
        assert share.turns[0] == (None if other.reason else other.advantage)


def test_without_the_option_turns_change_nothing():
    plain = [each._replace(turns=()) for each in GROUP]
    shares = token_weights([GROUP], Options())[0]
    assert [tuple(share)[1:] for share in shares] == [
        tuple(share)[1:] for share in token_weights([plain], Options())[0]
    ]
    assert {share.turns for share in shares} == {()}


def test_turns_whose_rewards_to_go_are_equal_train_nothing_and_the_others_do():
    # rewards are equal, and so is turn 0: 2 and 2; turn 1 has 1 and 2 to go
    early, late = member(2.0, [1.0, 1.0], [3, 3], name="early"), member(2.0, [0.0, 2.0], [3, 3], name="late")
    shares = token_weights([[early, late]], TURN)[0]
    assert [share.turns for share in shares] == [
        (None, pytest.approx(-1), None),
        (None, pytest.approx(1), None),
    ]
    assert {share.reason for share in token_weights([[early, late]], Options())[0]} == {Reason.EQUAL_REWARDS}


def test_a_group_whose_turns_are_all_equal_is_left_out_as_one_with_equal_rewards():
    same = [member(1.0, [0.0, 1.0], [3, 3]) for _ in range(3)]
    other = [member(reward, [0.0, reward], [3, 3]) for reward in (0.0, 1.0)]
    shares = token_weights([same, other], TURN)
    assert {share.reason for share in shares[0]} == {Reason.ALL_PASSED}
    assert {share.turns for share in shares[0]} == {(None, None, None)}
    assert {share.reason for share in shares[1]} == {None}


def test_a_trajectory_none_of_whose_turns_differs_says_so():
    # turn 0 of the last is the mean of 0, 2 and 1, and no other has its turn 1
    group = [member(0.0, [0.0], [2]), member(2.0, [2.0], [2]), member(1.0, [0.5, 0.5], [2, 2])]
    shares = token_weights([group], TURN)[0]
    assert [share.reason for share in shares] == [None, None, Reason.NO_TURN_ADVANTAGE]
    assert shares[2].turns == (None, None, None)
    [line] = [line for line in preflight([group], TURN).words("guess") if "left out" in line]
    assert line == (
        "1 left out: the reward to go of every turn is the group's mean of that turn (m) "
        "-> sample guess with a larger -n, or credit: trajectory"
    )


def test_additional_histories_have_the_advantage_of_the_whole_reward():
    # turn 0 has the same to go as the whole, turn 1 has 0 and 0: it trains nothing
    group = [member(1.0, [1.0, 0.0], [2, 3], more=4), member(0.0, [0.0, 0.0], [2, 3])]
    up, down = token_weights([group], TURN)[0]
    assert up.turns[0] == up.turns[2] == up.advantage > 0
    assert (up.turns[1], up.tokens) == (None, 6)
    assert (down.turns[1:], down.tokens) == ((None, None), 2)
    assert preflight([group], TURN).turns()[-1] == TurnCount(None, 1, 1, 4)


def test_balance_applies_to_each_turn_and_tokens_that_it_zeroes_still_count():
    balanced = Options(credit="turn", scale_rewards=False, advantage_balance=1.0)
    a, b, c = token_weights([GROUP], balanced)[0]
    # as in the table, without what is below the mean: 28/3 over 20 tokens is 7/15
    assert a.turns == (pytest.approx(30 / 7), pytest.approx(15 / 7), None, None)
    assert (b.turns, c.turns) == ((0.0, 0.0, None), (0.0, None))
    assert [share.weight for share in (a, b, c)] == pytest.approx(WEIGHTS, rel=1e-6)


def test_what_is_only_rounding_of_large_turn_rewards_is_no_difference():
    # sums near 1e9 are rounded to 1e-7: of the last 0.1, what is to go differs by the order of what came before
    orders = [[1e9, 0.1, 0.1], [0.1, 1e9, 0.1]]
    group = [member(math.fsum(rewards), rewards, [2, 2, 2]) for rewards in orders]
    assert len({each.turns[2].reward_to_go for each in group}) == 2
    assert {share.turns[2] for share in token_weights([group], TURN)[0]} == {None}


def test_what_does_not_train_is_counted_in_the_mean_of_its_turn():
    # the mean of turn 0 is that of 3, 0 and 0
    silent = member(3.0, [3.0], [0])
    up, *others = token_weights([[silent, member(0.0, [0.0], [2]), member(0.0, [0.0], [2])]], UNSCALED)[0]
    assert up.reason is Reason.NO_LOGPROBS
    assert [share.turns[0] for share in others] == pytest.approx([-1, -1])
