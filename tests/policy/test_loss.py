"""The loss of one row against a second, pure Python implementation; gradients against finite differences.

What the loss detaches is not differentiated, so a finite difference of the loss itself would be wrong. The naive loss
therefore takes the logprobs twice: `moving`, which the difference moves, and `held`, from which everything detached is
computed: without `ppo` the whole ratio, and always the old logprob of a token that has none and the k2 penalty.
"""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.objective.options import Options, settle
from rolloutlab.policy.loss import StepLoss, step_loss

NAN = math.nan
LEVELS = ("token", "sequence", "average", "geometric_average")

# One row: three histories whose tokens are interleaved; the third has one token, and none of its old logprobs.
NEW = [-2.0, -0.5, -3.1, -0.2, -1.3, -0.7, -2.2, -0.9, -1.7]
DELTA = [1.9, -0.9, 0.05, NAN, 0.4, -2.5, NAN, 1.1, -0.15]
OLD = [new - delta for new, delta in zip(NEW, DELTA, strict=True)]
ADVANTAGE = [1.5, -0.7, 0.3, 1.1, -1.2, -0.4, 0.8, -2.0, 0.6]
WEIGHT = [0.5, 1.5, 1.0, 0.8, 1.2, 0.3, 2.0, 0.9, 1.1]
HISTORY = [0, 1, 0, 0, 1, 1, 2, 1, 0]

EVERY_OPTION = [
    Options(
        importance_sampling_level=level,
        ppo=ppo,
        mask_prob_ratio=mask,
        max_weight=max_weight,
        k2_tau=k2_tau,
        epsilon=epsilon,
        epsilon_high=epsilon_high,
    )
    for level, ppo, mask, max_weight, k2_tau, (epsilon, epsilon_high) in itertools.product(
        LEVELS,
        (False, True),
        (False, True),
        (None, 0.9, 1.3),
        (0.0, 0.3),
        ((1.0, 4.0), (0.2, 0.2), (0.1, 0.5), (0.0, 0.0)),
    )
]


def option_id(options: Options) -> str:
    flags = ["ppo"] * options.ppo + ["mask"] * options.mask_prob_ratio
    return "-".join(
        [
            options.importance_sampling_level,
            *flags,
            f"max={options.max_weight}",
            f"tau={options.k2_tau}",
            f"{options.epsilon}:{options.epsilon_high}",
        ]
    )


# The loss of one step (docs/training_reference.md), one token at a time.


def naive_ratios(new: list[float], old: list[float], history: list[int], level: str) -> list[float]:
    ratios = []
    for t in range(len(new)):
        r = math.exp(new[t] - old[t])
        same = [new[u] - old[u] for u in range(len(new)) if history[u] == history[t]]
        s = math.exp(sum(same) / len(same))
        ratios.append({"token": r, "sequence": s, "average": (r + s) / 2, "geometric_average": math.sqrt(r * s)}[level])
    return ratios


def naive_loss(
    moving: list[float],
    held: list[float],
    old: list[float],
    advantage: list[float],
    weight: list[float],
    history: list[int],
    options: Options,
) -> float:
    old = [held[t] if math.isnan(old[t]) else old[t] for t in range(len(old))]
    ratios = naive_ratios(moving if options.ppo else held, old, history, options.importance_sampling_level)
    low, high = 1 - options.epsilon, 1 + options.epsilon_high
    total = 0.0
    for t, r in enumerate(ratios):
        if options.max_weight:
            r = min(r, options.max_weight)
        if options.mask_prob_ratio and not low < r < high:
            r = 0.0
        clipped = min(max(r, low), high)
        a = advantage[t] - options.k2_tau * (held[t] - old[t])
        total += weight[t] * -(min(r * a, clipped * a) if options.ppo else clipped * a * moving[t])
    return total / (len(moving) + 1e-6)


