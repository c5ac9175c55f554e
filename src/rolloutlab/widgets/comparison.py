"""A comparison of checkpoints as text, HTML and a chart: the largest losses and gains, which open to completions."""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from rolloutlab.errors import NotFoundError
from rolloutlab.hints import Hint
from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import escape_control_chars, escape_to_one_line
from rolloutlab.widgets.collection import FLAGS
from rolloutlab.widgets.html import Html, escape
from rolloutlab.widgets.kit.change import differing_runs, draw_change, interval, mark_runs, slope, waterfall
from rolloutlab.widgets.kit.listing import percent
from rolloutlab.widgets.kit.parts import band, chip, figure, foot, head, hints, line, panel, share, style
from rolloutlab.widgets.kit.table import Heading, TableRow, table
from rolloutlab.widgets.plot import Plot, Series
from rolloutlab.widgets.text import decimals, more, shape, signed, text_table, with_minus

Description = Mapping[str, Any]
"""A comparison as `Comparison.describe` gives it."""
Open = Callable[[str], Sequence[Mapping[str, Any]]]
"""Returns the paired completions of a prompt, by the name of its group."""

_ENDS = 4
"""The most prompts that are shown of those that lost, and of those that gained."""
_PAIRS = 4
"""The most paired completions that are shown of a prompt."""
_MAX_CHARS = 1_500
"""The most characters of a completion, so that what is shown of eight prompts stays below 200 kB."""
_MAX_WIDTH = 80
_SHARED = 12
"""The longest common beginning of prompts, in characters, that is not left out."""
_TIMES = "\N{MULTIPLICATION SIGN}"
_A, _B = "A ○", "B ●"
_EACH = "Each interval is for itself: the best of several is better by chance more often than it says."


def text(lines: Sequence[str], shown: Description) -> str:
    """Write the comparison as plain text: its result, then the largest losses and gains."""
    blocks = [list(lines), *map(list, _figure_lines(shown))]
    for title, listed, of in _both_ends(shown["prompts"]):
        cells = [
            (each["group"], f"{decimals(each['before'])} -> {decimals(each['after'])}", _difference(each), prompt)
            for each, prompt in zip(listed, _shorten(listed, shown["prompts"]), strict=True)
        ]
        blocks.append([f"{title}, {len(listed)} of {of:,}", *text_table((), cells, "<4 <0 <0")])
    left = len(shown["prompts"]) - sum(len(listed) for _, listed, _ in _both_ends(shown["prompts"]))
    return "\n\n".join(
        "\n".join(map(escape_control_chars, block))
        for block in [*blocks, more(left, "comparison.to_frame()", "prompt")]
        if block
    )


def html(shown: Description, pairs: Open) -> Html:
    """Draw the comparison without scripts. Each of the largest losses and gains opens to its completions."""
    before, after = shown["checkpoints"]
    title = head("Compare", _about(shown), chip(f"{_A} {before}", "out"), chip(f"{_B} {after}", "now"))
    return _add_style(panel(title, _body(shown, pairs), kind="rl-change"))


def several_html(shown: Sequence[Description], pairs: Sequence[Open]) -> Html:
    """Draw several comparisons with one base: a table with a line for each, then each comparison, folded."""
    columns = [
        Heading("checkpoint"),
        *(Heading(name, number=True) for name in ("mean", "change")),
        Heading("95% interval", number=True, middle=True),
        Heading("better / worse", number=True, middle=True),
        Heading("verdict"),
    ]
    first = shown[0]
    rows = [TableRow([f"{first['checkpoints'][0]}, the base", decimals(first["means"][0]), "", "", "", ""])]
    rows += [
        TableRow(
            [
                each["checkpoints"][1],
                decimals(each["means"][1]),
                _draw(each["difference"]),
                _ends(each["interval"]),
                f"{each['counts']['better']:,} / {each['counts']['worse']:,}",
                each["verdict"],
            ]
        )
        for each in shown
    ]
    opened = "".join(
        f'<details class="rl-whole"><summary>{escape(" → ".join(each["checkpoints"]))}</summary>'
        f"{_body(each, open_pairs)}</details>"
        for each, open_pairs in zip(shown, pairs, strict=True)
    )
    return _add_style(
        panel(
            head("Compare", _about(first)), table(columns, rows, "checkpoints"), opened, foot(_EACH), kind="rl-change"
        )
    )


def _add_style(view: Html) -> Html:
    return Html(f"{style('change.css')}{view}")


def several_text(shown: Sequence[Description], texts: Sequence[str]) -> str:
    """Write several comparisons with one base as plain text: a line for each, then the whole of each."""
    cells = [(each["checkpoints"][1], decimals(each["means"][1]), _difference(each), each["verdict"]) for each in shown]
    base = (f"{shown[0]['checkpoints'][0]}, the base", decimals(shown[0]["means"][0]), "", "")
    lines = text_table(("checkpoint", "mean", "change", "verdict"), [base, *cells], "<10 >5 >6")
    return "\n\n".join(["\n".join(map(escape_control_chars, [*lines, _EACH])), *texts])


