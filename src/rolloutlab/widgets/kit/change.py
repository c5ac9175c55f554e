"""Changes as HTML: an interval beside 0, a bar for each prompt by its change, before and after, words that differ."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from rolloutlab.widgets.html import Html, escape
from rolloutlab.widgets.kit.parts import key
from rolloutlab.widgets.plot import round_ticks
from rolloutlab.widgets.text import signed, with_minus

MOST_BARS = 200
"""The most bars of a waterfall. If there are more prompts, some are left out."""
_LEAST_EQUAL = 0.5
"""The share of equal words from which on words are marked, and not lines."""
_MOST_WORDS = 800
"""The most words of a text whose words are compared, and not lines: difflib's time grows with their square."""
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")

Run = tuple[str, bool]
"""A part of a text, and whether the other text lacks it."""


def side_of(change: float) -> str:
    """Return the class of a change: `more`, `less` or `none`."""
    return "more" if change > 0 else "less" if change < 0 else "none"


def draw_change(by: float, form: str = ".2f") -> Html:
    """Draw a change with its sign, in the colour of its side; one that rounds to 0 has neither."""
    shown = signed(by, form)
    colour = {"+": "rl-gained", "-": "rl-lost"}.get(shown[0], "rl-dim")
    return Html(f'<span class="{colour}">{escape(with_minus(shown))}</span>')


def interval(low: float, high: float, middle: float, label: str) -> Html:
    """Draw an interval with its middle, beside 0."""
    ticks = round_ticks([low, 0.0, high], 4)
    first, width = ticks[0], ticks[-1] - ticks[0]

    def at(value: float) -> str:
        return f"margin-left:{100 * ((value - first) / width):.4g}%"

    side = side_of(low if low > 0 else min(high, 0.0))
    drawn = (
        f'<u style="{at(0.0)}"></u>'
        f'<i class="rl-{side}" style="{at(low)};width:{100 * ((high - low) / width):.4g}%"></i>'
        f'<b class="rl-{side}" style="{at(middle)}"></b>'
    )
    axis = f'<span class="rl-axis"><span>{_signed(ticks[0])}</span> <span>{_signed(ticks[-1])}</span></span>'
    return Html(f'<span class="rl-interval" role="img" aria-label="{escape(label)}">{drawn}</span>{axis}')


def _signed(value: float) -> str:
    return with_minus(signed(value, "g"))


def waterfall(changes: Sequence[float], label: str) -> Html:
    """Draw a bar for each change, in the order given: losses hang, gains stand."""
    most, least = max([0.0, *changes]), min([0.0, *changes])
    if most == least:
        return Html("")
    every = -(-len(changes) // MOST_BARS)
    shown = [*changes[:-1:every], changes[-1]]
    largest = max(most, -least)  # products and differences of large numbers may be too large for a float
    up = round(72 * (most / largest) / (most / largest - least / largest))
    rows = []
    for height, end, sign in ((up, most, 1), (72 - up, least, -1)):
        bars = "".join(_bar(change, end, sign) for change in shown)
        rows.append(f'<span style="height:{height}px">{bars}</span>' if height else "")
    some = f", a bar for {every}" if every > 1 else ""
    legend = f"{key('less', 'worse')}{key('none', 'equal')}{key('more', 'better')}"
    return Html(
        f'<div class="rl-falls"><p><b>Every prompt, by change</b>{some} {_range(least, most)}<span>{legend}</span></p>'
        f'<div role="img" aria-label="{escape(label)}">{"".join(rows)}</div></div>'
    )


def _range(least: float, most: float) -> str:
    ends = [_signed(float(f"{end:.2g}")) for end in (least, most) if end]
    return f"highest bar {ends[0]}" if len(ends) == 1 else f"from {ends[0]} to {ends[1]}"


def _bar(change: float, end: float, sign: int) -> str:
    if not change and sign > 0:
        return '<i class="rl-none"></i>'
    share = 100 * (change / end) if change * sign > 0 else 0
    return f'<i class="rl-{side_of(change)}" style="height:{share:.4g}%"></i>'


def slope(before: float, after: float, low: float, high: float) -> Html:
    """Draw where a value was, as a ring, and where it is, as a dot, between two bounds."""
    width = (high - low) or 1.0
    left, right = sorted(100 * ((value - low) / width) for value in (before, after))
    style = f"margin-left:{left:.4g}%;width:{right - left:.4g}%"
    return Html(
        f'<span class="rl-slope" aria-hidden="true"><i class="rl-{side_of(after - before)}" style="{style}"></i></span>'
    )


def differing_runs(before: str, after: str) -> tuple[list[Run], list[Run]]:
    """Split two texts into runs that both or only one of them has; into one common run each if they share nothing."""
    words = _WORDS.findall(before), _WORDS.findall(after)
    if max(map(len, words)) <= _MOST_WORDS:
        matcher = SequenceMatcher(None, *words, autojunk=False)
        if _equal_share(matcher, words) >= _LEAST_EQUAL:
            return _runs(matcher, words)
    lines = _LINES.findall(before), _LINES.findall(after)
    matcher = SequenceMatcher(None, *lines, autojunk=False)
    if not any(lines[0][m.a + i].strip() for m in matcher.get_matching_blocks() for i in range(m.size)):
        return [(before, False)], [(after, False)]
    return _runs(matcher, lines)


def mark_runs(runs: Sequence[Run], tag: str) -> Html:
    """Draw runs with `del` or `ins` around what the other text lacks, unless it is only blanks."""
    parts = (f"<{tag}>{escape(text)}</{tag}>" if differs and text.strip() else escape(text) for text, differs in runs)
    return Html("".join(parts))


def _equal_share(matcher: "SequenceMatcher[str]", words: tuple[list[str], list[str]]) -> float:
    """Return the share of the longer text's words that are equal, not counting blanks."""
    equal = sum(bool(words[0][m.a + i].strip()) for m in matcher.get_matching_blocks() for i in range(m.size))
    longest = max(sum(bool(word.strip()) for word in text) for text in words)
    return equal / longest if longest else 1.0


def _runs(matcher: "SequenceMatcher[str]", pieces: tuple[list[str], list[str]]) -> tuple[list[Run], list[Run]]:
    old, new = list[Run](), list[Run]()
    for kind, *ends in matcher.get_opcodes():
        i, j, k, m = ends
        old += [("".join(pieces[0][i:j]), kind != "equal")] if j > i else []
        new += [("".join(pieces[1][k:m]), kind != "equal")] if m > k else []
    return old, new