def naive_gradient(options: Options, step: float = 1e-6) -> list[float]:
    """Central differences of the naive loss of the row above."""
    rest = (NEW, OLD, ADVANTAGE, WEIGHT, HISTORY, options)
    gradient = []
    for t in range(len(NEW)):
        up, down = list(NEW), list(NEW)
        up[t] += step
        down[t] -= step
        gradient.append((naive_loss(up, *rest) - naive_loss(down, *rest)) / (2 * step))
    return gradient


def loss_of(
    new: list[float],
    old: list[float],
    advantage: list[float] | None = None,
    weight: list[float] | None = None,
    history: list[int] | None = None,
    dtype: torch.dtype = torch.float64,
    **options: object,
) -> tuple[StepLoss, list[float]]:
    """The loss of a row and its gradient; advantages and weights are 1 and the history is one, unless given."""
    new_T = torch.tensor(new, dtype=dtype, requires_grad=True)
    result = step_loss(
        new_T,
        torch.tensor(old, dtype=dtype),
        torch.tensor(advantage or [1.0] * len(new), dtype=dtype),
        torch.tensor(weight or [1.0] * len(new), dtype=dtype),
        torch.tensor(history or [0] * len(new), dtype=torch.int64),
        replace(Options(), **options),
    )
    result.loss.backward()
    assert new_T.grad is not None
    return result, new_T.grad.tolist()


def whole_step(options: Options) -> tuple[StepLoss, list[float]]:
    return loss_of(NEW, OLD, ADVANTAGE, WEIGHT, HISTORY, **vars(options))


@pytest.mark.parametrize("options", EVERY_OPTION, ids=option_id)
def test_the_loss_agrees_with_a_naive_implementation(options):
    expected = naive_loss(NEW, NEW, OLD, ADVANTAGE, WEIGHT, HISTORY, options)
    assert whole_step(options)[0].loss.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "options", [o for o in EVERY_OPTION if (o.epsilon, o.epsilon_high) != (0.0, 0.0)], ids=option_id
)
def test_the_gradient_agrees_with_finite_differences(options):
    settled = [NEW[t] if math.isnan(OLD[t]) else OLD[t] for t in range(len(OLD))]
    kinks = [1 - options.epsilon, 1 + options.epsilon_high, options.max_weight or math.inf]
    ratios = naive_ratios(NEW, settled, HISTORY, options.importance_sampling_level)
    assert min(abs(ratio - kink) for ratio in ratios for kink in kinks) > 1e-3, "the row is too near to a kink"
    _, gradient = whole_step(options)
    assert gradient == pytest.approx(naive_gradient(options), rel=1e-6, abs=1e-8)


def test_the_row_has_ratios_on_both_sides_of_every_bound():
    # else the comparisons above would leave a branch out
    for level in LEVELS:
        settled = [NEW[t] if math.isnan(OLD[t]) else OLD[t] for t in range(len(OLD))]
        ratios = naive_ratios(NEW, settled, HISTORY, level)
        assert min(ratios) < 0.8 < 1.2 < max(ratios)
    assert max(naive_ratios(NEW, settled, HISTORY, "token")) > 5


LOGPROB = st.floats(-8, 0)


@given(
    st.lists(
        st.tuples(LOGPROB, LOGPROB | st.just(NAN), st.floats(-3, 3), st.floats(0, 3), st.integers(0, 2)),
        min_size=1,
        max_size=8,
    ),
    st.builds(
        Options,
        importance_sampling_level=st.sampled_from(LEVELS),
        ppo=st.booleans(),
        mask_prob_ratio=st.booleans(),
        max_weight=st.none() | st.floats(0.1, 10),
        k2_tau=st.floats(-1, 1),
        epsilon=st.floats(0, 2),
        epsilon_high=st.floats(0, 5),
    ),
)
def test_the_loss_of_any_row_agrees_with_the_naive_implementation(tokens, options):
    new, old, advantage, weight, history = map(list, zip(*tokens, strict=True))
    seen = sorted(set(history))
    history = [seen.index(h) for h in history]
    expected = naive_loss(new, new, old, advantage, weight, history, options)
    result, gradient = loss_of(new, old, advantage, weight, history, **vars(options))
    bounds = [1 - options.epsilon, 1 + options.epsilon_high]
    if not options.mask_prob_ratio or all(abs(r - b) > 1e-12 for r in result.ratio_T.tolist() for b in bounds):
        assert result.loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert all(map(math.isfinite, gradient))


