"""A dry run as text and HTML: the report, then each trajectory with its advantage, or why it would not train."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rolloutlab.hints import Hint, as_hint
from rolloutlab.objective.advantages import Reason, TokenWeight, TurnWeight
from rolloutlab.objective.preflight import WHY, WHY_NOT, Preflight, Report, Seat, count
from rolloutlab.widgets.html import Html, code, escape
from rolloutlab.widgets.kit.parts import (
    advantage_bar,
    advantage_bars,
    band,
    chip,
    figure,
    foot,
    head,
    hints,
    key,
    line,
    next_cells,
    panel,
    share,
    steps,
)
from rolloutlab.widgets.kit.table import Heading, TableRow, table
from rolloutlab.widgets.text import more, number, signed, text_table, with_minus

_MAX_GROUPS, _MAX_TURNS = 8, 8
_REST = ".to_frame() has them"
_HONOURED = ": honoured by "
"""A part of report lines that only say that this service supports options which others may not: no warnings."""
_BINS = 24
_SHOWN_ROWS = 16
"""The most trajectories that are listed without a click."""
_CLASSES = {
    "trains": "",
    WHY_NOT[Reason.ALL_PASSED]: "pass",
    WHY_NOT[Reason.ALL_FAILED]: "fail",
    WHY_NOT[Reason.EQUAL_REWARDS]: "fail",
}
_COLUMNS = (
    Heading("trajectory"),
    Heading("reward", number=True),
    Heading("advantage"),
    Heading("weight", number=True, middle=True),
    Heading("tokens", number=True, middle=True),
)


@dataclass(frozen=True)
class Rated:
    """One trajectory. Each of its `tokens` would train with this advantage and weight, unless it has a `reason`.

    reason: why nothing of it would train; then advantage and weight are 0. sequences, split: see `Seat`. turns: the
    turns, if they have advantages of their own.
    """

    name: str
    reward: float | None
    advantage: float
    weight: float
    tokens: int
    reason: Reason | None
    sequences: int = 1
    split: str = ""
    turns: Sequence[TurnWeight] = ()


def rate(stored: Sequence[Sequence[Seat]], check: Preflight) -> list[list[Rated]]:
    """Return every trajectory of the stored groups, with its share of the job."""
    shares = {share.member.name: share for share in check.all_shares()}
    return [[_rate(seat, shares.get(seat.name)) for seat in group] for group in stored]


def by_turn(one: Rated) -> list[Rated]:
    """Split a trajectory into its turns, each as a `Rated`. Without advantages of turns, return only itself."""
    turns = [turn for turn in one.turns if turn.turn is not None or turn.tokens]
    return [_turn(one, turn) for turn in turns] or [one]


def _turn(one: Rated, turn: TurnWeight) -> Rated:
    idle = None if turn.advantage is not None else Reason.NO_TURN_ADVANTAGE if turn.tokens else Reason.NO_LOGPROBS
    advantage, weight = turn.advantage or 0.0, 0.0 if idle else one.weight
    return replace(
        one, advantage=advantage, weight=weight, tokens=turn.tokens, reason=one.reason or idle, turns=(turn,)
    )


@dataclass(frozen=True)
class LastJob:
    """The last job of a model: its id, names of what it was trained on, and the options as they were sent."""

    id: str
    trained_on: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    is_fine_tuning: bool = False

    def __str__(self) -> str:
        """`trained last on capitals:1`."""
        return f"{'fine-tuned' if self.is_fine_tuning else 'trained'} last on {', '.join(self.trained_on) or self.id}"


@dataclass(frozen=True)
class Plan:
    """A job that was not submitted.

    names: the collections.
    size: how many prompts and answers they have.
    checkpoint: the checkpoint that it starts from.
    check: the preflight check.
    report: its report.
    steps: the number of groups of each step; several plans if it is not known which applies.
    epochs: how often the steps are repeated.
    rate: the learning rate, and whether it is the default.
    cost: the cost in dollars, if the model has a price.
    last: the last job of the model.
    answers: hints about the answers, such as how many were cut off.
    cell: the cell that submits it.
    """

    names: Sequence[str]
    size: str
    checkpoint: str
    check: Preflight
    report: Report
    steps: Sequence[Sequence[int]] = ()
    epochs: int = 1
    rate: tuple[str, str] | None = None
    cost: str = ""
    last: LastJob | None = None
    answers: Sequence[Hint] = ()
    cell: str = ""

    def heading(self) -> str:
        """Write `dry run of capitals for lab/practice@1, trained last on capitals:1: nothing was submitted`."""
        last = f", {self.last}" if self.last else ""
        return f"dry run of {', '.join(self.names)} for {self.checkpoint}{last}: nothing was submitted"

    def lines(self) -> list[str]:
        """Write hints about the answers, the report, and what the job costs."""
        cost = f"cost: {self.cost} for {count(self.check.trainable_tokens, 'trained token')}"
        return [*(hint.line() for hint in self.answers), *self.report.lines(), *([cost] if self.cost else [])]

    def step_words(self) -> str:
        """Write `16 steps`, `2 x 16 steps` for two epochs, or `3 or 2 steps`.

        Empty if the service divides the job, or nothing trains.
        """
        numbers = [len(plan) for plan in self.steps]
        times = f"{self.epochs} \N{MULTIPLICATION SIGN} " if self.epochs > 1 else ""
        plural = "" if numbers == [1] and not times else "s"
        return f"{times}{' or '.join(f'{n:,}' for n in numbers)} step{plural}" if numbers else ""


def text(plan: Plan, groups: Sequence[Sequence[Rated]]) -> str:
    """Write the dry run as plain text."""
    lines = [plan.heading(), *plan.lines()]
    for group in groups[:_MAX_GROUPS]:
        rows = [(one.name, number(one.reward), _effect(one)) for one in group]
        lines += ["", *text_table((), rows, "<16 >7")]
    rest = more(len(groups) - _MAX_GROUPS, _REST, "group")
    return "\n".join([*lines, *([""] if rest else []), *rest])


def html(plan: Plan, groups: Sequence[Sequence[Rated]]) -> Html:
    """Draw the dry run as a view."""
    largest = max((abs(share.advantage) for share in plan.check.all_shares()), default=0.0)
    rows = [_row(one, largest) for group in groups[:_MAX_GROUPS] for one in group]
    return panel(
        head(f"Dry run of {', '.join(plan.names)}", *about(plan), chip("nothing was submitted")),
        hints(plan_hints(plan)),
        band(*plan_figures(plan)),
        _list_rows(rows),
        *map(foot, more(len(groups) - _MAX_GROUPS, _REST, "group")),
        next_cells(plan.cell) if plan.check.trainable_trajectories else "",
    )


def _list_rows(rows: Sequence[TableRow]) -> Html:
    """Draw a row for each trajectory. If there are many, a click opens them."""
    made = table(_COLUMNS, rows, "trajectories") if rows else Html("")
    if len(rows) <= _SHOWN_ROWS:
        return made
    first = f"{count(len(rows), 'trajectory')}, one by one"
    return Html(f'<details><summary class="rl-foot">{first}</summary>{made}</details>')


def about(plan: Plan) -> tuple[str, Html]:
    """Write the size and the checkpoint of a job, and draw what that model was last trained on."""
    model, _, step = plan.checkpoint.rpartition("@")
    made = f" \N{RIGHTWARDS ARROW} @{int(step) + 1}" if model and step.isdecimal() else ""
    return f"{plan.size} · {plan.checkpoint}{made}", chip(str(plan.last or "no job of this model yet"), "out")


def plan_hints(plan: Plan) -> list[Hint]:
    """List what a person should know: hints about the answers, warnings, what is left out, further facts."""
    advised = [fact for fact in plan.report.facts if " -> " in fact]
    facts = [fact for fact in plan.report.facts[1:] if fact not in advised]
    remarks = [warning for warning in plan.report.warnings if _HONOURED in warning]
    warnings = [warning for warning in plan.report.warnings if warning not in remarks]
    known = [*plan.report.left_out, *facts, *remarks]
    return [*plan.answers, *map(as_hint, [*advised, *warnings]), *(as_hint(each, "info") for each in known)]


def plan_figures(plan: Plan) -> list[Html]:
    """Draw the figures: steps, groups and answers that train, advantages, learning rate, cost."""
    check = plan.check
    standings = check.counts_by_status()
    groups = max(1, len(check.shares))
    drawn = share(*((n / groups, _CLASSES.get(kind, "none")) for kind, n in standings.items()))
    untrained = [(kind, n) for kind, n in standings.items() if kind != "trains"]
    others = "".join(key(_CLASSES.get(kind, "none"), f"{n:,} {kind}") for kind, n in untrained)
    legend = Html(f'<span class="rl-line">{others}</span>') if others else Html("")
    trains = check.trainable_groups
    figures = [
        steps_figure(plan),
        figure("Groups that train", f"{trains:,}", f"of {len(check.shares):,}", drawn, legend, odd=not trains),
        figure(
            "Answers that train",
            f"{check.trainable_trajectories:,}",
            f"of {check.trajectories:,}",
            line(count(check.trainable_tokens, "token")),
        ),
        advantages_figure(check),
        figure("Learning rate", *plan.rate) if plan.rate else Html(""),
        figure("Cost", plan.cost) if plan.cost else Html(""),
    ]
    return [each for each in figures if each]


def steps_figure(plan: Plan) -> Html:
    """Draw the number of steps, with a square for each group of each step."""
    words = plan.step_words()
    if not words:
        return figure("Steps", "as the service divides" if plan.check.trainable_groups else "0")
    value, _, unit = words.rpartition(" ")
    if len(plan.steps) > 1:
        return figure("Steps", value, "", line("known once the service runs"))
    sizes = plan.steps[0]
    least, most = min(sizes), max(sizes)
    of = count(least, "group") if least == most else f"{least:,} to {most:,} groups"
    each = plan.report.steps.partition("(")[2].removesuffix(")")
    return figure("Steps", value, f"{unit} of {of}", steps(sizes, f"{words} of {of}"), line(each))


def spread(check: Preflight) -> dict[str, Any] | None:
    """Count the advantages that train in equal bins around 0; return also the least and the most; None without any."""
    turns = (turn for share in check.all_shares() for turn in share.by_turn())
    advantages = [turn.advantage for turn in turns if turn.advantage is not None]
    widest = max(map(abs, advantages), default=0.0)
    if not widest:
        return None
    bins = [0] * _BINS
    for advantage in filter(None, advantages):
        bins[min(_BINS - 1, math.floor((advantage / widest + 1) / 2 * _BINS))] += 1
    above, below = sum(a > 0 for a in advantages), sum(a < 0 for a in advantages)
    at_0 = len(advantages) - above - below
    least, most = min(advantages), max(advantages)
    return {"least": least, "most": most, "above": above, "below": below, "at_0": at_0, "bins": bins}


def advantages_figure(check: Preflight) -> Html:
    """Draw a histogram around 0: what becomes less likely on the left, what becomes more likely on the right."""
    drawn = spread(check)
    if drawn is None:
        return Html("")
    ends = [with_minus(signed(drawn[end], ".2g")) for end in ("least", "most")]
    at_0 = f", {drawn['at_0']:,} at 0" if drawn["at_0"] else ""
    label = f"advantages from {ends[0]} to {ends[1]}: {drawn['above']:,} above 0, {drawn['below']:,} below{at_0}"
    answers = count(drawn["above"] + drawn["below"] + drawn["at_0"], "answer")
    likely = line("below 0 less likely, above 0 more")
    widest = f"{max(-drawn['least'], drawn['most']):.2g}"
    bars = advantage_bars(drawn["bins"], f"\N{MINUS SIGN}{widest}", f"+{widest}", label)
    return figure(f"Advantages of {answers}", "", "", bars, likely)


def _rate(seat: Seat, share: TokenWeight | None) -> Rated:
    reason = share.reason if share else Reason.UNSCORED
    advantage, weight = (share.advantage, share.weight) if share else (0.0, 0.0)
    turns = share.by_turn() if share and share.turns else ()
    return Rated(seat.name, seat.reward, advantage, weight, seat.tokens, reason, seat.sequences, seat.split, turns)


def _effect(one: Rated) -> str:
    if one.reason:
        return WHY[one.reason]
    tokens = f"{_trained(one)}{count(one.tokens, 'token')}{f' in {one.split}' if one.split else ''}"
    return f"advantage {_advantage(one)} x weight {one.weight:.2f} on {tokens}"


def _trained(one: Rated) -> str:
    return f"{sum(turn.tokens for turn in one.turns if turn.advantage is not None):,} of " if one.turns else ""


def _advantage(one: Rated) -> str:
    """Write the advantage, or those of the first turns and of additional histories."""
    if not one.turns:
        return signed(one.advantage)
    *turns, rest = ["none" if turn.advantage is None else signed(turn.advantage) for turn in one.turns]
    hidden = [f"and {len(turns) - _MAX_TURNS} more"] if len(turns) > _MAX_TURNS else []
    additional = [f"additional {rest}"] if one.turns[-1].tokens else []
    return ", ".join([*turns[:_MAX_TURNS], *hidden, *additional])


def _row(one: Rated, largest: float) -> TableRow:
    trained = f"{_trained(one)}{one.tokens:,}"
    tokens = f"{trained} in {one.split}" if one.split else trained
    shown, weight = Html(f'<span class="rl-dim">{escape(WHY[one.reason])}</span>' if one.reason else ""), ""
    if not one.reason:
        bar = "" if one.turns else advantage_bar(one.advantage, largest)
        shown, weight = Html(f"{bar}{escape(with_minus(_advantage(one)))}"), f"{one.weight:.2f}"
    return TableRow([code(one.name), number(one.reward), shown, weight, tokens])
