"""Divisors of the loss of a step: the loss is then a mean over trajectories, over tokens, or a sum over a constant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.objective.advantages import Member, Turn
from rolloutlab.objective.options import Options
from rolloutlab.objective.preflight import Preflight, preflight
from rolloutlab.objective.steps import step_divisor

# Of the first group, the second member is at the mean, and the fourth was cut off; of the second, one has no logprobs.
GROUPS = [
    [
        Member("a", 0.0, (3,)),
        Member("b", 1.0, (5,)),
        Member("c", 2.0, (2, 4)),
        Member("d", 1.0 + 1e-3, (8,), truncated=True),
    ],
    [Member("e", 0.0, (10,)), Member("f", 5.0, ()), Member("g", 1.0, (2,))],
]


def divisors(options: Options, groups: list[list[Member]] = GROUPS) -> list[float]:
    """Of steps of one group each."""
    check = preflight(groups, options)
    return [step_divisor([shares], check, options) for shares in check.shares]


@pytest.mark.parametrize("masked", [False, True])
def test_each_aggregation_has_its_divisor(masked):
    options = Options(mask_truncated=masked)
    trained, members = (3 + 5 + 6 + 10 + 2, 5) if masked else (3 + 5 + 6 + 8 + 10 + 2, 6)
    assert divisors(options) == pytest.approx([4 * trained / members, 3 * trained / members])
    constant = Options(mask_truncated=masked, loss_aggregation="constant", loss_scale_factor=50.0)
    assert divisors(constant) == [200.0, 150.0]
    by_token = Options(mask_truncated=masked, loss_aggregation="token_mean")
    assert divisors(by_token) == pytest.approx([14 if masked else 22, 12])


def test_tokens_with_an_advantage_of_zero_count_in_a_mean_over_tokens():
    group = [Member("a", 0.0, (3,)), Member("b", 1.0, (5,)), Member("c", 2.0, (7,))]
    assert divisors(Options(loss_aggregation="token_mean"), [group]) == [pytest.approx(15)]
    assert preflight([group], Options()).trainable_tokens == 10


def test_of_turns_only_those_that_train_count():
    group = [
        Member("a", 1.0, (6,), turns=(Turn(1.0, 2), Turn(0.0, 4))),
        Member("b", 0.0, (9,), turns=(Turn(0.0, 5), Turn(0.0, 4))),
    ]
    options = Options(loss_aggregation="token_mean", credit="turn")
    assert divisors(options, [group]) == [pytest.approx(2 + 5)]


MEMBER = st.builds(Member, st.just("m"), st.floats(-5, 5), st.integers(1, 300).map(lambda n: (n,)))


@given(st.lists(st.lists(MEMBER, min_size=2, max_size=6), min_size=1, max_size=6))
def test_a_job_of_one_step_whose_members_all_train_has_the_mean_over_its_tokens(groups):
    check = preflight(groups, Options())
    whole = Preflight([[share for share in shares if share.reason is None] for shares in check.shares])
    if whole.trainable_tokens:
        assert step_divisor(whole.shares, whole, Options()) == whole.trainable_tokens + 1e-6
