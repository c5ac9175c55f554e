"""A whole collection as text and HTML: what a person should know first, its figures, a strip of its groups."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rolloutlab.hints import Hint
from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.widgets.html import Html, escape
from rolloutlab.widgets.kit.listing import percent
from rolloutlab.widgets.kit.parts import band, bars, chip, figure, head, hints, key, line, next_cells, parts, share
from rolloutlab.widgets.text import number, with_minus

Standing = Literal["trains", "pass", "fail", "equal", "other", "unscored"]
"""Whether a group trains, or why not: all pass, all fail, other equal rewards, it cannot train, no reward yet."""

WORDS: dict[Standing, str] = {
    "trains": "trains",
    "pass": "all pass",
    "fail": "all fail",
    "equal": "equal rewards",
    "other": "cannot train",
    "unscored": "not scored yet",
}
_CLASSES: dict[Standing, str] = {"trains": "", "pass": "pass", "fail": "fail", "equal": "fail", "other": "none"}
MOST_BARS = 240
"""The most bars of a strip. If there are more groups, a bar stands for several."""
MOST_PARTS = 4


@dataclass(frozen=True)
class GroupBar:
    """A bar of the strip, for one or several groups.

    name, position: those of its first group. mean: the mean reward, scaled to 0 to 1. groups: how many groups it stands
    for. fits: whether any row of these groups fits the filter.
    """

    name: str
    position: int
    standing: Standing
    mean: float | None
    groups: int = 1
    fits: bool = True


@dataclass(frozen=True)
class Histogram:
    """Counts of equally wide bins from `low` to `high`."""

    counts: Sequence[int]
    low: float
    high: float


@dataclass(frozen=True)
class Figures:
    """Figures of some answers.

    mean: their mean reward. parts: the mean of each component. cut_off: how many were cut off. scored_cut_off: how many
    of those have a reward. failures: how many have the lowest reward, if it is not above 0. failures_cut_off: how many
    of those were cut off.
    """

    answers: int
    scored: int
    groups: int
    standings: dict[Standing, int]
    mean: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    rewards: Histogram | None = None
    lengths: Histogram | None = None
    median: float | None = None
    cut_off: int = 0
    failures: int = 0
    failures_cut_off: int = 0
    scored_cut_off: int = 0


@dataclass(frozen=True)
class Overview:
    """A whole collection and, with a filter, the part that fits it.

    whole: the figures of all answers.
    bars: the strip of groups.
    interval: the 95% interval of the mean reward, over groups.
    pass_at: by k, the chance that one of k answers passes.
    former: the previous generation: its name, its mean reward, how many of its answers are scored, and the settings in
        which it differs. The last is empty if the two means can be compared.
    usage: the tokens that the collection used, and their cost.
    fitting: the figures of the answers that fit the filter.
    next: the cell that scores the collection, if nothing is scored.
    checkpoints: the checkpoints that sampled it, newest first, if a job has to name them.
    """

    whole: Figures
    bars: Sequence[GroupBar] = ()
    interval: tuple[float, float] | None = None
    pass_at: dict[int, float] = field(default_factory=dict)
    former: tuple[str, float, int, str] | None = None
    hints: Sequence[Hint] = ()
    about: str = ""
    trained_on: str = ""
    largest: float = 0.0
    usage: str = ""
    fitting: Figures | None = None
    next: str = ""
    checkpoints: Sequence[tuple[str, int | None]] = ()


def text(shown: Overview) -> list[str]:
    """Write hints and figures as lines, to stand below a heading that has the mean reward."""
    whole = shown.whole
    lines = [hint.line() for hint in shown.hints]
    if beside := [*_former(shown), *_passes(shown)]:
        lines.append(", ".join(beside))
    if whole.mean is not None:
        others = [f"{n:,} {WORDS[kind]}" for kind, n in whole.standings.items() if n and kind != "trains"]
        trains = f"{whole.standings.get('trains', 0):,} of {count(whole.groups, 'group')} train"
        lines.append("; ".join([trains, ", ".join(others)]) if others else trains)
    if whole.parts:
        lines.append(", ".join(f"{escape_control_chars(name)} {number(mean)}" for name, mean in whole.parts.items()))
    if whole.median is not None:
        lines.append(", ".join(_length_words(whole)))
    if shown.next:
        lines += ["to score them:", *(f"  {each}" for each in shown.next.splitlines())]
    return lines


def heading(name: str, shown: Overview, actions: str = "") -> Html:
    """Draw the first line of a collection's view."""
    chips = [chip(f"replaces {shown.former[0]}, {shown.former[2]:,} scored", "out")] if shown.former else []
    chips += [chip(f"trained last on {shown.trained_on}", "out")] if shown.trained_on else []
    return head(name, shown.about, *chips, actions=actions)


