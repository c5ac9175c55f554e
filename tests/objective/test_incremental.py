"""Shares that are kept up to date are those that the trainer would compute, whatever was changed in between."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.objective.advantages import Member, Reason, Turn, token_weights
from rolloutlab.objective.incremental import IncrementalAdvantages
from rolloutlab.objective.options import Options

REWARD = (
    st.sampled_from((0.0, 1.0, 0.5, 0.1, 0.30000000000000004, -1e308, 1.7e308, 1e150))
    | st.floats(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
)
TOKENS_H = st.lists(st.integers(0, 300), min_size=1, max_size=2).map(tuple)
PLAIN = st.builds(
    Member,
    st.just("m"),
    REWARD,
    TOKENS_H,
    st.booleans(),
    turns=st.just(()),
    truncated=st.sampled_from((False, False, True)),
)
TURNS = st.lists(st.builds(Turn, REWARD, st.integers(0, 9)), max_size=3).map(tuple)
WITH_TURNS = st.tuples(PLAIN, TURNS).map(
    lambda drawn: drawn[0]._replace(turns=drawn[1], tokens_H=(*drawn[0].tokens_H, sum(t.tokens for t in drawn[1])))
)
GROUP = st.lists(PLAIN | WITH_TURNS, max_size=5)
OPTIONS = st.builds(
    Options,
    scale_rewards=st.booleans(),
    advantage_balance=st.sampled_from((0.0, 1.0, -1.0, 0.3)),
    credit=st.sampled_from(("trajectory", "turn")),
    loss_aggregation=st.sampled_from(("sequence_mean", "token_mean", "constant")),
    mask_truncated=st.booleans(),
)
EDITS = st.lists(st.dictionaries(st.integers(0, 3), GROUP, min_size=1, max_size=3), max_size=5)


@given(st.lists(GROUP, min_size=4, max_size=4), EDITS, OPTIONS)
def test_after_any_edits_the_shares_are_to_the_last_bit_those_of_the_whole_job(groups, edits, options):
    live = IncrementalAdvantages(groups, options)
    for edit in [{}, *edits]:
        live.change(edit)
        groups = [edit.get(i, group) for i, group in enumerate(groups)]
        expected = token_weights(groups, options)
        assert [live.weights_of(i) for i in range(4)] == expected
        shares = [share for group in expected for share in group]
        training = [share for share in shares if share.reason is None]
        assert live.reasons() == Counter(share.reason for share in shares if share.reason)
        assert live.trainable_trajectories == len(training)
        assert live.trainable_tokens == sum(share.tokens for share in training)
        largest = max(
            (abs(turn.advantage) for share in training for turn in share.by_turn() if turn.advantage), default=0
        )
        assert live.largest == largest
        assert live.trainable_groups == sum(any(share.reason is None for share in group) for group in expected)


def test_a_reward_that_is_larger_than_all_others_changes_the_unit_of_every_group_and_its_leaving_changes_it_back():
    calm = [Member("a", 0.0, (1,)), Member("b", 1e9, (1,))]
    huge = [Member("a", 0.0, (1,)), Member("b", 1e300, (1,))]
    live = IncrementalAdvantages([calm, calm], Options(scale_rewards=False))
    before = live.weights_of(0)
    live.change({1: huge})
    assert live.weights_of(0) == token_weights([calm, huge], Options(scale_rewards=False))[0] != before
    live.change({1: calm})
    assert live.weights_of(0) == before


def test_a_balance_that_takes_everything_away_is_told_as_the_reason():
    half = [[Member("a", 0.0, (0,)), Member("b", 1.0, (3,))]]
    live = IncrementalAdvantages(half, Options(advantage_balance=-1.0))
    assert live.reasons() == {Reason.NO_LOGPROBS: 1, Reason.BALANCED_AWAY: 1}
    assert (live.trainable_trajectories, live.trainable_groups, live.trainable_tokens) == (0, 0, 0)