def row_of_one(delta: float, advantage: float, **options: object) -> tuple[float, float]:
    """Loss and gradient of one token whose new logprob is -1, without the 1e-6 below the fraction."""
    result, (gradient,) = loss_of([-1.0], [-1.0 - delta], [advantage], **options)
    return result.loss.item() * (1 + 1e-6), gradient * (1 + 1e-6)


@pytest.mark.parametrize("advantage", [1.0, -2.0])
@pytest.mark.parametrize(
    ("ratio", "factor"), [(0.5, 0.5), (1.0, 1.0), (2.0, 2.0), (4.9, 4.9), (5.1, 5.0), (100.0, 5.0), (1e-9, 1e-9)]
)
def test_without_ppo_the_clipped_ratio_weighs_the_logprob(ratio, factor, advantage):
    loss, gradient = row_of_one(math.log(ratio), advantage)
    assert loss == pytest.approx(factor * advantage, rel=1e-9)  # -factor · A · -1
    assert gradient == pytest.approx(-factor * advantage, rel=1e-9)  # the ratio is detached


@pytest.mark.parametrize(
    ("ratio", "advantage", "surrogate", "slope"),
    [
        (1.0, 1.0, 1.0, 1.0),
        (1.1, 1.0, 1.1, 1.1),
        (1.5, 1.0, 1.2, 0.0),  # clipped: nothing more to gain
        (1.5, -1.0, -1.5, -1.5),  # never clipped where it would get better
        (0.5, 1.0, 0.5, 0.5),
        (0.5, -1.0, -0.8, 0.0),
        (0.9, -1.0, -0.9, -0.9),
    ],
)
def test_with_ppo_the_ratio_is_clipped_only_where_it_has_gone_far_enough(ratio, advantage, surrogate, slope):
    loss, gradient = row_of_one(math.log(ratio), advantage, ppo=True, epsilon=0.2, epsilon_high=0.2)
    assert loss == pytest.approx(-surrogate, rel=1e-9)
    assert gradient == pytest.approx(-slope, rel=1e-9)  # d exp(delta) is exp(delta)


def test_the_clip_range_need_not_be_symmetric():
    options = {"epsilon": 0.1, "epsilon_high": 0.5}
    assert row_of_one(math.log(0.3), 1.0, **options)[1] == pytest.approx(-0.9)
    assert row_of_one(math.log(3.0), 1.0, **options)[1] == pytest.approx(-1.5)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_the_maximal_weight_bounds_the_ratio_whatever_the_sign_of_the_advantage(advantage):
    assert row_of_one(math.log(3.0), advantage, max_weight=2.0)[1] == pytest.approx(-2.0 * advantage)
    assert row_of_one(math.log(1.5), advantage, max_weight=2.0)[1] == pytest.approx(-1.5 * advantage)


@pytest.mark.parametrize(
    ("options", "largest"),
    [
        ({}, {1: 5, -1: 5}),
        ({"ppo": True}, {1: 1.19, -1: 100}),
        ({"max_weight": 2.0}, {1: 2, -1: 2}),
        ({"ppo": True, "max_weight": 2.0}, {1: 1.19, -1: 1.99}),
    ],
)
def test_how_much_a_token_of_older_completions_counts_at_most(options, largest):
    """As docs/training.md has it of stale completions: `ppo` bounds nothing where the advantage is negative."""
    settled = vars(settle(ExperimentalTrainingConfig(ppo=options.get("ppo", False)))) | options
    for advantage, bound in largest.items():
        weights = [
            abs(row_of_one(math.log(ratio), advantage, **settled)[1])
            for ratio in (0.01, 0.5, 1.0, 1.19, 1.3, 1.99, 3.0, 10.0, 100.0)
        ]
        assert max(weights) == pytest.approx(bound)