def html(shown: Overview) -> Html:
    """Draw hints, figures and the strip. With a filter, the figures are those of what fits it, with all behind."""
    figures = shown.fitting or shown.whole
    cells = [_reward(shown, figures), _groups(figures), _components(shown, figures), _lengths(shown, figures)]
    return Html(f"{hints(shown.hints)}{band(*filter(None, cells))}{strip(shown.bars)}{next_cells(shown.next)}")


def strip(groups: Sequence[GroupBar]) -> Html:
    """Draw a bar for each group, in the order given. Groups with nothing to learn are hatched."""
    if len(groups) < 2:
        return Html("")
    kinds = list(dict.fromkeys(each.standing for each in groups))
    drawn: list[str] = []
    before = None
    for each in groups:
        drawn += ["<em></em>"] if before not in {None, each.standing} else []
        drawn.append(_bar(each))
        before = each.standing
    named = [(kind, "trains, fill = mean reward" if kind == "trains" else WORDS[kind]) for kind in kinds]
    legend = "".join(f"<span>{key(_CLASSES.get(kind, 'none'), words)}</span>" for kind, words in named)
    most = max(each.groups for each in groups)
    some = f", a bar for {most} groups or fewer" if most > 1 else ""
    first = f"<span><b>Groups</b>, most spread first{some}</span>"
    return Html(f'<div class="rl-groups"><p>{first}{legend}</p><div role="list">{"".join(drawn)}</div></div>')


def _bar(each: GroupBar) -> str:
    kind = _CLASSES.get(each.standing, "none")
    classes = " ".join(filter(None, ["rl-groups-bar", f"rl-{kind}" if kind else "", "" if each.fits else "rl-off"]))
    # by `height`, not by a CSS property of our own, which a page that is not trusted would remove
    fill = f'<b style="height:{100 * (each.mean or 0):.3g}%"></b>' if each.standing == "trains" else ""
    name = each.name if each.groups == 1 else f"{each.name} and {each.groups - 1} more"
    title = escape(f"{name}: {WORDS[each.standing]}")
    return f'<i role="listitem" class="{classes}" title="{title}" data-position="{each.position}">{fill}</i>'


def _reward(shown: Overview, figures: Figures) -> Html:
    whole, some = shown.whole, figures is not shown.whole
    answers = f"{count(figures.answers, 'answer')} that fit{'s' * (figures.answers == 1)}" if some else ""
    if figures.mean is None:
        scored = "no reward among them" if some else "not scored yet"
        return figure(f"Mean reward of {answers}" if some else "Mean reward", "", "", line(scored))
    unit = f"all {whole.answers:,}: {number(whole.mean)}" if some else around(shown).strip()
    scored = f" of {figures.scored:,} of {figures.answers:,}" if figures.scored < figures.answers else ""
    below: list[Html] = []
    if not some:
        below += [line(words) for words in _former(shown)]
    if drawn := whole.rewards:
        counts = figures.rewards.counts if figures.rewards else ()
        ends = f"{drawn.low:g}", f"{drawn.high:g}"
        label = f"rewards from {ends[0]} to {ends[1]}: {', '.join(map(str, counts))}"
        below.append(bars(counts, *ends, label, of=drawn.counts if some else None))
    return figure(f"Mean reward of {answers}" if some else f"Mean reward{scored}", number(figures.mean), unit, *below)


