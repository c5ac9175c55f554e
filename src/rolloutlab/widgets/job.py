"""A training job as text, HTML and curves, with what is odd about them: a fold over its events."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

from rolloutlab.api.job_state import (
    fraction_done,
    gradient_steps,
    job_progress,
    last_value,
    since_restart,
    status,
    within_step,
)
from rolloutlab.api.wire.training import ENDINGS, Event, ExperimentalTrainingConfig
from rolloutlab.objective.options import settle
from rolloutlab.objective.preflight import count, explained
from rolloutlab.objective.steps import short, step_words
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.widgets.dry_run import with_fix
from rolloutlab.widgets.html import Words, html_table, paragraphs, title
from rolloutlab.widgets.plot import Panels, Plot, Series, sparkline

Numbers = Mapping[str, Sequence[float | None]]
"""By name, one per gradient step; None where a step does not report it."""

Options = Mapping[str, Any]
_NONE: Options = MappingProxyType({})
_DIGITS = 6


@dataclass(frozen=True)
class Curve:
    """Numbers of the gradient steps that are drawn together.

    healthy: what it is and what to expect, in a sentence. odd: from the first and the last of the first number, and the
    course of the job, to what is not as expected, with ` -> ` and what to type before the second part; None where all
    is well.
    """

    title: str
    names: tuple[str, ...]
    healthy: str
    odd: Callable[[float, float, "Course"], str | None] = lambda _first, _last, _course: None


@dataclass(frozen=True)
class Course:
    """What else is known of a job; None where its events do not tell. answer: mean trained tokens of a trajectory."""

    answer: float | None = None


_NO_COURSE = Course()
_STALE = "they are of an older checkpoint, or their logprobs of another engine -> %%chat again"
"""What a first step far from the policy that sampled means. The mean ratio is no sign of it: its expectation is 1 for
any two policies at level `token`, and below 1 at others."""


_ALIKE = 0.2
"""Nats per answer, below which at least exp(-0.2), 82%, of two answers to a prompt are the same."""


def _entropy(_first: float, last: float, course: Course) -> str | None:
    """Entropies add up over an answer, and two answers are equal with a chance of at least exp(-sum) (Jensen)."""
    if course.answer is None or last * course.answer >= _ALIKE:
        return None
    alike = math.floor(100 * math.exp(-max(0.0, last * course.answer)))
    nats = f"{last * course.answer:.2g} nats in an answer of {course.answer:,.0f} tokens"
    return f"{nats}: at least {alike}% of pairs of answers to a prompt are the same"


def _kl(first: float, _last: float, _course: Course) -> str | None:
    return f"{first:.2g} on the first step, where fresh completions have 0: {_STALE}" if first > 0.05 else None


def _correlation(first: float, _last: float, _course: Course) -> str | None:
    return f"{first:.3f} on the first step, where fresh completions have 1: {_STALE}" if first < 0.98 else None


_RATIO_OPTIONS = ("ppo", "epsilon", "epsilon_high", "max_negative_advantage_importance_sampling_weight")
_GRADIENT = Curve("gradient norm", ("grad_norm",), "before clipping")
_OF_HISTORIES = "1 on the first step when fresh; the older the completions, the further below 1"
"""A mean over a history's tokens: exp(mean δ) ≤ mean exp(δ), whose expectation is 1 (Jensen's inequality)."""
_LOSS = "-mean(weight · advantage · logprob): no goal, and of any size and sign; look at the reward"
_PPO_LOSS = "near 0 on fresh completions, whatever is learned: advantages have mean 0 in a group; look at the reward"
_OWN_LOSS = "the value of your function; look at the reward"

CURVES = (
    Curve("reward", ("reward",), "each step has other prompts, so that it is no sign of progress: compare jobs"),
    Curve("loss", ("loss",), _LOSS),
    Curve("entropy", ("entropy",), "nats per token; long answers can differ at 0.01", _entropy),
    Curve(
        "distance (kl)",
        ("kl",),
        "from the policy that sampled, in nats per token: 0 on the first step when fresh, then above it",
        _kl,
    ),
    Curve(
        "old/new correlation",
        ("old_new_correlation",),
        "of probabilities: 1 on the first step when fresh, then below it",
        _correlation,
    ),
    Curve(
        "distance to the start (kl_base)",
        ("kl_base",),
        "KL divergence from checkpoint 0, on a sample of the tokens: 0 on the first step of a new model",
    ),
    Curve("importance ratio", ("ratio_mean",), "its mean is near 1 for old completions too: see distance, correlation"),
    Curve("largest ratio", ("ratio_max",), "new/old probability of one token"),
    Curve("clipped tokens", ("clipped", "masked"), "share whose gradient a bound changes"),
    _GRADIENT,
)

FINE_TUNING_CURVES = (
    Curve(
        "loss",
        ("loss",),
        "cross-entropy, the mean negative logprob of learned tokens; each step has others",
    ),
    Curve(
        "entropy",
        ("entropy",),
        "nats per token, of the predictions at the learned tokens",
    ),
    Curve(
        "gain over the start (kl_base)",
        ("kl_base",),
        "mean log ratio of learned tokens to checkpoint 0, on a sample: above 0 as they have become more probable",
    ),
    _GRADIENT,
)
"""Of supervised fine-tuning, which has neither rewards nor a policy that sampled."""


def curves_of(options: Mapping[str, Any]) -> Sequence[Curve]:
    """The curves of a job by its options, as they are recorded in the lab."""
    if options.get("sft"):
        return FINE_TUNING_CURVES
    other = {"loss": _OWN_LOSS} if options.get("custom_loss") else {"loss": _PPO_LOSS} if options.get("ppo") else {}
    other["largest ratio"] = _largest_ratio(options)
    if options.get("importance_sampling_level") not in {None, "token"}:
        other["importance ratio"] = _OF_HISTORIES
    return [replace(c, healthy=other.get(c.title, c.healthy)) for c in CURVES]


def _largest_ratio(options: Options) -> str:
    """What the largest ratio is of, and how often its token counts."""
    level = options.get("importance_sampling_level") or "token"
    of = {"token": "one token", "sequence": "one history, a mean over its tokens"}.get(
        level, "one token and its history"
    )
    ratio = f"new/old probability of {of}"
    if options.get("custom_loss"):
        return f"{ratio}; your loss decides how much it counts"
    used = {name: options[name] for name in _RATIO_OPTIONS if options.get(name) is not None}
    settled = settle(ExperimentalTrainingConfig.model_validate(used))
    bound = settled.max_weight
    most = min(1 + settled.epsilon_high, math.inf if bound is None else bound)
    if not settled.ppo:
        return f"{ratio}: it counts at most {most:g} times, however large"
    in_full = "in full" if bound is None else f"at most {bound:g} times"
    return f"{ratio}: it counts at most {most:g} times, and with a negative advantage {in_full}"


def numbers_of(
    events: Sequence[Event], first: int = 0, curves: Sequence[Curve] = CURVES
) -> dict[str, list[float | None]]:
    """The numbers of curves over the gradient steps of these events, from the step `first` on."""
    steps = [event.data for event in events if event.type == "gradient_step"][first:]
    names = [name for curve in curves for name in curve.names if any(name in step for step in steps)]
    return {name: [_short(step.get(name)) for step in steps] for name in names}


def curves_with_numbers(numbers: Numbers, curves: Sequence[Curve] = CURVES) -> list[Curve]:
    """The curves that have numbers. A reward that is the whole job's, so always the same, is not drawn."""
    there = [curve for curve in curves if any(name in numbers for name in curve.names)]
    return [curve for curve in there if curve.names != ("reward",) or len(set(numbers["reward"])) > 1]