def test_the_maximal_weight_comes_before_the_mask():
    # 3 is outside 1 ± 0.5 but its bound 1.2 is inside
    options = {"max_weight": 1.2, "mask_prob_ratio": True, "epsilon": 0.5, "epsilon_high": 0.5}
    assert row_of_one(math.log(3.0), 1.0, **options)[1] == pytest.approx(-1.2)


def test_without_ppo_a_masked_ratio_is_lifted_to_the_lower_bound():
    options = {"mask_prob_ratio": True, "epsilon": 0.3, "epsilon_high": 0.3}
    assert row_of_one(math.log(3.0), 1.0, **options)[1] == pytest.approx(-0.7)
    assert row_of_one(math.log(0.1), 1.0, **options)[1] == pytest.approx(-0.7)
    assert row_of_one(math.log(1.2), 1.0, **options)[1] == pytest.approx(-1.2)


def test_with_ppo_a_masked_token_has_no_gradient():
    options = {"mask_prob_ratio": True, "epsilon": 0.3, "epsilon_high": 0.3, "ppo": True}
    assert row_of_one(math.log(3.0), 1.0, **options) == (0, 0)
    assert row_of_one(math.log(3.0), -1.0, **options) == (pytest.approx(0.7), 0)
    assert row_of_one(math.log(1.2), -1.0, **options)[1] == pytest.approx(1.2)


def test_a_ratio_at_the_very_bound_is_masked():
    result, _ = loss_of([-1.0, -1.0], [-1.0, -1.0], mask_prob_ratio=True, epsilon=0.0, epsilon_high=4.0)
    assert result.masked_T.tolist() == [True, True]
    result, _ = loss_of([-1.0, -1.0], [-1.0, -1.0], mask_prob_ratio=True, epsilon=4.0, epsilon_high=0.0)
    assert result.masked_T.tolist() == [True, True]


@pytest.mark.parametrize("level", LEVELS)
def test_the_k2_penalty_is_of_the_tokens_own_change_whatever_the_level(level):
    deltas = [0.5, -0.3, 0.1]
    new, old = [-1.0] * 3, [-1.0 - delta for delta in deltas]
    options = {"importance_sampling_level": level, "epsilon": 0.0, "epsilon_high": 0.0}  # every ratio counts as 1
    _, gradient = loss_of(new, old, k2_tau=0.4, **options)
    assert gradient == pytest.approx([-(1 - 0.4 * delta) / (3 + 1e-6) for delta in deltas], rel=1e-9)


def test_the_k2_penalty_is_not_differentiated():
    # at delta 0 the penalty is 0; a gradient through it would add k2_tau · r
    _, with_penalty = loss_of([-1.0, -2.0], [-1.0, -2.0], ppo=True, k2_tau=0.7)
    _, without = loss_of([-1.0, -2.0], [-1.0, -2.0], ppo=True)
    assert with_penalty == without == pytest.approx([-1 / (2 + 1e-6)] * 2)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("token", [2.0, 8.0]),
        ("sequence", [4.0, 4.0]),
        ("average", [3.0, 6.0]),
        ("geometric_average", [math.sqrt(8), math.sqrt(32)]),
    ],
)
def test_the_level_says_which_ratio_a_token_has(level, expected):
    result, _ = loss_of([-1.0, -1.0], [-1 - math.log(2), -1 - math.log(8)], importance_sampling_level=level)
    assert result.ratio_T.tolist() == pytest.approx(expected, rel=1e-12)


