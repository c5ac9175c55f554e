"""What options do together that none of them says alone."""

from typing import Any

import pytest

from rolloutlab.objective.option_docs import effects

BOUND = "max_negative_advantage_importance_sampling_weight"


def about(name: str, given: dict[str, Any], groups: int | None = None) -> str:
    """What is said about one option."""
    return "; ".join(sentence for told, sentence in effects(given, groups) if told == name)


@pytest.mark.parametrize("given", [{}, {"learning_rate": 2e-3}, {"ppo": False}, {"epsilon_high": 0.3}, {"ppo": None}])
def test_options_that_do_what_they_say_need_no_words(given):
    assert effects(given) == []


LEVEL = "importance_sampling_level"


@pytest.mark.parametrize(
    ("given", "name", "words"),
    [
        ({"ppo": True}, "epsilon", "is 0.2 with ppo"),
        ({"ppo": True}, "epsilon_high", "follows epsilon with ppo: 0.2"),
        ({"ppo": True, "epsilon": 0.3}, "epsilon_high", "follows epsilon with ppo: 0.3"),
        ({"ppo": True, LEVEL: "sequence"}, "epsilon", "clips next to nothing; GSPO has 3e-4 and 4e-4"),
        ({"epsilon": 0.2}, "epsilon_high", "stays at 4 without ppo: ratios go up to 5"),
        ({"epsilon": 1}, "epsilon", "nothing is clipped from below: no ratio is under 0"),
        ({"mask_prob_ratio": True}, "mask_prob_ratio", "hardly masks anything"),
        ({"mask_prob_ratio": True, "epsilon_high": 0}, "mask_prob_ratio", "masks every token of fresh completions"),
        ({"mask_prob_ratio": True, "epsilon": 0.2}, "mask_prob_ratio", "lifted to 1 - epsilon again, 0.8"),
        ({BOUND: 0}, BOUND, "0 is off"),
        ({BOUND: 0.5}, BOUND, "lowers every ratio"),
        ({BOUND: 10}, BOUND, "changes nothing: ratios are clipped at 5 anyway"),
        ({"vendor_k2_tau": 0}, "vendor_k2_tau", "0 is off"),
        ({"vendor_k2_tau": -0.1}, "vendor_k2_tau", "rewards change"),
        ({"advantage_balance": 1}, "advantage_balance", "nothing teaches to avoid"),
        ({"advantage_balance": -1}, "advantage_balance", "nothing teaches to repeat"),
        ({"learning_rate": 0}, "learning_rate", "0 trains nothing"),
        ({"groups_per_step": 0}, "groups_per_step", "0 makes the whole job one step"),
        ({"groups_per_step": 1}, "groups_per_step", "a step of full size for each group"),
        (
            {"epochs": 2},
            "epochs",
            "leave 1 with every epoch, and are clipped at 0 and 5; ppo: true has the narrow range",
        ),
        ({"max_grad_norm": 0}, "max_grad_norm", "0 is off: one unusual step"),
        ({"weight_decay": 0}, "weight_decay", "0 is off"),
        (
            {"precalculate_logprobs": True},
            "precalculate_logprobs",
            "every ratio begins at 1, also for older",
        ),
    ],
)
def test_what_a_person_may_not_expect_is_told_where_it_is_typed(given, name, words):
    assert words in about(name, given)


def test_a_range_as_narrow_as_whole_histories_want_needs_no_words():
    narrow = {"ppo": True, LEVEL: "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
    assert effects(narrow) == []
    assert "GSPO" not in about("epsilon", {**narrow, LEVEL: "token", "epsilon": 0.2})


def test_with_ppo_the_bound_does_something_also_beyond_the_clip_range():
    assert about(BOUND, {BOUND: 10, "ppo": True}) == ""


def test_scaling_is_between_groups_so_one_group_knows_no_difference():
    assert "changes nothing" in about("scale_rewards", {"scale_rewards": False}, 1)
    assert about("scale_rewards", {"scale_rewards": False}, 2) == ""
    assert about("scale_rewards", {"scale_rewards": True}, 1) == ""


def test_what_a_step_has_no_groups_for_is_told():
    assert "no more than 3 of them train" in about("groups_per_step", {"groups_per_step": 8}, 3)
    assert about("groups_per_step", {"groups_per_step": 8}, 8) == ""
    assert about("groups_per_step", {"groups_per_step": 8}) == ""


def test_epochs_with_ppo_are_clipped_in_its_narrow_range():
    assert about("epochs", {"epochs": 2, "ppo": True}).endswith("clipped at 0.8 and 1.2")
    assert about("epochs", {"epochs": 1}) == ""


def told(given: dict[str, Any], truncated: int | None) -> list[str]:
    return [sentence for name, sentence in effects(given, None, truncated) if name == "mask_truncated"]


def test_masking_what_was_cut_off_is_told_to_do_nothing_only_where_nothing_was():
    assert told({"mask_truncated": True}, 0) == ["changes nothing: no answer was cut off"]
    assert told({"mask_truncated": True}, 1) == told({"mask_truncated": True}, None) == []
    assert told({}, 0) == []