def course_of(events: Sequence[Event]) -> Course:
    """What the events of a job tell beside the curves."""
    tokens, answers = (last_value(events, "preflight", name) for name in ("trainable_tokens", "trainable_trajectories"))
    return Course(tokens / answers if isinstance(tokens, int) and isinstance(answers, int) and answers else None)


def oddities(numbers: Numbers, curves: Sequence[Curve] = CURVES, course: Course = _NO_COURSE) -> dict[str, str]:
    """By title, what is not as expected about curves."""
    odd = {}
    for curve in curves_with_numbers(numbers, curves):
        values = [value for value in numbers.get(curve.names[0], ()) if value is not None]
        if values and (sentence := curve.odd(values[0], values[-1], course)):
            odd[curve.title] = sentence
    return odd


def _short(value: Any) -> float | None:
    """A number with as many digits as a picture needs."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(f"{value:.{_DIGITS}g}")


_MAX_POINTS = 120
_MAX_PLACES = 3
_PARTS = (
    ("{examples} that train", "trainable_trajectories", "trajectories"),
    ("groups that train", "trainable_groups", "groups"),
)
_SHOWN = (
    "reward", "loss", "grad_norm", "entropy",
    "kl", "kl_base", "old_new_correlation", "ratio_mean", "ratio_max", "clipped",
)  # fmt: skip

_NO_OPTIONS = {"sft", "where", "files", "custom_loss"}
"""What is recorded with the options of a job and is given in another way."""
_DISTANCES = {"kl", "kl_base"}
"""Estimates from the few sequences of a step: single tokens rule `kl` of a step, and the mean over some of them."""
PLOTTED = ("reward", "loss", "entropy", "grad_norm")


def text(model: str, events: Sequence[Event], options: Options = _NONE) -> str:
    """The job as plain text. options: as recorded in the lab."""
    events = since_restart(events)
    divided = [f"  {division}"] if (division := _division(events, options)) else []
    lines = [_heading(model, events), *divided, *_reasons(events, options)]
    steps = gradient_steps(events)
    if steps:
        lines.append("  " + "  ".join(f"{name} {_number(value)}" for name, value in _figures(steps).items()))
    return "\n".join(lines)


def html(model: str, events: Sequence[Event], options: Options = _NONE) -> str:
    """The job as HTML; its course as a picture that needs no script."""
    events = since_restart(events)
    lines = [_division(events, options), *_reasons(events, options)]
    parts: list[str] = [title(_heading(model, events)), paragraphs(line.strip() for line in lines if line)]
    steps = gradient_steps(events)
    if figures := _figures(steps):
        parts.append(html_table(list(figures), [[_number(value) for value in figures.values()]]))
    if len(steps) > 1:
        parts += [_course_table(events, curves_of(options)), plot(model, steps, PLOTTED).svg()]
    return "".join(parts)


def head(
    model: str, events: Sequence[Event], collections: Sequence[str] = (), compare: str = "", options: Options = _NONE
) -> dict[str, Any]:
    """What a browser shows above the curves, as JSON: progress, what did not train and why, what to type next.

    collections: names of what it trains on, for what there is to type. compare: the command that compares checkpoints
    on one of them, where any was sampled from prompts that can be sampled again. options: as recorded in the lab.
    """
    events = since_restart(events)
    done, rows, _ = job_progress(events)
    made, curves = last_value(events, "checkpoint_saved", "step"), curves_of(options)
    return {
        "status": status(events),
        "ended": bool(events) and events[-1].type in ENDINGS,
        "model": escape_control_chars(model),
        "done": done,
        "part": fraction_done(events) - done,
        "within": _within(events),
        "rows": rows,
        "made": None if made is None else escape_control_chars(f"{model}@{made}"),
        "facts": _facts(events, options),
        "notes": _notes(events, collections[0] if collections else "NAME", options),
        "odd": oddities(numbers_of(events, curves=curves), curves, course_of(events)),
        "next": [escape_control_chars(line) for line in _next(events, collections, made, compare, options)],
    }


def plot(model: str, steps: Sequence[dict[str, Any]], names: Sequence[str]) -> Panels:
    """A chart per number, over the gradient steps that have it."""
    shown = [name for name in names if any(name in step for step in steps)]
    every = -(-len(steps) // _MAX_POINTS) or 1
    numbers, drawn = [float(i) for i in range(1, len(steps) + 1)][::every], steps[::every]
    return Panels(
        [
            Plot([Series(name, numbers, [step.get(name) for step in drawn])], title=name, x_label="gradient step")
            for name in shown
        ],
        empty=f"job on {model}: no gradient steps to plot yet",
    )


def _heading(model: str, events: Sequence[Event]) -> str:
    done, rows, _ = job_progress(events)
    made = [event.data["step"] for event in events if event.type == "checkpoint_saved"]
    became = f" -> {model}@{made[-1]}" if made else ""
    steps = "" if rows is None else f"{done} of {count(rows, 'gradient step')}"
    where = step_under_way(events) or steps
    return f"job on {model}: {status(events)}{', ' * bool(where)}{where}{became}"


def step_under_way(events: Sequence[Event]) -> str:
    """`step 1 of 2, 40k of 96k tokens`; nothing where that is not reported."""
    done, rows, _ = job_progress(events)
    within = _within(events)
    return f"step {done + 1:,}{f' of {rows:,}' if rows else ''}, {within}" if within else ""


def _within(events: Sequence[Event]) -> str:
    """`40k of 96k tokens`."""
    return f"{short(within[0])} of {short(within[1])} tokens" if (within := within_step(events)) else ""


def _division(events: Sequence[Event], options: Options) -> str:
    """`2 steps of 8 groups (64 completions, ≈ 96k tokens each)`; nothing where the service divides in its own way."""
    rows = last_value(events, "training_started", "num_sequences")
    names = ("trainable_groups", "trainable_trajectories", "trainable_tokens")
    groups, answers, tokens = (last_value(events, "preflight", name) for name in names)
    epochs = options.get("epochs") or 1
    if last_value(events, "preflight", "advantage_scale") is None or not (rows and groups):
        return ""
    return step_words(groups, max(1, rows // epochs), answers, tokens, epochs)


def _reasons(events: Sequence[Event], options: Options) -> list[str]:
    """Why it failed, and how many trajectories did not train."""
    notes = _notes(events, "NAME", options)
    return [f"  {note['text']}" for kind in ("failed", "left out", "warning") for note in notes if note["kind"] == kind]


def _notes(events: Sequence[Event], collection: str, options: Options) -> list[dict[str, str]]:
    """What a person should know: kind (`failed`, `left out` or `warning`), text, and fix: what to type about it."""
    notes = [
        {"kind": "failed", "text": escape_control_chars(str(event.data.get("error_message"))), "fix": "%service log"}
        for event in events
        if event.type == "training_failed"
    ]
    for event in events:
        if event.type in {"preflight", "drift"}:
            for reason, n in event.data.get("reasons", {}).items():
                why, fix = explained(reason, collection)
                fix = "" if options.get("files") else fix  # it is about trajectories
                what = list(event.data.get(reason) or ()) if reason == "unreadable" else []
                why += f", {', '.join(what[:_MAX_PLACES])}" * bool(what)
                line = f"{n} did not train: {why}" + f" -> {fix}" * bool(fix)
                notes.append({"kind": "left out", **with_fix(line)})
            notes += [{"kind": "warning", **with_fix(str(warning))} for warning in event.data.get("warnings", [])]
    return notes


def _facts(events: Sequence[Event], options: Options) -> list[tuple[str, str]]:
    """Figures of the whole job, as name and value."""
    steps = gradient_steps(events)
    last = steps[-1] if steps else {}
    facts, examples = [], "conversations" if options.get("sft") else "trajectories"
    if isinstance(mean := last.get("reward"), int | float):
        spread = last.get("reward_std_dev")
        facts.append(("mean reward", f"{mean:.3f}" + (f" ± {spread:.3f}" if isinstance(spread, int | float) else "")))
    for event in events:
        if event.type == "preflight":
            facts += [
                (noun.format(examples=examples), f"{event.data[part]:,} of {event.data[whole]:,}")
                for noun, part, whole in _PARTS
                if all(isinstance(event.data.get(name), int) for name in (part, whole))
            ]
            sequences, trajectories = (event.data.get(name) for name in ("sequences", "trainable_trajectories"))
            if isinstance(sequences, int) and isinstance(trajectories, int) and sequences > trajectories:
                facts.append(("sequences that they are", f"{sequences:,}"))
    if division := _division(events, options):
        facts.append(("divided into", division))
    rate = last_value(events, "training_started", "learning_rate")
    rates = options.get("learning_rate")
    if isinstance(rates, list) and len(set(rates)) > 1:  # one for each step
        return [*facts, ("learning rates", f"{min(rates):g} to {max(rates):g}")]
    return [*facts, *([("learning rate", f"{rate:g}")] if isinstance(rate, int | float) else [])]


def _next(events: Sequence[Event], collections: Sequence[str], made: Any, compare: str, options: Options) -> list[str]:
    """What to type once the job has ended."""
    if made is None:
        message = str(last_value(events, "training_failed", "error_message") or "")
        return [_again(collections, options, message)] if status(events) in {"failed", "cancelled"} else []
    begun = last_value(events, "training_started", "step")
    before = f" --before {begun}" if begun is not None else ""
    return [f"{compare}{before} --after {made}"] if compare else []


def _again(collections: Sequence[str], options: Options, message: str) -> str:
    """What submits such a job once more. message: why it failed; an option that it names is left at its default."""
    names = [*collections, *options.get("files", ())] or ["NAME"]
    given = {name: value for name, value in options.items() if name not in _NO_OPTIONS and name not in message}
    where, sft = str(options.get("where") or ""), bool(options.get("sft"))
    if given or options.get("custom_loss") or "F." in where:
        what = [repr(names), *([repr(given)] if given else []), *(["sft=True"] if sft else [])]
        what += [f"where={where if 'F.' in where else repr(where)}"] if where else []
        return f"lab.train({', '.join(what)}{', loss=fn' if options.get('custom_loss') else ''})"
    return f"%%train {' '.join(names)}" + " --sft" * sft + f' --where "{where}"' * bool(where)


def _figures(steps: list[dict[str, Any]]) -> dict[str, float]:
    """Of each number, one over the steps that have it: the mean; of a maximum the largest; of a distance the median."""
    figures: dict[str, float] = {}
    for name in _SHOWN:
        values = [step[name] for step in steps if name in step]
        if values:
            of = max if name.endswith("_max") else median if name in _DISTANCES else fmean
            figures[name] = of(values)
    return figures


def _course_table(events: Sequence[Event], curves: Sequence[Curve]) -> str:
    """A sparkline per curve with what is healthy or odd about it, for a page without scripts and pictures."""
    numbers = numbers_of(events, curves=curves)
    odd = oddities(numbers, curves, course_of(events))
    rows = []
    for curve in curves_with_numbers(numbers, curves):
        course = sparkline([y for y in numbers.get(curve.names[0], ()) if y is not None])
        rows.append([*map(Words, (curve.title, course, odd.get(curve.title, curve.healthy)))])
    return html_table([*map(Words, ("curve", "course", "healthy"))], rows)


def _number(value: float) -> str:
    return f"{value:.4g}"