def test_the_mean_of_a_history_is_over_its_own_tokens_wherever_they_are():
    new, old = [-1.0] * 4, [-1 - math.log(2), -1.0, -1 - math.log(8), -1 - math.log(9)]
    result, _ = loss_of(new, old, history=[0, 1, 0, 1], importance_sampling_level="sequence")
    assert result.ratio_T.tolist() == pytest.approx([4, 3, 4, 3], rel=1e-12)


def test_a_token_without_an_old_logprob_counts_with_a_change_of_zero_in_the_mean_of_its_history():
    result, _ = loss_of([-1.0, -1.0], [-1 - math.log(9), NAN], importance_sampling_level="sequence")
    assert result.ratio_T.tolist() == pytest.approx([3, 3], rel=1e-12)


def test_with_ppo_the_ratio_of_a_sequence_is_differentiated_through_every_token_of_it_and_no_other():
    # the row's loss is -(2·s_0 + 1·s_1)/3, and each s_h moves by s_h / its length with each of its tokens
    new, old = [-1.0] * 3, [-1 - math.log(1.1)] * 3
    _, gradient = loss_of(
        new, old, history=[0, 1, 0], importance_sampling_level="sequence", ppo=True, epsilon=0.2, epsilon_high=0.2
    )
    assert gradient == pytest.approx([-1.1 / (3 + 1e-6)] * 3, rel=1e-9)
    _, of_one = loss_of(
        new,
        old,
        [1.0, 0.0, 0.0],
        history=[0, 1, 0],
        importance_sampling_level="sequence",
        ppo=True,
        epsilon=0.2,
        epsilon_high=0.2,
    )
    assert of_one == pytest.approx([-0.55 / (3 + 1e-6), 0, -0.55 / (3 + 1e-6)], rel=1e-9)


@pytest.mark.parametrize("ppo", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_a_row_without_any_old_logprobs_trains_as_on_policy(level, ppo):
    result, gradient = loss_of([-1.0, -2.0], [NAN, NAN], [0.5, -1.0], ppo=ppo, importance_sampling_level=level)
    assert result.ratio_T.tolist() == [1.0, 1.0]
    if level in ("token", "sequence"):
        expected = [-0.5, 1.0] if level == "token" or not ppo else [0.25, 0.25]
        assert gradient == pytest.approx([g / (2 + 1e-6) for g in expected], rel=1e-9)
    assert sum(gradient) == pytest.approx(0.5 / (2 + 1e-6), rel=1e-9)


def test_the_loss_is_the_weighted_sum_over_the_number_of_tokens_of_the_row():
    result, gradient = loss_of([-1.0, -3.0], [-1.0, -3.0], [2.0, -1.0], [0.5, 1.5])
    assert result.loss.item() == pytest.approx((0.5 * 2 * 1 - 1.5 * 1 * 3) / 2.000001, rel=1e-12)
    assert gradient == pytest.approx([-1.0 / 2.000001, 1.5 / 2.000001], rel=1e-12)


def test_the_options_of_the_advantages_do_not_change_the_loss():
    reference = whole_step(Options())
    other = whole_step(
        Options(
            advantage_balance=0.5, learning_rate=1.0, precalculate_logprobs=True, scale_rewards=False, unknown=("x",)
        )
    )
    assert other[0].loss.item() == reference[0].loss.item()
    assert other[1] == reference[1]


@pytest.mark.parametrize("level", LEVELS)
def test_the_losses_of_the_parts_of_a_step_add_up_to_that_of_the_step(level):
    generator = torch.Generator().manual_seed(0)
    new_T, old_T, advantage_T, weight_T = torch.randn(4, 10, generator=generator, dtype=torch.float64)
    history_T = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 3])
    options = Options(ppo=True, importance_sampling_level=level)
    row, divisor = step_loss(new_T, old_T, advantage_T, weight_T, history_T, options), 10 + 1e-6
    parts = [
        step_loss(
            new_T[at], old_T[at], advantage_T[at], weight_T[at], history_T[at] - history_T[at][0], options, divisor
        )
        for at in (slice(3), slice(3, 7), slice(7, 10))
    ]
    assert sum(part.loss for part in parts).item() == pytest.approx(row.loss.item())
    assert torch.equal(torch.cat([part.ratio_T for part in parts]), row.ratio_T)