def plot(rows: Sequence[Mapping[str, Any]]) -> Plot:
    """Plot the mean reward of each prompt before and after, in the order of `rows`."""
    places = [float(i) for i in range(1, len(rows) + 1)]
    before = Series("before", places, [row["before"] for row in rows], line=False)
    after = Series("after", places, [row["after"] for row in rows], line=False)
    return Plot([before, after], title="mean reward by prompt", x_label="prompts, by change")


def _about(shown: Description) -> str:
    completions = count(shown["completions"], "completion") if shown["completions"] else ""
    reused = f"{shown['reused']:,} of them reused" if shown["reused"] else ""
    return " · ".join(
        filter(
            None,
            [
                shown["name"],
                f"{count(len(shown['prompts']), 'prompt')}, same seeds",
                ", ".join(filter(None, [completions, reused])),
            ],
        )
    )


def _body(shown: Description, pairs: Open) -> str:
    counts, prompts = shown["counts"], shown["prompts"]
    spoken = f"{counts['worse']:,} worse, {counts['equal']:,} equal, {counts['better']:,} better"
    falls = waterfall([each["difference"] for each in prompts], f"changes of {count(len(prompts), 'prompt')}: {spoken}")
    ends = "".join(_end(title, listed, of, shown, pairs) for title, listed, of in _both_ends(prompts))
    both = f'<div class="rl-ends">{ends}</div>' if ends else ""
    return (
        f"{hints(_hints(shown))}{band(*_figures(shown))}{falls}{both}{foot('comparison.to_frame() has every prompt')}"
    )


def _hints(shown: Description) -> list[Hint]:
    verdict, _, how = shown["verdict"].partition(" -> ")
    first = [Hint(_capital(verdict), how and f"→ {how}")] if how else []
    others = [note.partition(" -> ") for note in shown["notes"]]
    return [*first, *(Hint(_capital(fact), do and f"→ {do}", kind="info") for fact, _, do in others)]


def _figures(shown: Description) -> list[Html]:
    counts, prompts = shown["counts"], shown["prompts"]
    name = {"better": "B is better", "worse": "B is worse"}.get(shown["verdict"], "B less A")
    old, new = shown["means"]
    decided = shown["verdict"] in {"better", "worse"}
    by = shown["difference"]
    dim = Html(f'<span class="rl-dim">{with_minus(signed(by, shape(by, ".2f")))}</span>')
    change = _draw(shown["difference"]) if decided else dim
    made = [figure(name, change, "mean reward", line(f"{decimals(old, '.2f')} → {decimals(new, '.2f')}"))]
    if shown["interval"]:
        low, high = shown["interval"]
        label = f"95% interval of the change: {_ends(shown['interval'])}"
        basis = line(shown["basis"].removeprefix(", ")) if shown["basis"] else ""
        made.append(figure(f"{label}, by prompt", "", "", interval(low, high, shown["difference"], label), basis))
    kinds = (("more", "better"), ("none", "equal"), ("less", "worse"))
    bar = share(*((counts[kind] / len(prompts), which) for which, kind in kinds), label="better, equal, worse")
    made.append(
        figure(
            "Prompts",
            f"{counts['better']:,}",
            f"better, {counts['worse']:,} worse",
            bar,
            line(f"{counts['equal']:,} equal"),
        )
    )
    if shown["figures"] or shown["only"]:
        rows = "".join(f"<span>{escape(name)}</span> <span>{value}</span> " for name, value in _elsewhere(shown))
        made.append(figure("Elsewhere", "", "", f'<span class="rl-facts">{rows}</span>'))
    return made


def _elsewhere(shown: Description) -> list[tuple[str, Html]]:
    """List the rows below "Elsewhere".

    They are measures that only one side has, changes of reward components, and lengths and cut-offs on both sides.
    """
    rows = []
    for name, (old, new) in shown["figures"].items():
        if name == "cut_off":
            rows.append(("cut off", escape(f"{percent(old)} → {percent(new)}")))
        elif name == "tokens":
            rows.append(("tokens", escape(f"{old:,.0f} → {new:,.0f}")))
        else:
            rows.insert(max(0, len(rows) - 2), (name, _draw(new - old)))
    sides = {"before": _A, "after": _B}
    return [*((name, escape(f"only {sides[side]}")) for name, side in shown["only"].items()), *rows]


def _figure_lines(shown: Description) -> list[list[str]]:
    values = [
        f"cut off {percent(old)} -> {percent(new)}" if name == "cut_off" else f"{name} {old:.4g} -> {new:.4g}"
        for name, (old, new) in shown["figures"].items()
    ]
    checkpoints = dict(zip(("before", "after"), shown["checkpoints"], strict=True))
    values += [f"{name}: only {checkpoints[side]}" for name, side in shown["only"].items()]
    return [[", ".join(values)]] if values else []


