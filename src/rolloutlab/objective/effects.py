"""What options do together that none of them says alone: one that follows another, one that changes nothing."""

from collections.abc import Iterator, Mapping
from typing import Any

from rolloutlab.objective.options import Options, settle
from rolloutlab.wire.training import ExperimentalTrainingConfig

Effect = tuple[str, str]

_OF_TOKENS = 0.01
"""A range of this size is one for the ratios of single tokens."""


def effects(given: Mapping[str, Any], trainable_groups: int | None = None) -> list[Effect]:
    """The name of an option and a sentence about it, for everything that a person may not expect.

    given: options as they are typed, all of them right; None is the default. trainable_groups: of the job, if known.
    """
    kept = {name: value for name, value in given.items() if value is not None}
    options = settle(ExperimentalTrainingConfig.model_validate(kept))
    return [
        *_clipping(kept, options),
        *_masking(options),
        *_bounding(kept, options),
        *_weighing(kept, options, trainable_groups),
    ]


def _clipping(given: Mapping[str, Any], options: Options) -> Iterator[Effect]:
    high = f"{1 + options.epsilon_high:g}"
    if options.ppo and "epsilon" not in given:
        yield "epsilon", "is 0.2 with ppo"
    if options.ppo and "epsilon_high" not in given:
        yield "epsilon_high", f"follows epsilon with ppo: {options.epsilon:g}"
    if not options.ppo and "epsilon" in given and "epsilon_high" not in given:
        yield "epsilon_high", f"stays at 4 without ppo: ratios go up to {high}"
    narrow = min(options.epsilon, options.epsilon_high)
    if options.ppo and options.importance_sampling_level == "sequence" and narrow >= _OF_TOKENS:
        yield "epsilon", "a whole history's ratio hardly leaves 1: this clips next to nothing; GSPO has 3e-4 and 4e-4"
    if "epsilon" in given and options.epsilon >= 1:
        yield "epsilon", f"nothing is clipped from below: no ratio is under {1 - options.epsilon:g}"


def _masking(options: Options) -> Iterator[Effect]:
    if not options.mask_prob_ratio:
        return
    low, high = 1 - options.epsilon, 1 + options.epsilon_high
    if low == 1 or high == 1:
        yield "mask_prob_ratio", "masks every token of fresh completions, whose ratio is exactly 1: widen the range"
    elif options.epsilon >= 1 and options.epsilon_high >= 4:
        yield "mask_prob_ratio", f"hardly masks anything: only ratios of {high:g} and above are outside the range"
    elif not options.ppo and low > 0:
        yield "mask_prob_ratio", f"without ppo what is masked is lifted to 1 - epsilon again, {low:g}"


def _bounding(given: Mapping[str, Any], options: Options) -> Iterator[Effect]:
    name = "max_negative_advantage_importance_sampling_weight"
    bound = options.max_weight
    if bound is None:
        if name in given:
            yield name, "0 is off"
    elif bound < 1:
        yield name, "is below 1, the ratio of fresh completions: it lowers every ratio"
    elif not options.ppo and bound >= 1 + options.epsilon_high:
        yield name, f"changes nothing: ratios are clipped at {1 + options.epsilon_high:g} anyway"


def _weighing(given: Mapping[str, Any], options: Options, groups: int | None) -> Iterator[Effect]:
    if options.k2_tau == 0 and "vendor_k2_tau" in given:
        yield "vendor_k2_tau", "0 is off"
    if options.k2_tau < 0:
        yield "vendor_k2_tau", "below 0 it rewards change instead of keeping the policy near"
    if options.advantage_balance == 1:
        yield "advantage_balance", "1 removes what is below its group's mean: nothing teaches to avoid"
    if options.advantage_balance == -1:
        yield "advantage_balance", "-1 removes what is above its group's mean: nothing teaches to repeat"
    if options.learning_rate == 0:
        yield "learning_rate", "0 trains nothing: the new checkpoint answers as the old one does"
    if (options.learning_rate or 0) > 1:
        yield "learning_rate", f"{options.learning_rate:g} is far above anything that trains"
    if not options.scale_rewards and groups == 1:
        yield "scale_rewards", "changes nothing where one group trains: it weighs groups against each other"
    if options.precalculate_logprobs:
        yield (
            "precalculate_logprobs",
            "every ratio begins at 1, also for older completions, whose correction it removes: only for logprobs that "
            "were imported or are of another engine; takes one more pass",
        )