def test_an_empty_row_has_a_loss_of_zero():
    empty = torch.zeros(0, requires_grad=True)
    result = step_loss(
        empty, empty.detach(), empty.detach(), empty.detach(), torch.zeros(0, dtype=torch.int64), Options()
    )
    assert result.loss.item() == 0.0
    assert len(result.ratio_T) == 0


def test_what_is_reported_carries_no_gradient():
    result, _ = loss_of([-1.0], [-1.5], ppo=True, mask_prob_ratio=True)
    assert result.loss.requires_grad
    assert not any(seen.requires_grad for seen in (result.ratio_T, result.clipped_T, result.masked_T))


def test_the_reported_ratio_is_the_one_before_any_bound():
    result, _ = loss_of([-1.0], [-1 - math.log(9)], max_weight=2.0, mask_prob_ratio=True, epsilon=0.2, epsilon_high=0.2)
    assert result.ratio_T.tolist() == pytest.approx([9.0])


def test_clipped_are_the_tokens_outside_the_range_and_masked_none_without_the_mask():
    old = [-1 - math.log(ratio) for ratio in (0.5, 1.0, 1.1, 3.0)]
    result, _ = loss_of([-1.0] * 4, old, epsilon=0.2, epsilon_high=0.2)
    assert result.clipped_T.tolist() == [True, False, False, True]
    assert result.masked_T.tolist() == [False] * 4


def test_clipped_without_ppo_are_also_the_tokens_whose_weight_is_bounded_within_the_range():
    old = [-1 - math.log(ratio) for ratio in (0.5, 1.0, 2.0, 3.0)]
    result, _ = loss_of([-1.0] * 4, old, max_weight=1.5)
    assert result.clipped_T.tolist() == [False, False, True, True]


def test_with_the_mask_what_is_outside_the_range_is_masked_and_not_clipped():
    old = [-1 - math.log(ratio) for ratio in (0.5, 1.0, 1.1, 3.0)]
    result, _ = loss_of([-1.0] * 4, old, mask_prob_ratio=True, epsilon=0.2, epsilon_high=0.2)
    assert result.masked_T.tolist() == [True, False, False, True]
    assert result.clipped_T.tolist() == [False] * 4


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"),
    [
        (0.5, 1.0, False),  # below the range, where more is wanted: the gradient goes on
        (0.5, -1.0, True),
        (3.0, 1.0, True),
        (3.0, -1.0, False),
        (1.1, 1.0, False),
        (3.0, 0.0, False),  # there is no gradient that could be cut
    ],
)
def test_with_ppo_clipped_are_the_tokens_whose_gradient_is_cut(ratio, advantage, clipped):
    result, [slope] = loss_of([-1.0], [-1 - math.log(ratio)], [advantage], ppo=True, epsilon=0.2, epsilon_high=0.2)
    assert result.clipped_T.tolist() == [clipped]
    assert (slope == 0) == (clipped or advantage == 0)


@pytest.mark.parametrize("options", [o for o in EVERY_OPTION if o.importance_sampling_level == "token"], ids=option_id)
def test_what_counts_as_clipped_is_what_a_bound_does_to_the_gradient(options):
    known = [t for t in range(len(NEW)) if not math.isnan(OLD[t])]
    new, old, advantage = ([values[t] for t in known] for values in (NEW, OLD, ADVANTAGE))
    result, slopes = loss_of(new, old, advantage, **vars(options))
    for t, (clipped, masked) in enumerate(zip(result.clipped_T.tolist(), result.masked_T.tolist(), strict=True)):
        r = math.exp(new[t] - old[t])
        wanted = -r * (advantage[t] - options.k2_tau * (new[t] - old[t])) / len(new)
        changed = slopes[t] == 0 if options.ppo else slopes[t] != pytest.approx(wanted, rel=1e-5)
        assert not (clipped and masked)
        assert changed == clipped or masked, (t, r, slopes[t], wanted)