def _both_ends(prompts: Sequence[Mapping[str, Any]]) -> list[tuple[str, Sequence[Mapping[str, Any]], int]]:
    """Choose the largest losses and gains; return title, prompts, and how many there are in all, for each end."""
    lost = [each for each in prompts if each["difference"] < 0]
    gained = [each for each in reversed(prompts) if each["difference"] > 0]
    ends = (("Worst losses", lost[:_ENDS], len(lost)), ("Best gains", gained[:_ENDS], len(gained)))
    return [end for end in ends if end[2]]


def _end(title: str, listed: Sequence[Mapping[str, Any]], of: int, shown: Description, pairs: Open) -> str:
    low, high = _scale(shown)
    rows = "".join(
        _draw_prompt(each, prompt, slope(each["before"], each["after"], low, high), pairs)
        for each, prompt in zip(listed, _shorten(listed, shown["prompts"]), strict=True)
    )
    return f'<section><p class="rl-title"><b>{title}</b> {len(listed)} of {of:,}</p>{rows}</section>'


def _scale(shown: Description) -> tuple[float, float]:
    values = [each[side] for each in shown["prompts"] for side in ("before", "after")]
    return min(values), max(values)


def _draw_prompt(each: Mapping[str, Any], prompt: str, drawn: Html, pairs: Open) -> str:
    """Draw a prompt that opens to its completions."""
    change = " → ".join(decimals(each[side], ".2f") for side in ("before", "after"))
    summary = (
        f"<summary><span>{escape(prompt)}</span> {drawn} <span>{change}</span> "
        f"<b>{_draw(each['difference'])}</b></summary>"
    )
    row = " ".join(chip(f"{name} {escape_to_one_line(str(value), _MAX_WIDTH)}") for name, value in each["row"].items())
    asked = f'<p class="rl-text">{escape(each["prompt"])}</p><p class="rl-row">{row}</p>'
    return f'<details class="rl-opening">{summary}<div>{asked}{_pairs(each["group"], pairs)}</div></details>'


def _pairs(group: str, pairs: Open) -> str:
    try:
        listed = pairs(group)
    except NotFoundError:
        return str(foot("its completions were deleted"))
    cards = "".join(map(_pair, listed[:_PAIRS]))
    left = more(len(listed) - _PAIRS, f"comparison.completions({group!r})", "pair")
    return f'<div class="rl-pairs">{cards}</div>{"".join(map(foot, left))}'


def _pair(pair: Mapping[str, Any]) -> str:
    old, new = pair["before"], pair["after"]
    runs = differing_runs(old["text"][:_MAX_CHARS], new["text"][:_MAX_CHARS])
    seats = pair["positions"]
    seeds = f"seed {seats[0]}" if len(seats) == 1 else f"{_TIMES}{len(seats)}, seeds {', '.join(map(str, seats))}"
    sides = ((_A, old, mark_runs(runs[0], "del")), (_B, new, mark_runs(runs[1], "ins")))
    return "".join(_card(mark, seeds, each, written) for mark, each, written in sides)


def _card(mark: str, seeds: str, each: Mapping[str, Any], written: Html) -> str:
    flag = FLAGS.get(each["finish_reason"] or "", "")
    tokens = count(each["tokens"], "token") if each["tokens"] else ""
    about = " · ".join(filter(None, [mark, seeds, tokens, flag]))
    cut = "…" if len(each["text"]) > _MAX_CHARS else ""
    # `pre` keeps blanks and line ends without the style sheet, too
    return (
        f'<div class="rl-answer"><p><span>{escape(about)}</span> <b>{each["reward"]:.3g}</b></p>'
        f'<pre class="rl-text">{written or escape("(empty)")}{cut}</pre></div>'
    )


def _shorten(listed: Sequence[Mapping[str, Any]], prompts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write each prompt on one line, without the beginning that all prompts share, so that what differs is visible."""
    every = [" ".join(each["prompt"].split()) for each in prompts]
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*every, strict=False))
    shared = "".join(letters[0] for letters in same) if len(every) > 1 else ""
    skipped = shared.rfind(" ") + 1 if len(shared) > _SHARED else 0
    begins = "… " if skipped else ""
    return [escape_to_one_line(begins + " ".join(each["prompt"].split())[skipped:], _MAX_WIDTH) for each in listed]


def _difference(shown: Mapping[str, Any]) -> str:
    return signed(shown["difference"], shape(shown["difference"]))


def _draw(change: float) -> Html:
    """Draw a change with its sign, in the colour of its side; a small one with one digit."""
    return draw_change(change, _form(change))


def _ends(bounds: Sequence[float] | None) -> str:
    if bounds is None:
        return ""
    return with_minus(" to ".join(signed(bound, _form(bound)) for bound in bounds))


def _form(change: float) -> str:
    return ".1g" if 0 < abs(change) < 0.005 else ".2f"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
