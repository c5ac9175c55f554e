"""Algorithms by name: what each stands for, and that what is typed wins."""

import pytest

from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.errors import InputError
from rolloutlab.objective.algorithms import ALGORITHMS, add_algorithm, algorithm_problem, expand
from rolloutlab.objective.option_docs import OPTIONS, beyond_specification, contradictions, problems
from rolloutlab.objective.options import settle

MOST = 512


def options_of(**given):
    return expand(given, lambda: MOST).options


SETTLED = {
    "grpo": {"ppo": True, "epsilon": 0.2, "epsilon_high": 0.2, "loss_aggregation": "sequence_mean"},
    "dr_grpo": {
        "ppo": True, "epsilon": 0.2, "epsilon_high": 0.2, "scale_rewards": False,
        "loss_aggregation": "constant", "loss_scale_factor": MOST,
    },
    "dapo": {
        "ppo": True, "epsilon": 0.2, "epsilon_high": 0.28, "loss_aggregation": "token_mean", "mask_truncated": True,
    },
    "gspo": {
        "ppo": True, "epsilon": 3e-4, "epsilon_high": 4e-4, "importance_sampling_level": "sequence",
        "loss_aggregation": "sequence_mean",
    },
    "cispo": {"ppo": False, "epsilon": 1.0, "epsilon_high": 4.0, "loss_aggregation": "token_mean"},
    "rloo": {"ppo": False, "scale_rewards": False, "loss_aggregation": "constant", "loss_scale_factor": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_name_settles_to_the_options_of_its_paper(name):
    settled = vars(settle(ExperimentalTrainingConfig.model_validate(options_of(algorithm=name))))
    others = vars(settle(None))
    assert settled == {**others, **SETTLED[name]}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_only_what_differs_from_a_default_is_sent_and_it_is_valid_together(name):
    options = options_of(algorithm=name)
    assert problems(options) == contradictions(options) == []
    assert not any(OPTIONS[option].is_default(value) for option, value in options.items())


def test_two_of_them_need_nothing_that_the_specification_lacks():
    portable = [name for name in ALGORITHMS if not beyond_specification(options_of(algorithm=name))]
    assert portable == ["grpo", "gspo"]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (
            {"algorithm": "dapo", "epsilon_high": 0.3, "learning_rate": 1e-3},
            {
                "ppo": True,
                "loss_aggregation": "token_mean",
                "mask_truncated": True,
                "epsilon_high": 0.3,
                "learning_rate": 1e-3,
            },
        ),
        ({"algorithm": "grpo", "ppo": None}, {"ppo": None}),
        ({"algorithm": "rloo", "loss_scale_factor": 8}, {**ALGORITHMS["rloo"].options, "loss_scale_factor": 8}),
        (
            {"algorithm": "rloo", "loss_aggregation": "token_mean"},
            {"scale_rewards": False, "loss_aggregation": "token_mean"},
        ),
        (
            {"algorithm": "dr_grpo", "loss_aggregation": None},
            {"ppo": True, "scale_rewards": False, "loss_aggregation": None},
        ),
        ({"algorithm": None, "epsilon": 0.1}, {"epsilon": 0.1}),
    ],
)
def test_what_is_typed_wins_and_takes_with_it_what_has_no_meaning_without(given, options):
    assert options_of(**given) == options
    assert contradictions({name: value for name, value in options.items() if value is not None}) == []


def test_the_longest_answer_is_asked_for_only_where_an_algorithm_divides_by_it():
    def unknown():
        raise AssertionError

    for given in ({"algorithm": "dapo"}, {"algorithm": "dr_grpo", "loss_scale_factor": 9}, {}):
        expand(given, unknown)
    with pytest.raises(AssertionError):
        expand({"algorithm": "dr_grpo"}, unknown)
    assert "loss_scale_factor" not in expand({"algorithm": "dr_grpo"}, lambda: None).options
    typed = str(expand({"algorithm": "dr_grpo", "loss_scale_factor": 9}, lambda: 24))
    assert typed.endswith("loss_aggregation: constant; as typed: loss_scale_factor: 9")


def test_it_is_told_in_a_line_with_what_was_typed_instead():
    given = {"algorithm": "dapo", "epsilon_high": 0.3, "mask_truncated": True}
    assert str(expand(given, lambda: MOST)) == (
        "algorithm dapo (arXiv 2503.14476): ppo: true, loss_aggregation: token_mean; as typed: epsilon_high: 0.3"
    )
    assert str(expand({"epsilon": 0.1}, lambda: MOST)) == ""


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("drgrpo", "dr_grpo"), ("DAPO", "dapo"), ("dr-grpo", "dr_grpo"), ("zeal", "grpo"), ("ppo", "grpo"), (3, "grpo")],
)
def test_an_unknown_name_has_a_close_one_as_its_hint(typed, hint):
    message, fix = algorithm_problem(typed)
    assert message == f"algorithm: {typed!r} is not one of grpo, dr_grpo, dapo, gspo, cispo, rloo"
    assert fix == f"algorithm: {hint}"
    assert problems({"algorithm": typed, "epsilon": -1})[0] == (message, fix)


def test_a_word_that_is_nearly_it_has_it_as_its_hint():
    assert problems({"algoritm": "dapo"}) == [("unknown option 'algoritm'", "algorithm: dapo")]


def test_it_is_given_once():
    assert add_algorithm({"epsilon": 0.1}, None) == {"epsilon": 0.1}
    assert add_algorithm(None, "dapo") == add_algorithm({"algorithm": "dapo"}, "dapo") == {"algorithm": "dapo"}
    with pytest.raises(InputError, match="given twice: grpo and dapo"):
        add_algorithm({"algorithm": "grpo"}, "dapo")
