"""A training job as text, HTML and curves, with hints on what looks wrong; computed from its events."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from rolloutlab.api.job_state import (
    DISTANCES,
    NO_REASON,
    fraction_done,
    gradient_steps,
    job_progress,
    last_value,
    last_whole,
    number,
    numbers,
    since_restart,
    status,
    step_figures,
    whole,
    within_step,
)
from rolloutlab.api.wire.training import ENDINGS, Event, ExperimentalTrainingConfig
from rolloutlab.hints import Hint, Kind, as_hint
from rolloutlab.objective.advantages import mean_of
from rolloutlab.objective.options import settle
from rolloutlab.objective.preflight import count, explained
from rolloutlab.objective.steps import short, step_words
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.widgets import overview
from rolloutlab.widgets.html import Html, arrows
from rolloutlab.widgets.kit import parts
from rolloutlab.widgets.kit.chart import ChartLine, chart, charts, spark
from rolloutlab.widgets.kit.listing import percent
from rolloutlab.widgets.kit.parts import band, chip, figure, hints, line, next_cells, panel, share
from rolloutlab.widgets.kit.table import Heading, TableRow, table
from rolloutlab.widgets.kit.tree import tree
from rolloutlab.widgets.overview import Overview
from rolloutlab.widgets.plot import Panels, Plot, Series
from rolloutlab.widgets.text import checkpoint_name, with_minus

Numbers = Mapping[str, Sequence[float | None]]
"""By name, a number per gradient step; None if the step does not report it."""

Options = Mapping[str, Any]
_T = TypeVar("_T")
_NONE: Options = MappingProxyType({})
_DIGITS = 6


@dataclass(frozen=True)
class Curve:
    """Numbers of the gradient steps that are drawn together.

    title: the title.
    names: the names of the numbers.
    healthy: what the curve is, and what to expect.
    odd: checks the curve, by the first and the last value of its first number and by the course of the job. It returns
        what is not as expected, and after ` -> ` what to type; None if all is well.
    first: draw it before the others.
    """

    title: str
    names: tuple[str, ...]
    healthy: str
    odd: Callable[[float, float, "Course"], str | None] = lambda _first, _last, _course: None
    first: bool = False


@dataclass(frozen=True)
class Course:
    """Facts about a job that checks of curves need. answer: its mean trained tokens per trajectory; None: unknown."""

    answer: float | None = None


_NO_COURSE = Course()
_STALE = "they are of an older checkpoint, or their logprobs of another engine -> sample again"
"""Why the first step may already be far from the policy that sampled. The mean ratio cannot show that: its expectation
is 1 for any two policies at level `token`, and below 1 at other levels."""


_ALIKE = 0.2
"""Nats per answer below which an entropy is odd: at least exp(-0.2), 82%, of pairs of answers are then the same."""


def _odd_entropy(_first: float, last: float, course: Course) -> str | None:
    """Report an entropy so low that answers to a prompt hardly differ.

    Entropies add up over an answer, and two answers are equal with a probability of at least exp(-sum) (Jensen).
    """
    if course.answer is None or last * course.answer >= _ALIKE:
        return None
    alike = math.floor(100 * math.exp(-max(0.0, last * course.answer)))
    nats = f"{last * course.answer:.2g} nats in an answer of {course.answer:,.0f} tokens"
    return f"{nats}: at least {alike}% of pairs of answers to a prompt are the same"


def _odd_kl(first: float, _last: float, _course: Course) -> str | None:
    return f"{first:.2g} on the first step, where fresh completions have 0: {_STALE}" if first > 0.05 else None


def _odd_correlation(first: float, _last: float, _course: Course) -> str | None:
    return f"{first:.3f} on the first step, where fresh completions have 1: {_STALE}" if first < 0.98 else None


_RATIO_OPTIONS = ("ppo", "epsilon", "epsilon_high", "max_negative_advantage_importance_sampling_weight")
_GRADIENT = Curve("gradient norm", ("grad_norm",), "Before clipping. Look for spikes only.")
_OF_HISTORIES = "1 at step 1 if the answers are fresh; the older they are, the further below 1."
"""A mean over a history's tokens: exp(mean δ) ≤ mean exp(δ), whose expectation is 1 (Jensen's inequality)."""
_LOSS = "\N{MINUS SIGN}mean(weight · advantage · logprob). No goal, any size or sign."
_PPO_LOSS = "Near 0 on fresh answers, whatever is learned: advantages have mean 0 in a group."
_OWN_LOSS = "The value of your function."

CURVES = (
    Curve("reward by step", ("reward",), "Each step has other prompts: no sign of progress."),
    Curve(
        "KL to the sampler",
        ("kl",),
        "Nats per token. 0 at step 1 if the answers are fresh, above it later.",
        _odd_kl,
        True,
    ),
    Curve("entropy", ("entropy",), "Nats per token. Long answers can differ at 0.01.", _odd_entropy, True),
    Curve(
        "agreement",
        ("old_new_correlation",),
        "Correlation of the sampler's and the trainer's probabilities. Fresh answers begin at 1.",
        _odd_correlation,
        True,
    ),
    Curve("loss", ("loss",), _LOSS),
    Curve("KL to @0", ("kl_base",), "Nats per token, on a sample. 0 at step 1 if the model began there; no limit."),
    Curve("mean ratio", ("ratio_mean",), "Near 1 for any two policies: no sign of staleness."),
    Curve("largest ratio", ("ratio_max",), "New/old probability of one token."),
    Curve("clipped", ("clipped", "masked"), "Tokens whose gradient a bound changed."),
    _GRADIENT,
)

FINE_TUNING_CURVES = (
    Curve(
        "fine-tuning loss",
        ("loss",),
        "Cross-entropy: \N{MINUS SIGN}logprob of the learned tokens. Each step has others.",
        first=True,
    ),
    Curve("entropy", ("entropy",), "Nats per token, at the learned tokens.", first=True),
    Curve(
        "gain",
        ("kl_base",),
        "Mean log ratio of learned tokens to @0, on a sample. Above 0 as they become more probable.",
        first=True,
    ),
    _GRADIENT,
)
"""Of supervised fine-tuning, which has neither rewards nor a policy that sampled."""


def curves_of(options: Mapping[str, Any]) -> Sequence[Curve]:
    """Choose the curves of a job by its options, as they are recorded in the lab."""
    if options.get("sft"):
        return FINE_TUNING_CURVES
    other = {"loss": _OWN_LOSS} if options.get("custom_loss") else {"loss": _PPO_LOSS} if options.get("ppo") else {}
    other["largest ratio"] = _largest_ratio(options)
    if options.get("importance_sampling_level") not in {None, "token"}:
        other["mean ratio"] = _OF_HISTORIES
    return [replace(c, healthy=other.get(c.title, c.healthy)) for c in CURVES]


def _largest_ratio(options: Options) -> str:
    """Describe the largest ratio: what it is a ratio of, and how often its token counts."""
    level = options.get("importance_sampling_level") or "token"
    of = {"token": "one token", "sequence": "one history, a mean over its tokens"}.get(
        level, "one token and its history"
    )
    ratio = f"New/old probability of {of}."
    if options.get("custom_loss"):
        return f"{ratio} Your loss decides how much it counts."
    used = {name: options[name] for name in _RATIO_OPTIONS if options.get(name) is not None}
    try:
        settled = settle(ExperimentalTrainingConfig.model_validate(used))
    except ValidationError:  # of another service, which takes others
        return ratio
    bound = settled.max_weight
    most = min(1 + settled.epsilon_high, math.inf if bound is None else bound)
    if not settled.ppo:
        return f"{ratio} It counts at most {most:g} times, however large."
    in_full = "in full" if bound is None else f"at most {bound:g} times"
    return f"{ratio} It counts at most {most:g} times, and with a negative advantage {in_full}."


def numbers_of(
    events: Sequence[Event], first: int = 0, curves: Sequence[Curve] = CURVES
) -> dict[str, list[float | None]]:
    """Read the numbers of curves from the gradient steps of these events, from the step `first` on."""
    steps = gradient_steps(events)[first:]
    names = [name for curve in curves for name in curve.names if any(name in step for step in steps)]
    return {name: list(map(_shorten, numbers(steps, name))) for name in names}


def curves_with_numbers(numbers: Numbers, curves: Sequence[Curve] = CURVES) -> list[Curve]:
    """Select the curves that have numbers, without a reward that is the same on each step: that of the whole job."""
    there = [c for c in curves if any(y is not None for name in c.names for y in numbers.get(name, ()))]
    return [curve for curve in there if curve.names != ("reward",) or len({*numbers["reward"]} - {None}) > 1]


def course_of(events: Sequence[Event]) -> Course:
    """Read from the events of a job what checks of curves need."""
    tokens, answers = (last_whole(events, "preflight", name) for name in ("trainable_tokens", "trainable_trajectories"))
    return Course(tokens / answers if tokens is not None and answers else None)


def oddities(numbers: Numbers, curves: Sequence[Curve] = CURVES, course: Course = _NO_COURSE) -> dict[str, str]:
    """Find what is not as expected about curves, by their titles."""
    odd = {}
    for curve in curves_with_numbers(numbers, curves):
        values = [value for value in numbers.get(curve.names[0], ()) if value is not None]
        if values and (sentence := curve.odd(values[0], values[-1], course)):
            odd[curve.title] = sentence
    return odd


def _odd_hints(odd: Mapping[str, str]) -> list[Hint]:
    """Make hints about curves that are not as expected."""
    return [as_hint(f"{title}: {sentence}") for title, sentence in odd.items()]


def _unfold(given: Sequence[Hint]) -> list[Html]:
    """Make hints that are all shown without a click."""
    return [hints([hint]) for hint in given]


def _shorten(value: float | None) -> float | None:
    """Round a number to the digits that a picture needs."""
    return None if value is None else float(f"{value:.{_DIGITS}g}")


_MAX_POINTS = 120
_MAX_PLACES = 3
_PARTS = (("{examples} that train", "trainable_trajectories", "trajectories"),)
_LAST = (
    ("kl", "KL to the sampler", "nats"),
    ("entropy", "Entropy", "nats"),
    ("kl_base", "KL to @0", "nats"),
    ("grad_norm", "Gradient norm", "before clipping"),
)
_LAST_LEARNED = (
    ("loss", "Fine-tuning loss", "nats"),
    ("entropy", "Entropy", "nats"),
    ("kl_base", "Gain", "nats"),
    ("grad_norm", "Gradient norm", "before clipping"),
)
"""Numbers of the last gradient step, and of fine-tuning; where there are charts, the first two."""
_BESIDE_CHARTS = 2
_KINDS: dict[str, Literal["bad", "warn", "ok", "now"]] = {
    "succeeded": "ok", "failed": "bad", "cancelled": "warn", "running": "now",
}  # fmt: skip
_URGENCY: dict[Kind, int] = {"bad": 0, "warn": 1, "info": 2, "ok": 3}
_FEW_STEPS = 3
"""With fewer steps, figures are shown and no charts."""
_ROUNDING = 1e-6
_OPENED = 3
"""How many charts are opened if none of those that come first has numbers."""
_SHOWN = (
    "reward", "loss", "grad_norm", "entropy",
    "kl", "kl_base", "old_new_correlation", "ratio_mean", "ratio_max", "clipped",
)  # fmt: skip

_ALWAYS_FINITE = {"loss": "loss", "grad_norm": "gradient norm", "kl": "KL to the sampler", "entropy": "entropy"}
"""Numbers of a step that are finite unless the job has diverged, with their names in a sentence."""
_NO_OPTIONS = {"sft", "where", "files", "custom_loss"}
"""Entries among the recorded options of a job that are not typed as options."""
PLOTTED = ("reward", "loss", "entropy", "grad_norm")


def text(model: str, events: Sequence[Event], options: Options = _NONE) -> str:
    """Show a job as plain text. options: as recorded in the lab."""
    events = since_restart(events)
    divided = [f"  {division}"] if (division := _division(events, options)) else []
    curves = curves_of(options)
    odd = _odd_hints(oddities(numbers_of(events, curves=curves), curves, course_of(events)))
    lines = [_heading(model, events), *divided, *_note_lines(events, options), *(f"  {hint.line()}" for hint in odd)]
    steps = gradient_steps(events)
    if figures := step_figures(steps, _SHOWN):
        lines.append("  " + "  ".join(f"{name} {_format(value)}" for name, value in figures.items()))
    return "\n".join(lines)


def html(
    model: str,
    events: Sequence[Event],
    options: Options = _NONE,
    collections: Sequence[str] = (),
    compare: str = "",
    trained_on: Overview | None = None,
) -> Html:
    """Show a job as HTML, with curves that need no script. The arguments are those of `head`."""
    events = since_restart(events)
    made, curves = last_whole(events, "checkpoint_saved", "step"), curves_of(options)
    numbers = numbers_of(events, curves=curves)
    done, rows, _ = job_progress(events)
    name = model if made is None else f"{model}@{made}"
    steps = step_under_way(events) or ("" if rows is None else f"{done} of {count(rows, 'gradient step')}")
    about = " · ".join(filter(None, [_begun_on(events, collections), steps]))
    states = [chip(status(events), _KINDS.get(status(events), ""))]
    if before := _sampler_trained_on(collections, trained_on):
        states.append(chip(f"trained last on {before}", "out"))
    odd = oddities(numbers, curves, course_of(events))
    there = curves_with_numbers(numbers, curves)
    first = [curve for curve in there if curve.first or curve.title in odd] or there[:_OPENED]
    many = len(gradient_steps(events)) >= _FEW_STEPS
    drawn = {c.title: _chart(c, numbers, odd.get(c.title, "")) for c in first} if many else {}
    rest = _course_table(numbers, curves)
    return panel(
        parts.head(name, about, *states),
        hints(_hints(events, collections[0] if collections else "NAME", options, trained_on)),
        *_unfold(_odd_hints({title: what for title, what in odd.items() if not drawn.get(title)})),
        _band(model, events, options, trained_on),
        charts(*drawn.values()),
        f'<details><summary class="rl-foot">every curve, and how to read it</summary>{rest}</details>' if rest else "",
        next_cells(*_next_cells(events, collections, made, compare, options)),
    )


def head(
    model: str,
    events: Sequence[Event],
    collections: Sequence[str] = (),
    compare: str = "",
    options: Options = _NONE,
    trained_on: Overview | None = None,
) -> dict[str, Any]:
    """Make what a browser shows above the curves, as JSON: progress, what did not train and why, what to type next.

    Args:
        model: the model that the job trains.
        events: of the job.
        collections: names of what it trains on, for the cells to type.
        compare: the cell that compares checkpoints on one of these collections; empty if none can be sampled again.
        options: as recorded in the lab.
        trained_on: the overview of what it trains on, if that is one collection.
    """
    events = since_restart(events)
    done, rows, _ = job_progress(events)
    made, curves = last_whole(events, "checkpoint_saved", "step"), curves_of(options)
    odd = oddities(numbers_of(events, curves=curves), curves, course_of(events))
    above = _odd_hints(odd) if len(gradient_steps(events)) < _FEW_STEPS else []  # else below their charts
    notes = hints(_hints(events, collections[0] if collections else "NAME", options, trained_on))
    return {
        "status": status(events),
        "ended": bool(events) and events[-1].type in ENDINGS,
        "model": escape_control_chars(model),
        "about": escape_control_chars(_begun_on(events, collections)),
        "before": escape_control_chars(_sampler_trained_on(collections, trained_on)),
        "done": done,
        "part": fraction_done(events) - done,
        "within": _within(events),
        "rows": rows,
        "made": None if made is None else escape_control_chars(f"{model}@{made}"),
        "band": tree(_band(model, events, options, trained_on)),
        "hints": tree("".join([notes, *_unfold(above)])),
        "odd": odd,
        "next": [escape_control_chars(line) for line in _next_cells(events, collections, made, compare, options)],
    }


def _begun_on(events: Sequence[Event], collections: Sequence[str]) -> str:
    """Name the checkpoint that a job starts from, and what it trains on: `from @12 · stuck2:13`."""
    begun = last_whole(events, "training_started", "step")
    return " · ".join(filter(None, ["" if begun is None else f"from @{begun}", ", ".join(collections)]))


def _sampler_trained_on(collections: Sequence[str], trained_on: Overview | None) -> str:
    """Name the collections that the sampled checkpoint was trained on; empty if they are those of the job."""
    before = trained_on.trained_on if trained_on else ""
    own = {name.partition(":")[0] for name in collections}
    return "" if {name.partition(":")[0] for name in before.split(", ")} <= own else before


def plot(model: str, steps: Sequence[dict[str, Any]], names: Sequence[str]) -> Panels:
    """Plot each number over the gradient steps that have it."""
    shown = [name for name in names if any(y is not None for y in numbers(steps, name))]
    every = -(-len(steps) // _MAX_POINTS) or 1
    places, drawn = [float(i) for i in range(1, len(steps) + 1)][::every], steps[::every]
    return Panels(
        [Plot([Series(name, places, numbers(drawn, name))], title=name, x_label="gradient step") for name in shown],
        empty=f"job on {model}: no gradient steps to plot yet",
    )


def _heading(model: str, events: Sequence[Event]) -> str:
    done, rows, _ = job_progress(events)
    made = last_whole(events, "checkpoint_saved", "step")
    became = "" if made is None else f" -> {model}@{made}"
    steps = "" if rows is None else f"{done} of {count(rows, 'gradient step')}"
    where = step_under_way(events) or steps
    return f"job on {model}: {status(events)}{', ' * bool(where)}{where}{became}"


def step_under_way(events: Sequence[Event]) -> str:
    """Say how far the present step is: `step 1 of 2, 40k of 96k tokens`; empty if that is not reported."""
    done, rows, _ = job_progress(events)
    within = _within(events)
    return f"step {done + 1:,}{f' of {rows:,}' if rows else ''}, {within}" if within else ""


def _within(events: Sequence[Event]) -> str:
    """Say how much of the present step is done: `40k of 96k tokens`; empty if that is not reported."""
    return f"{short(within[0])} of {short(within[1])} tokens" if (within := within_step(events)) else ""


def _division(events: Sequence[Event], options: Options) -> str:
    """Say how a job is divided: `2 steps of 8 groups (each 64 completions, ≈ 96k tokens)`; empty if not known."""
    rows = last_whole(events, "training_started", "num_sequences")
    names = ("trainable_groups", "trainable_trajectories", "trainable_tokens")
    groups, answers, tokens = (last_whole(events, "preflight", name) for name in names)
    epochs = options.get("epochs") or 1
    if (
        last_value(events, "preflight", "advantage_scale") is None
        or not (rows and groups)
        or answers is None
        or tokens is None
    ):
        return ""
    return step_words(groups, max(1, rows // epochs), answers, tokens, epochs)


def _note_lines(events: Sequence[Event], options: Options) -> list[str]:
    """Return what `_notes` returns as lines of a text."""
    return [f"  {note.fact}" for note in _notes(events, "NAME", options)]


def _notes(events: Sequence[Event], collection: str, options: Options) -> list[Hint]:
    """Make notes: why the job failed, which numbers are not finite, what did not train and why, and warnings."""
    failed = [
        Hint(escape_control_chars(str(event.data.get("error_message") or NO_REASON)), cell="%service log", kind="bad")
        for event in events
        if event.type == "training_failed"
    ]
    checked = [event.data for event in events if event.type in {"preflight", "drift"}]
    left_out = [hint for data in checked for hint in _left_out_hints(data, collection, options)]
    warnings = [warning for data in checked for warning in _value_as(list, data.get("warnings"))]
    return [
        *failed,
        *_diverged_hints(gradient_steps(events)),
        *left_out,
        *(as_hint(escape_control_chars(str(warning))) for warning in warnings),
    ]


def _diverged_hints(steps: Sequence[Mapping[str, Any]]) -> list[Hint]:
    """Make hints about numbers that are NaN, infinite or null, with the step from which on the job has diverged."""
    by_place: dict[str, list[str]] = {}
    for name, title in _ALWAYS_FINITE.items():
        at = [i for i, step in enumerate(steps, 1) if name in step and number(step[name]) is None]
        if at:
            to_the_end = len(at) > 1 and at == list(range(at[0], len(steps) + 1))
            some = f"at step {at[0]}" if len(at) == 1 else f"at {len(at):,} of {len(steps):,} steps, first at {at[0]}"
            by_place.setdefault(f"from step {at[0]} on" if to_the_end else some, []).append(title)
    return [
        Hint(f"{' and '.join(names)} {'is not a number' if len(names) == 1 else 'are not numbers'} {place}", kind="bad")
        for place, names in by_place.items()
    ]


def _left_out_hints(data: Mapping[str, Any], collection: str, options: Options) -> Iterator[Hint]:
    """Yield hints about what did not train by one check, and why."""
    for reason, n in _value_as(dict, data.get("reasons")).items():
        why, fix = explained(reason, collection)
        fix = "" if options.get("files") else fix  # it is about trajectories
        what = list(map(str, _value_as(dict, data.get(reason)))) if reason == "unreadable" else []
        why += f", {', '.join(what[:_MAX_PLACES])}" * bool(what)
        line = f"{'some' if whole(n) is None else n} did not train: {why}" + f" -> {fix}" * bool(fix)
        yield as_hint(escape_control_chars(line), "info")


def _value_as(kind: type[_T], value: Any) -> _T:
    """Return a value of an event if it has this type, else an empty one: a service may send null, or anything."""
    return value if isinstance(value, kind) else kind()


def _hints(events: Sequence[Event], collection: str, options: Options, trained_on: Overview | None) -> list[Hint]:
    """Make all hints, the most urgent first: the notes, and what was wrong with the answers."""
    made = _notes(events, collection, options)
    answers = list(trained_on.hints) if trained_on else []
    return sorted([*answers, *made], key=lambda hint: _URGENCY[hint.kind])


def _band(model: str, events: Sequence[Event], options: Options, trained_on: Overview | None) -> Html:
    """Draw the figures of the whole job, and of its last gradient step."""
    steps = gradient_steps(events)
    examples = "conversations" if options.get("sft") else "answers"
    rewards = _known_values(steps, "reward")
    figures = [_reward_figure(rewards, trained_on, _whose(model, events, trained_on))] if rewards else []
    for name, part, all_ in (("Groups that train", "trainable_groups", "groups"), *_PARTS):
        n, of = (last_whole(events, "preflight", each) for each in (part, all_))
        if n is not None and of is not None and not (part == "trainable_trajectories" and trained_on):
            bar = share((n / max(1, of), "")) if part == "trainable_groups" else Html("")
            figures.append(figure(name.format(examples=examples), f"{n:,}", f"of {of:,}", bar, odd=not n))
    if trained_on and trained_on.whole.answers:
        cut, answers = trained_on.whole.cut_off, trained_on.whole.answers
        odd = 5 * cut >= answers
        figures.append(
            figure("Cut off", percent(cut / answers), "", line(f"{cut:,} of {count(answers, 'answer')}"), odd=odd)
        )
    last_numbers = _LAST_LEARNED if options.get("sft") else _LAST
    for name, title, unit in last_numbers[: _BESIDE_CHARTS if len(steps) >= _FEW_STEPS else None]:
        values = [(i, value) for i, value in enumerate(numbers(steps, name), 1) if value is not None]
        if values:
            (begun, first), (ended, last) = values[0], values[-1]
            steps_of = f"at step {ended}, {_round_off(first)} at step {begun}" if ended > begun else f"at step {ended}"
            figures.append(figure(title, _round_off(last), unit, *([line(steps_of)] if len(steps) > 1 else [])))
    return band(*figures, *_plan_figures(events, options))


def _whose(model: str, events: Sequence[Event], trained_on: Overview | None) -> str:
    """Say which checkpoint the rewards of a job belong to: the one that it started from, others, or not known."""
    if not trained_on or not trained_on.checkpoints:
        return "of what it trained on"
    (name, step), *others = trained_on.checkpoints
    begun = last_value(events, "training_started", "step")
    if not others and step is not None and checkpoint_name(name, step) == checkpoint_name(model, begun):
        return "of the model before this job"
    return f"of {checkpoint_name(name, step)}" + f" and {len(others)} more" * bool(others)


def _reward_figure(rewards: Sequence[float], trained_on: Overview | None, whose: str) -> Html:
    """Draw the mean reward of the job. If a service reports a reward for each step, it is the mean of those."""
    mean = mean_of(rewards)
    same = trained_on and trained_on.whole.mean is not None and math.isclose(trained_on.whole.mean, mean, abs_tol=1e-3)
    unit = overview.around(trained_on).strip() if trained_on and same else ""
    return figure("Reward", f"{mean:.3g}", unit, line(escape_control_chars(whose)))


def _plan_figures(events: Sequence[Event], options: Options) -> list[Html]:
    """Draw the steps and the learning rate of a job."""
    figures = []
    sequences, trajectories = (
        last_whole(events, "preflight", name) for name in ("sequences", "trainable_trajectories")
    )
    if sequences is not None and trajectories is not None and sequences > trajectories:
        figures.append(figure("Sequences that they are", f"{sequences:,}"))
    done, rows, _ = job_progress(events)
    rate, rates = number(last_value(events, "training_started", "learning_rate")), options.get("learning_rate")
    written = "" if rate is None else f"{rate:g}"
    each = [known for rate in rates if (known := number(rate)) is not None] if isinstance(rates, list) else []
    if len(set(each)) > 1:  # one for each step
        written = f"{min(each):g} to {max(each):g}"
    if rows:
        below = [_division(events, options), f"learning rate {written}" if written else ""]
        figures.append(figure("Steps", f"{done:,}", f"of {rows:,}", *(line(text) for text in below if text)))
    elif written:
        figures.append(figure("Learning rate", written))
    return figures


def _chart(curve: Curve, numbers: Numbers, odd: str = "") -> Html:
    """Draw a curve, with how to read it, or what is odd. A second line that is always 0 is left out."""
    drawn = [
        ChartLine(name, [(float(i), y) for i, y in enumerate(numbers[name], 1) if y is not None])
        for k, name in enumerate(curve.names)
        if any(y if k else y is not None for y in numbers.get(name, ()))
    ]
    values = [y for _, y in drawn[0].points] if drawn else []
    middle = f"median {_typeset(median(values))}" if values and curve.names[0] in DISTANCES else ""
    value = middle or "".join(map(_typeset, values[-1:]))
    steps = float(max(map(len, numbers.values()), default=0))
    return chart(curve.title, drawn, value=value, says=arrows(odd or curve.healthy), odd=bool(odd), until=steps)


def _next_cells(
    events: Sequence[Event], collections: Sequence[str], made: Any, compare: str, options: Options
) -> list[str]:
    """Return the cells to type once the job has ended."""
    if made is None:
        message = str(last_value(events, "training_failed", "error_message") or "")
        return [_cell_again(collections, options, message)] if status(events) in {"failed", "cancelled"} else []
    begun = last_value(events, "training_started", "step")
    before = f" --before {begun}" if begun is not None else ""
    command, newline, body = compare.partition("\n")
    return [f"{command}{before} --after {made}{newline}{body}"] if compare else []


def _cell_again(collections: Sequence[str], options: Options, message: str) -> str:
    """Return the cell that submits such a job again, without the options that the `message` of its failure names."""
    names = [*collections, *options.get("files", ())] or ["NAME"]
    given = {name: value for name, value in options.items() if name not in _NO_OPTIONS and name not in message}
    where, sft = str(options.get("where") or ""), bool(options.get("sft"))
    if given or options.get("custom_loss") or "F." in where:
        what = [repr(names), *([repr(given)] if given else []), *(["sft=True"] if sft else [])]
        what += [f"where={where if 'F.' in where else repr(where)}"] if where else []
        return f"lab.train({', '.join(what)}{', loss=fn' if options.get('custom_loss') else ''})"
    return f"%%train {' '.join(names)}" + " --sft" * sft + f' --where "{where}"' * bool(where)


def _known_values(steps: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return the values of a number at the steps that have it."""
    return [value for value in numbers(steps, name) if value is not None]


def _course_table(numbers: Numbers, curves: Sequence[Curve]) -> Html:
    """Draw a table with a row for each curve: its course, its first and last value, and how to read it."""
    rows = []
    for curve in curves_with_numbers(numbers, curves):
        values = [y for y in numbers.get(curve.names[0], ()) if y is not None]
        ends = [_typeset(values[0]), _typeset(values[-1])] if values else ["", ""]
        rows.append(TableRow([curve.title, spark(values), *ends, curve.healthy]))
    columns = (
        Heading("curve"), Heading("course", middle=True), Heading("first", number=True), Heading("last", number=True),
        Heading("how to read it"),
    )  # fmt: skip
    return table(columns, rows, "curves") if rows else Html("")


def _round_off(value: float) -> str:
    """Format a figure. A value that differs from 0 only by rounding is 0."""
    return "0" if abs(value) < _ROUNDING else f"{value:.3g}"


def _format(value: float) -> str:
    return f"{value:.4g}"


def _typeset(value: float) -> str:
    return with_minus(_format(value))
