"""The table of collections, and what they have cost."""

import pytest

from rolloutlab.api.prices import DOLLAR, Tokens
from rolloutlab.settings import Price
from rolloutlab.store.models import CollectionSummary
from rolloutlab.store.results import CollectionResult
from rolloutlab.trajectories.tables import catalogue, dollars, match_collections
from rolloutlab.widgets.collection_list import sampled_from


def summary(name="capitals", **overrides):
    record = {
        "id": 1,
        "generation": 1,
        "bare": True,
        "created_at": "2026-01-31T12:00:59+00:00",
        "plan": {"total": 8, "model": "big"},
        "prompt_tokens": 2_000_000,
        "completion_tokens": 500_000,
        "groups": 2,
        "trajectories": 7,
        "scored": 3,
        "mean_reward": 0.5,
    }
    return CollectionSummary(name=name, **record | overrides)


def test_what_sampling_cost_is_tokens_times_their_price_per_million():
    assert dollars(summary(), {"big": Price(0.25, 2.0)}.get, {}) == pytest.approx(2 * 0.25 + 0.5 * 2.0)


def test_a_judge_costs_as_much_as_its_own_model_and_nothing_is_known_without_its_price():
    judged = {"judge": Tokens(500_000, 100_000)}
    prices = {"big": Price(0.25, 2.0), "judge": Price(10.0, 20.0)}
    assert dollars(summary(), prices.get, judged) == pytest.approx(1.5 * 0.25 + 0.4 * 2.0 + 0.5 * 10 + 0.1 * 20)
    assert dollars(summary(), {"big": Price(0.25, 2.0)}.get, judged) is None


@pytest.mark.parametrize("plan", [{}, {"model": "small"}])
def test_without_a_price_there_is_no_cost(plan):
    assert dollars(summary(plan=plan), {"big": Price(1.0, 1.0)}.get, {}) is None


def test_the_table_says_what_is_there_what_is_missing_and_what_it_took():
    (row,) = catalogue([summary()], {}.get, {}, {}).to_dict("records")
    assert row == {
        "groups": 2,
        "trajectories": 7,
        "missing": 1,
        "scored": 3,
        "mean_reward": 0.5,
        "prompt_tokens": 2_000_000,
        "completion_tokens": 500_000,
        "trains": 0,
        "cut_off": 0,
        "sampled_from": "big",
        "created (UTC)": "2026-01-31 12:00",
    }


def test_the_cost_is_shown_where_any_price_is_known():
    table = catalogue([summary(), summary("rivers", plan={}, id=2)], {"big": Price(0, 1.0)}.get, {}, {})
    assert table["cost ($)"].iloc[0] == 0.5
    assert table["cost ($)"].isna().tolist() == [False, True]


def test_what_a_budget_counted_without_usage_is_the_cost_and_without_both_it_is_not_known():
    unreported = summary(prompt_tokens=0, completion_tokens=0)
    assert dollars(unreported, {"big": Price(1.0, 1.0)}.get, {}) is None
    assert dollars(unreported, {"big": Price(1.0, 1.0)}.get, {}, DOLLAR // 4) == 0.25
    assert dollars(summary(), {"big": Price(0.0, 1.0)}.get, {}, DOLLAR // 4) == 0.5
    assert dollars(summary(prompt_tokens=0, completion_tokens=0, trajectories=0), {"big": Price(1.0, 1.0)}.get, {}) == 0


def test_the_view_says_how_many_collections_of_comparisons_it_leaves_out():
    shown = catalogue([summary()], {}.get, {}, {}, hidden=57)
    for view in (repr(shown), shown._repr_html_()):
        assert "57 collections of comparisons are hidden: %collections --all" in view


def test_a_pattern_chooses_by_name_or_by_label():
    result = [summary(), summary(bare=False), summary("rivers")]
    assert [each.label for each in match_collections(result, "cap*")] == ["capitals", "capitals:1"]
    assert [each.label for each in match_collections(result, "*:1")] == ["capitals:1"]
    assert [each.label for each in match_collections(result, "x*")] == []


@pytest.mark.parametrize("model", ["lab/loop", "lab/loop@6"])
def test_the_checkpoint_that_sampled_is_named_once(model):
    sampled = CollectionResult(2, 4, 8, 0, None, 0, 0, 0, 0, model, 6)
    assert sampled_from(summary(), sampled) == "lab/loop@6"


def test_where_several_checkpoints_sampled_it_is_said_how_many():
    sampled = CollectionResult(2, 4, 8, 0, None, 0, 0, 0, 0, "lab/alpha", 7, others=1)
    assert sampled_from(summary(), sampled) == "lab/alpha@7 and 1 more"