def _groups(figures: Figures) -> Html:
    if figures.mean is None:
        size = figures.answers / max(1, figures.groups)
        return figure("Groups", f"{figures.groups:,}", f"with {number(size)} answers each" if figures.groups else "")
    all_ = max(1, figures.groups)
    drawn = share(*((n / all_, _CLASSES.get(kind, "none")) for kind, n in figures.standings.items()))
    others = [(kind, n) for kind, n in figures.standings.items() if kind != "trains" and n]
    legend = "".join(key(_CLASSES.get(kind, "none"), f"{n:,} {WORDS[kind]}") for kind, n in others)
    trains = figures.standings.get("trains", 0)
    below = Html(f'<span class="rl-line">{legend}</span>') if legend else Html("")
    return figure("Groups that train", f"{trains:,}", f"of {figures.groups:,}", drawn, below, odd=not trains)


def _components(shown: Overview, figures: Figures) -> Html:
    rows = []
    for name, mean in list(figures.parts.items())[:MOST_PARTS]:
        before = shown.whole.parts.get(name) if figures is not shown.whole else None
        value = number(mean) if before is None else f"{number(mean)} all {number(before)}"
        rows.append((name, mean if 0 <= mean <= 1 else 0.0, value))
    rest = len(figures.parts) - len(rows)
    below = [parts(rows)] if rows else []
    below += [line(f"{rest} more parts")] if rest > 0 else []
    passes = _passes(shown) if figures is shown.whole else []
    below += [line(" · ".join(passes))] if passes else []
    name = "Parts of the reward" if rows else "A reward of 1 among k answers"
    return figure(name, "", "", *below) if below else Html("")


def _lengths(shown: Overview, figures: Figures) -> Html:
    if figures.median is None or shown.whole.lengths is None:
        return Html("")
    drawn = shown.whole.lengths
    counts = figures.lengths.counts if figures.lengths else ()
    label = f"tokens from {drawn.low:g} to {drawn.high:g}: {', '.join(map(str, counts))}"
    of = drawn.counts if figures is not shown.whole else None
    picture = bars(counts, f"{drawn.low:g}", f"{drawn.high:,.0f}", label, of=of)
    below = [line(" · ".join(_length_words(figures)), odd=5 * figures.cut_off >= figures.answers)]
    below += [line(shown.usage)] if shown.usage and figures is shown.whole else []
    return figure("Answer length, tokens", "", "", picture, *below)


def _length_words(figures: Figures) -> list[str]:
    cut_off = f"cut off {percent(figures.cut_off / figures.answers)}" if figures.cut_off else ""
    return [f"median {figures.median:,.4g} tokens", *([cut_off] if cut_off else [])]


def around(shown: Overview) -> str:
    """Write the interval of the mean as ` ± 0.07`, or as ` (0.61 to 0.74)` if the mean is not in its middle."""
    if shown.interval is None or shown.whole.mean is None:
        return ""
    low, high = shown.interval
    mean = shown.whole.mean
    half = (high - low) / 2
    if abs((low + high) / 2 - mean) <= 0.1 * half:
        return f" ± {half:.2g}"
    return f" ({with_minus(number(low))} to {with_minus(number(high))})"


def _former(shown: Overview) -> list[str]:
    if not shown.former:
        return []
    name, mean, _, otherwise = shown.former
    return [f"{name} had {number(mean)}" + (f" with {otherwise}" if otherwise else "")]


def _passes(shown: Overview) -> list[str]:
    return [f"pass@{k} {number(chance)}" for k, chance in shown.pass_at.items()]
