"""The table of collections, and what they have cost."""

from dataclasses import dataclass

import pytest

from rolloutlab.store.models import CollectionSummary
from rolloutlab.trajectories.tables import catalogue, cost


@dataclass(frozen=True)
class Price:
    prompt: float
    completion: float


def summary(name="capitals", **overrides):
    record = {
        "id": 1,
        "generation": 1,
        "newest": True,
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
    assert cost(summary(), {"big": Price(0.25, 2.0)}) == pytest.approx(2 * 0.25 + 0.5 * 2.0)


@pytest.mark.parametrize("plan", [{}, {"model": "small"}])
def test_without_a_price_there_is_no_cost(plan):
    assert cost(summary(plan=plan), {"big": Price(1.0, 1.0)}) is None


def test_the_table_says_what_is_there_what_is_missing_and_what_it_took():
    (row,) = catalogue([summary()], None, {}).to_dict("records")
    assert row == {
        "groups": 2,
        "trajectories": 7,
        "missing": 1,
        "scored": 3,
        "mean_reward": 0.5,
        "prompt_tokens": 2_000_000,
        "completion_tokens": 500_000,
        "created (UTC)": "2026-01-31 12:00",
    }


def test_the_cost_is_shown_where_any_price_is_known():
    table = catalogue([summary(), summary("rivers", plan={})], None, {"big": Price(0, 1.0)})
    assert table["cost ($)"].iloc[0] == 0.5
    assert table["cost ($)"].isna().tolist() == [False, True]


def test_a_pattern_chooses_by_name_or_by_label():
    result = [summary(), summary(newest=False), summary("rivers")]
    assert list(catalogue(result, "cap*", {}).index) == ["capitals", "capitals:1"]
    assert list(catalogue(result, "*:1", {}).index) == ["capitals:1"]
    assert list(catalogue(result, "x*", {}).index) == []