EXTREME = -9999.0  # some services send this logprob for a token they think impossible


@pytest.mark.parametrize("max_weight", [None, 10.0])
@pytest.mark.parametrize(
    ("ppo", "mask", "loss", "slope"),
    [
        (False, False, 1.2, -1.2),
        (False, True, 0.8, -0.8),  # the masked 0 is lifted to the lower bound
        (True, False, -1.2, 0.0),
        (True, True, 0.0, 0.0),
    ],
)
def test_a_ratio_too_large_to_represent_is_bounded_like_any_other(ppo, mask, loss, slope, max_weight):
    result, gradient = loss_of(
        [-1.0],
        [EXTREME],
        dtype=torch.float32,
        ppo=ppo,
        mask_prob_ratio=mask,
        max_weight=max_weight,
        epsilon=0.2,
        epsilon_high=0.2,
    )
    assert result.loss.item() == pytest.approx(loss, rel=1e-5)
    assert gradient == pytest.approx([slope], rel=1e-5)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("advantage", [1.0, 0.0])
def test_with_ppo_one_ratio_too_large_to_represent_spoils_no_gradient(level, mask, advantage):
    result, gradient = loss_of(
        [-1.0, -2.0, -3.0],
        [EXTREME, -2.0, -3.0],
        [advantage] * 3,
        history=[0, 0, 1],
        dtype=torch.float32,
        importance_sampling_level=level,
        ppo=True,
        mask_prob_ratio=mask,
        epsilon=0.2,
        epsilon_high=0.2,
    )
    assert math.isfinite(result.loss.item())
    assert gradient[0] == 0.0
    assert gradient[2] == pytest.approx(-advantage / 3, rel=1e-5)
    assert gradient[1] in (0.0, pytest.approx(-advantage / 3, rel=1e-5))  # its own ratio, or that of its history


def test_in_float32_the_loss_is_the_same_but_for_rounding():
    options = Options(ppo=True, importance_sampling_level="average", k2_tau=0.1)
    exact, gradient = whole_step(options)
    rounded, rounded_gradient = loss_of(NEW, OLD, ADVANTAGE, WEIGHT, HISTORY, torch.float32, **vars(options))
    assert rounded.loss.dtype == torch.float32
    assert rounded.loss.item() == pytest.approx(exact.loss.item(), rel=1e-5)
    assert rounded_gradient == pytest.approx(gradient, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("bound", [1.5, 2.0, 50.0])
def test_without_ppo_a_bound_of_the_ratio_beyond_the_clip_range_changes_nothing_as_the_form_says(bound, mask):
    options = Options(epsilon=0.3, epsilon_high=0.5, mask_prob_ratio=mask)
    tensors = [torch.tensor(values) for values in (NEW, OLD, ADVANTAGE, WEIGHT, HISTORY)]
    free, bounded = (step_loss(*tensors, each) for each in (options, replace(options, max_weight=bound)))
    assert free.loss == bounded.loss
    wanted = step_loss(*tensors, replace(options, max_weight=bound, ppo=True)).loss
    assert (wanted == step_loss(*tensors, replace(options, ppo=True)).loss) == (mask or bound > 10)


def test_without_ppo_what_is_masked_is_lifted_to_the_lower_bound_as_the_form_says():
    new, old = torch.tensor([-0.5], requires_grad=True), torch.tensor([-3.0])
    options = Options(epsilon=0.2, epsilon_high=0.2, mask_prob_ratio=True)
    step_loss(new, old, torch.ones(1), torch.ones(1), torch.zeros(1, dtype=torch.long), options).loss.backward()
    assert new.grad.item() == pytest.approx(-0.8, rel=1e-4)
