"""The options in words: what they say is what the wire takes, and what the pages and the help show."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.objective.algorithms import ALGORITHMS, algorithm_table
from rolloutlab.objective.option_docs import (
    OPTIONS,
    beyond_specification,
    contradictions,
    help_lines,
    markdown_table,
    problems,
    read,
)
from rolloutlab.objective.options import settle

DOCS = Path(__file__).parents[2] / "docs"
SAID = [
    ({"advantage_balance": 3}, "advantage_balance: 3 is outside -1 to 1"),
    ({"epsilon": -0.1}, "epsilon: -0.1 is below 0"),
    ({"epsilon_high": math.inf}, "epsilon_high: inf is not finite"),
    ({"learning_rate": "much"}, "learning_rate: 'much' is not a number"),
    ({"kimi_k2_tau": True}, "kimi_k2_tau: True is not a number"),
    ({"ppo": 1}, "ppo: 1 is neither true nor false"),
    ({"kl_ref_step": 1.0}, "kl_ref_step: 1.0 is not an integer"),
    ({"kl_ref_step": -1}, "kl_ref_step: -1 is outside 0 to 999,999,999"),
    (
        {"importance_sampling_level": "word"},
        "importance_sampling_level: 'word' must be one of token, sequence, average, geometric_average",
    ),
    ({"loss_scale_factor": 0}, "loss_scale_factor: 0 is not above 0"),
    ({"epochs": 17}, "epochs: 17 is outside 1 to 16"),
    ({"groups_per_step": -1}, "groups_per_step: -1 is outside 0 to 999,999,999"),
    ({"credit": "turns"}, "credit: 'turns' must be one of trajectory, turn"),
]


def accepted(name, value) -> bool:
    try:
        ExperimentalTrainingConfig.model_validate({name: value})
    except ValidationError:
        return False
    return True


def test_every_option_of_the_wire_is_there_in_its_order():
    assert [*OPTIONS, "custom_loss"] == list(ExperimentalTrainingConfig.model_fields)


@pytest.mark.parametrize(("wrong", "said"), SAID)
def test_what_is_wrong_is_said_in_words(wrong, said):
    ((found, _),) = problems(wrong)
    assert found == said


VALUES = st.one_of(
    st.floats(),
    st.integers(-3, 3),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
    st.sampled_from(("sequence", "turn", "token_mean")),
    st.just(10**400),
)


@given(st.sampled_from([*OPTIONS, "kimi_k2_tau"]), VALUES)
def test_a_value_has_a_problem_exactly_when_the_wire_refuses_it(name, value):
    assert (not problems({name: value})) == accepted(name, value)


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_every_example_is_fine_and_is_not_the_default(option):
    value = read(option.example)
    assert option.problem(value) is None
    assert settle(ExperimentalTrainingConfig.model_validate({option.name: value})) != settle(None)


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_what_an_option_can_be_is_fine(option):
    for value in option.values:
        assert option.problem({"true": True, "false": False}.get(value, value)) is None
    for bound in (option.low, option.high):
        outside = not math.isfinite(bound) or (option.above and bound == option.low)
        assert outside or option.problem(bound) is None


def test_options_that_do_not_go_together_are_named_with_what_to_type():
    assert contradictions({"truncated_importance_sampling": 2.0, "precalculate_logprobs": True}) == []
    assert contradictions({"truncated_importance_sampling": 0}) == []
    [(name, why, hint)] = contradictions({"truncated_importance_sampling": 2.0})
    assert (name, hint) == ("truncated_importance_sampling", "precalculate_logprobs: true")
    assert "a second time" in why
    replaced = contradictions({"custom_loss": "0" * 64, "ppo": True, "epsilon": 0.2, "learning_rate": 1e-3})
    assert [each[0] for each in replaced] == ["ppo", "epsilon"]
    assert contradictions({"custom_loss": "0" * 64, "credit": "turn"}) == []


def test_the_options_that_the_specification_lacks_are_named():
    assert beyond_specification({"ppo": True, "epsilon": 0.2}) == []
    assert beyond_specification({"ppo": True, "kl_penalty_coef": 0.1, "kl_ref_step": None}) == ["kl_penalty_coef"]


def test_the_page_has_the_table_of_the_options():
    assert markdown_table() in (DOCS / "reference.md").read_text()


def test_the_help_has_a_line_for_every_option():
    assert [line.partition(":")[0] for line in help_lines()][1 + len(ALGORITHMS) :] == list(OPTIONS)


def test_the_help_begins_with_the_algorithms_and_what_each_stands_for():
    first, *lines = help_lines()[: 1 + len(ALGORITHMS)]
    assert first == (
        "algorithm: several options by one name, grpo, dr_grpo, dapo, gspo, cispo, rloo; what is typed beside it wins "
        "(default none)"
    )
    assert "algorithm: cispo is loss_aggregation: token_mean" in lines


def test_the_page_begins_with_the_table_of_the_algorithms():
    assert algorithm_table() in (DOCS / "training.md").read_text()
