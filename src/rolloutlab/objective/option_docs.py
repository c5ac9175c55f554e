"""Documentation and validation of a job's options: effect, range, default, example.

Help, errors, tab completion and the table of docs/reference.md are generated from `OPTIONS`.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from rolloutlab.api.wire.levels import (
    LARGEST_STEP,
    MOST_EPOCHS,
    MOST_GROUPS,
    Credit,
    ImportanceSamplingLevel,
    LossAggregation,
)
from rolloutlab.objective.algorithms import ALGORITHM, algorithm_lines, algorithm_problem

if TYPE_CHECKING:
    from rolloutlab.objective.options import Options


def read(text: str) -> Any:
    """A JSON value, Python's spelling of true, false and null, or a bare word."""
    plain = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    try:
        return json.loads(plain)
    except ValueError:
        return _number(text)


def written(value: Any) -> str:
    """The text of a value, the inverse of `read`; empty for None, which is the default."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _number(text: str) -> Any:
    """A number in a form that is not JSON, such as .5; otherwise a bare word."""
    try:
        return float(text)
    except ValueError:
        return text.strip("'\"")


_BOOLEAN = ("true", "false")


@dataclass(frozen=True)
class Option:
    """An option of a job: a number between `low` and `high`, or one of `values`.

    does: its effect. default, example: as typed in a cell. above: `low` itself is not allowed. whole: it is an integer.
    specified: it is in the specification of the hosted service.
    """

    name: str
    does: str
    default: str
    example: str
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    values: tuple[str, ...] = ()
    whole: bool = False
    specified: bool = True

    @property
    def range(self) -> str:
        """The allowed values in words."""
        if self.values:
            return " or ".join([", ".join(self.values[:-1]), self.values[-1]])
        if math.isfinite(self.high):
            return f"{self.low} to {self.high:,}" if self.whole else f"{self.low:g} to {self.high:g}"
        if self.above:
            return f"above {self.low:g}"
        return f"{self.low:g} or more" if math.isfinite(self.low) else "any number"

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value; None if it is valid. None itself is the default."""
        if value is None:
            return None
        if self.values == _BOOLEAN:
            return None if isinstance(value, bool) else f"{value!r} is neither true nor false"
        if self.values:
            valid = isinstance(value, str) and value in self.values
            return None if valid else f"{value!r} must be one of {', '.join(self.values)}"
        return self._number_problem(value)

    def is_default(self, value: Any) -> bool:
        """Whether a value is the default, so that it has no effect, whatever the other options are."""
        return value is None or value == {"off": 0}.get(self.default, read(self.default))

    def _number_problem(self, value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{value!r} is not a number"
        if not abs(value) <= sys.float_info.max:
            return f"{value!r} is not finite"
        if self.whole and not isinstance(value, int):
            return f"{value!r} is not an integer"
        if self.above and value == self.low:
            return f"{value} is not above {self.low:g}"
        if self.low <= value <= self.high:
            return None
        return f"{value} is outside {self.range}" if math.isfinite(self.high) else f"{value} is below {self.low:g}"


_ALL = (
    Option("advantage_balance", default="0", example="0.5", low=-1, high=1,
           does="above 0 shrinks negative advantages, below 0 positive ones; 1 and -1 remove them"),
    Option("epsilon", default="1.0; 0.2 with ppo", example="0.2", low=0,
           does="importance ratios are clipped from below at 1 - epsilon"),
    Option("epsilon_high", default="4.0; epsilon with ppo", example="0.28", low=0,
           does="importance ratios are clipped from above at 1 + epsilon_high"),
    Option("importance_sampling_level", default="token", example="sequence", values=get_args(ImportanceSamplingLevel),
           does="whether the importance ratio is of a token, of its whole history, or a mean of both; with sequence and"
                " ppo, set epsilon 3e-4 and epsilon_high 4e-4 as in GSPO, because that ratio stays near 1"),
    Option("vendor_k2_tau", default="off", example="0.01",
           does="strength of the penalty on the change of a token's logprob; 0 is off"),
    Option("learning_rate", default="the policy's own: 2e-3 under 20M parameters, 5e-6 above", example="2e-3", low=0,
           does="the optimiser's step size"),
    Option("mask_prob_ratio", default="false", example="true", values=_BOOLEAN,
           does="a ratio outside the clip range becomes 0 instead of the bound"),
    Option("max_negative_advantage_importance_sampling_weight", default="off", example="10.0", low=0,
           does="upper bound of every importance ratio; 0 is off"),
    Option("ppo", default="false", example="true", values=_BOOLEAN,
           does="the clipped surrogate of PPO instead of clipped importance-weighted REINFORCE"),
    Option("precalculate_logprobs", default="false", example="true", values=_BOOLEAN,
           does="old logprobs are computed again under the job's starting weights; for logprobs that were imported or"
                " come from another engine"),
    Option("scale_rewards", default="true", example="false", values=_BOOLEAN,
           does="an advantage is divided by the standard deviation of its group"),
    Option("kl_penalty_coef", default="off", example="0.05", low=0, specified=False,
           does="strength of the penalty on the KL divergence from a reference, checkpoint 0 or kl_ref_step; 0 is off"),
    Option("kl_ref_step", default="0", example="3", low=0, high=LARGEST_STEP, whole=True, specified=False,
           does="the checkpoint of this model that kl_penalty_coef takes as reference; 0 is the model without adapter"),
    Option("truncated_importance_sampling", default="off", example="2.0", low=0, specified=False,
           does="upper bound of the weight that corrects for different logprobs of sampler and trainer; only with"
                " precalculate_logprobs; 0 is off"),
    Option("credit", default="trajectory", example="turn", values=get_args(Credit), specified=False,
           does="with trajectory, all tokens have the advantage of the trajectory's reward; with turn, each turn has"
                " the advantage of its reward and the later ones (metrics turn_reward/0, turn_reward/1, ...)"),
    Option("groups_per_step", default="the policy's own: 4 under 20M parameters, 8 above", example="16", low=0,
           high=MOST_GROUPS, whole=True, specified=False,
           does="how many groups an optimiser step has; a job is split into even steps; 0 makes it one step"),
    Option("epochs", default="1", example="2", low=1, high=MOST_EPOCHS, whole=True, specified=False,
           does="how often a job goes through its groups; importance ratios stay relative to the recorded logprobs"),
    Option("loss_aggregation", default="sequence_mean", example="token_mean", values=get_args(LossAggregation),
           specified=False,
           does="whether each trajectory has equal weight, each token, or each token with 1 / loss_scale_factor"),
    Option("loss_scale_factor", default="none", example="512", low=0, above=True, specified=False,
           does="the divisor for loss_aggregation: constant, for example the length of the longest answer in tokens"),
    Option("mask_truncated", default="false", example="true", values=_BOOLEAN, specified=False,
           does="answers that were cut off at max_tokens do not train; their rewards stay in the group's mean"),
    Option("max_grad_norm", default="1.0", example="0.1", low=0, specified=False,
           does="a step's gradient is scaled down to this norm; 0 is off"),
    Option("weight_decay", default="0.1", example="0", low=0, specified=False,
           does="the weight decay of AdamW: each step shrinks the adapter by this times the learning rate"),
)  # fmt: skip

OPTIONS: Mapping[str, Option] = MappingProxyType({option.name: option for option in _ALL})
_BESIDE_THE_LOSS = {
    "advantage_balance", "credit", "epochs", "groups_per_step", "learning_rate", "mask_truncated", "max_grad_norm",
    "precalculate_logprobs", "scale_rewards", "weight_decay",
}  # fmt: skip
_OF_THE_LOSS = OPTIONS.keys() - _BESIDE_THE_LOSS
"""Options that a loss of one's own replaces."""
SMALL_POLICY_RATE, LARGE_POLICY_RATE = 2e-3, 5e-6
"""Default learning rates of policies under 20 million parameters, and of larger ones."""
LARGE_POLICY_SFT_RATE = 5e-5
"""Default learning rate for fine-tuning large policies, as in openpipe-art. Reinforcement learning has a lower one."""
_HUGE = 1e300
MANY_TIMES = 5
"""A warning names a learning rate of at least so many times the default. It does not say that the rate is too high."""
_ALIASES = {"kimi_k2_tau": "vendor_k2_tau"}


def rate_warnings(rate: float, default: float | None, otherwise: float = LARGE_POLICY_RATE) -> list[str]:
    """A warning about a learning rate far above the default of its policy.

    default: the default of the policy. If it is None (unknown), the warning compares with `otherwise`, the default of
        large policies, and gives no advice.
    """
    compared = otherwise if default is None else default
    if rate < MANY_TIMES * compared:
        return []
    whose = "of policies over 20M parameters" if default is None else "of this policy"
    times = f"{min(rate / compared, _HUGE):.3g} times the default {whose}" if compared else "above the default of 0"
    advice = f", {compared:g}" if default is None else f" -> learning_rate: {default:g}"
    return [f"learning_rate {rate:g} is {times}{advice}"]


def proper_name(name: str) -> str:
    """The name of an option in `OPTIONS`, for an alias."""
    return _ALIASES.get(name, name)


def problems(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """All errors in the options of a job and the name of its algorithm, each with what to type instead."""
    errors: list[tuple[str, str]] = []
    examples = {ALGORITHM: "dapo", **{option.name: option.example for option in _ALL}}
    for name, value in options.items():
        if name == ALGORITHM:
            errors += filter(None, [algorithm_problem(value)])
        elif (option := OPTIONS.get(proper_name(name))) is None:
            close = get_close_matches(name, examples, n=1)
            typed = f"{close[0]}: {examples[close[0]]}" if close else f"one of {', '.join(examples)}"
            errors.append((f"unknown option {name!r}", typed))
        elif problem := option.problem(value):
            errors.append((f"{name}: {problem}", f"{name}: {option.example}"))
    return errors


def contradictions(options: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Valid options that do not go together: the name of one, what is wrong, what to type instead."""
    wrong = []
    if options.get("truncated_importance_sampling") and not options.get("precalculate_logprobs"):
        name = "truncated_importance_sampling"
        why = "only with precalculate_logprobs: else it would apply the importance ratio a second time"
        wrong.append((name, why, "precalculate_logprobs: true"))
    if options.get("loss_aggregation") == "constant" and not options.get("loss_scale_factor"):
        wrong.append(("loss_aggregation", "constant needs a loss_scale_factor", "loss_scale_factor: 512"))
    if options.get("loss_scale_factor") and options.get("loss_aggregation") != "constant":
        wrong.append(("loss_scale_factor", "only with loss_aggregation: constant", "loss_aggregation: constant"))
    if options.get("custom_loss"):
        replaced = [name for name, value in options.items() if name in _OF_THE_LOSS and value is not None]
        wrong += [(name, "has no effect with a loss of one's own", f"leave out {name}") for name in replaced]
    return wrong


def beyond_specification(options: Mapping[str, Any]) -> list[str]:
    """Names of given options that only a service of rolloutlab honours."""
    names = [name for name, option in OPTIONS.items() if not option.specified]
    return [name for name in [*names, "custom_loss"] if options.get(name) is not None]


def help_lines() -> list[str]:
    """Lines about algorithms by name, then one per option: effect, range, default."""
    return [*algorithm_lines(), *(f"{o.name}: {o.does} ({o.range}; default {o.default})" for o in OPTIONS.values())]


def markdown_table() -> str:
    """The table of docs/reference.md."""
    head = ["| option | does | range | default | example |", "|---|---|---|---|---|"]
    rows = [f"| `{o.name}` | {o.does} | {o.range} | {o.default} | `{o.name}: {o.example}` |" for o in OPTIONS.values()]
    return "\n".join([*head, *rows])


Effect = tuple[str, str]
_TOKEN_RANGE = 0.01
"""A clip range this wide is meant for ratios of single tokens."""


def effects(
    given: Mapping[str, Any], trainable_groups: int | None = None, truncated: int | None = None
) -> list[Effect]:
    """Option names with notes about surprising effects.

    given: valid options as typed; None is the default. trainable_groups: how many groups of the job train, if known.
    truncated: how many of its trajectories have a cut-off last answer, if known.
    """
    # imported here: loading the extension needs only the options' names, and pydantic is slow to import
    from rolloutlab.api.wire.training import ExperimentalTrainingConfig
    from rolloutlab.objective.options import settle

    typed = {name: value for name, value in given.items() if value is not None}
    options = settle(ExperimentalTrainingConfig.model_validate(typed))
    weighing = _weighing(typed, options, trainable_groups)
    dividing = _dividing(typed, options, trainable_groups, truncated)
    return [
        *_clipping(typed, options),
        *_masking(options),
        *_bounding(typed, options),
        *weighing,
        *_distance(typed),
        *dividing,
    ]


def _clipping(given: Mapping[str, Any], options: "Options") -> Iterator[Effect]:
    high = f"{1 + options.epsilon_high:g}"
    if options.ppo and "epsilon" not in given:
        yield "epsilon", "is 0.2 with ppo"
    if options.ppo and "epsilon_high" not in given:
        yield "epsilon_high", f"follows epsilon with ppo: {options.epsilon:g}"
    if not options.ppo and "epsilon" in given and "epsilon_high" not in given:
        yield "epsilon_high", f"stays at 4 without ppo: ratios go up to {high}"
    narrow = min(options.epsilon, options.epsilon_high)
    if options.ppo and options.importance_sampling_level == "sequence" and narrow >= _TOKEN_RANGE:
        fresh = "a whole history's ratio hardly leaves 1 while completions are fresh: this clips next to nothing"
        yield "epsilon", f"{fresh}; GSPO has 3e-4 and 4e-4"
    if "epsilon" in given and options.epsilon >= 1:
        yield "epsilon", f"nothing is clipped from below: no ratio is under {1 - options.epsilon:g}"


def _masking(options: "Options") -> Iterator[Effect]:
    if not options.mask_prob_ratio:
        return
    low, high = 1 - options.epsilon, 1 + options.epsilon_high
    if low == 1 or high == 1:
        yield "mask_prob_ratio", "masks every token of fresh completions, whose ratio is exactly 1: widen the range"
    elif options.epsilon >= 1 and options.epsilon_high >= 4:
        yield "mask_prob_ratio", f"hardly masks anything: only ratios of {high:g} and above are outside the range"
    elif not options.ppo and low > 0:
        yield "mask_prob_ratio", f"without ppo what is masked is lifted to 1 - epsilon again, {low:g}"


def _bounding(given: Mapping[str, Any], options: "Options") -> Iterator[Effect]:
    name = "max_negative_advantage_importance_sampling_weight"
    bound = options.max_weight
    if bound is None:
        if name in given:
            yield name, "0 is off"
    elif bound < 1:
        yield name, "is below 1, the ratio of fresh completions: it lowers every ratio"
    elif not options.ppo and bound >= 1 + options.epsilon_high:
        yield name, f"changes nothing: ratios are clipped at {1 + options.epsilon_high:g} anyway"


def _weighing(given: Mapping[str, Any], options: "Options", groups: int | None) -> Iterator[Effect]:
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
    if not options.scale_rewards and groups == 1:
        yield "scale_rewards", "changes nothing where one group trains: it weighs groups against each other"
    if options.precalculate_logprobs:
        only = "only for logprobs that were imported or are of another engine; takes one more pass"
        removes = "every ratio begins at 1, also for older completions, whose correction it removes"
        yield "precalculate_logprobs", f"{removes}: {only}"


def _distance(given: Mapping[str, Any]) -> Iterator[Effect]:
    for name in ("kl_penalty_coef", "truncated_importance_sampling"):
        if given.get(name) == 0:
            yield name, "0 is off"
    if "kl_ref_step" in given and not given.get("kl_penalty_coef"):
        yield "kl_ref_step", "has no effect without kl_penalty_coef"


def _dividing(
    given: Mapping[str, Any], options: "Options", groups: int | None, truncated: int | None
) -> Iterator[Effect]:
    if options.groups_per_step == 0:
        yield "groups_per_step", "0 makes the whole job one step"
    elif options.groups_per_step and groups and options.groups_per_step > groups:
        yield "groups_per_step", f"no more than {groups} of them train, so that this is one step"
    elif options.groups_per_step == 1:
        yield "groups_per_step", "1 takes a step of full size for each group: a rate that is safe is smaller"
    if options.epochs > 1:
        bounds = f"{max(0.0, 1 - options.epsilon):g} and {1 + options.epsilon_high:g}"
        narrow = "" if options.ppo else "; ppo: true has the narrow range of the papers that repeat steps"
        yield "epochs", f"importance ratios leave 1 with every epoch, and are clipped at {bounds}{narrow}"
    if options.mask_truncated and truncated == 0:
        yield "mask_truncated", "changes nothing: no answer was cut off"
    if options.max_grad_norm == 0:
        yield "max_grad_norm", "0 is off: one unusual step can change the policy as far as many others"
    if options.weight_decay == 0 and "weight_decay" in given:
        yield "weight_decay", "0 is off"
