"""The collections of a lab as a table: a row for each name, which opens to its generations and their rewards."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from rolloutlab.store.models import CollectionSummary
from rolloutlab.store.results import CollectionResult
from rolloutlab.widgets.html import Html, escape
from rolloutlab.widgets.kit.chart import spark
from rolloutlab.widgets.kit.listing import (
    SHOWN_ROWS,
    TIMES,
    Cell,
    Drawn,
    Listing,
    ListingRow,
    ago,
    draw_details,
    draw_mean,
    percent,
    whole,
)
from rolloutlab.widgets.kit.parts import chip, share
from rolloutlab.widgets.kit.table import Heading, TableRow, table
from rolloutlab.widgets.text import checkpoint_name

OFTEN_CUT_OFF = 0.2
"""The share of answers that were cut off from which it is marked."""
_COLUMNS = (
    Heading("collection"),
    Heading("generations", middle=True),
    Heading(f"prompts {TIMES} n", number=True, middle=True),
    Heading("mean reward", number=True),
    Heading("train", number=True, middle=True),
    Heading("cut off", number=True, middle=True),
    Heading("sampled from", middle=True),
    Heading("when"),
)
_OF_GENERATIONS = (Heading("generation"), *(_COLUMNS[i] for i in (3, 4, 5)), Heading("sampled from"))
_SHOWN_GENERATIONS = 10
_FIRST_CELL = "%%chat first\nuser: Name a colour."

Results = Mapping[int, CollectionResult]
Costs = Mapping[int, float | None]


def collection_listing(
    collections: Sequence[CollectionSummary],
    results: Results,
    costs: Costs,
    now: datetime,
    *,
    hidden: int = 0,
    pattern: str | None = None,
) -> Listing:
    """List collections, newest first, with a row per name; if there is only one name, with a row per generation.

    Args:
        collections: each generation.
        results: by the ids of collections.
        costs: dollars, by the ids of collections.
        now: the time that ages are counted from.
        hidden: the number of collections of comparisons that are left out.
        pattern: what the names had to match.
    """
    by_name: dict[str, list[CollectionSummary]] = {}
    for each in collections:
        by_name.setdefault(each.name, []).append(each)
    folded = [[each] for each in collections] if len(by_name) == 1 else list(by_name.values())
    rows = [_row(generations, results, costs, now) for generations in folded[:SHOWN_ROWS]]
    left = len(folded) - len(rows)
    none, to_try = ("none yet", _FIRST_CELL) if pattern is None else (f"none match {pattern}", "%collections")
    shown = f"{len(rows)} of {len(folded):,}, newest first" if left else f"{len(folded):,}" if folded else none
    hides = f" · {_hidden(hidden)} hidden: %collections --all" if hidden else ""
    cells = ["%collections 'PATTERN'"] if left else [] if folded else [to_try]
    return Listing("Collections", f"{shown}{hides}", _COLUMNS, rows, cells=cells)


def _hidden(number: int) -> str:
    return "1 collection of a comparison is" if number == 1 else f"{number:,} collections of comparisons are"


def _row(generations: Sequence[CollectionSummary], results: Results, costs: Costs, now: datetime) -> ListingRow:
    newest, *_ = generations
    label = newest.name if len(generations) > 1 else newest.label
    cells = [
        _name(label, newest, len(generations)),
        _course(generations),
        *_numbers(newest, results.get(newest.id), now),
    ]
    opens = _generations(generations, results) if len(generations) > 1 else _facts(newest, costs)
    return ListingRow(cells, opens=opens)


def _name(label: str, collection: CollectionSummary, generations: int = 1) -> Cell:
    text, html = label, f"<b>{escape(label)}</b>"
    if generations > 1:
        html += f' <span class="rl-dim">{generations} generations</span>'
    if collection.missing:
        missing = f"{collection.missing:,} missing"
        text, html = f"{text} ({missing})", f"{html} {chip(missing, 'warn')}"
    return Drawn(text, Html(html))


def _course(generations: Sequence[CollectionSummary]) -> Cell:
    """Draw how many generations there are, and the course of their mean rewards."""
    if len(generations) == 1:
        return ""
    means = [each.mean_reward for each in generations[::-1] if each.mean_reward is not None]
    course = f": {draw_mean(means[0]).text} → {draw_mean(means[-1]).text}" if len(means) > 1 else ""
    return Drawn(f"{len(generations)}{course}", spark(means))


def _numbers(collection: CollectionSummary, result: CollectionResult | None, now: datetime) -> list[Cell]:
    when = ago(collection.created_at, now)
    if result is None:
        return ["", "", "", "", whole(sampled_from(collection, None)), when]
    alike = result.groups * result.n == result.answers
    size = f"{result.groups:,} {TIMES} {result.n}" if alike else f"{result.groups:,}, {result.answers:,} in all"
    source = whole(sampled_from(collection, result))
    return [size, _mean(result), trained(result), _cut_off(result), source, when]


def sampled_from(collection: CollectionSummary, result: CollectionResult | None) -> str:
    """Name the checkpoint that sampled a collection, and how many others did; empty if that is not known."""
    model = (result and result.model) or str(collection.plan.get("model") or "")
    more = f" and {result.others} more" if result and result.others else ""
    return checkpoint_name(model, result.step if result else None) + more


def trained(result: CollectionResult) -> str:
    """Say how many groups train."""
    return f"{result.trains:,} of {result.groups:,}" if result.scored else ""


def _mean(result: CollectionResult) -> Cell:
    if result.mean is None:
        return Drawn("not scored", Html('<span class="rl-dim">not scored yet</span>')) if result.answers else ""
    mean, over = draw_mean(result.mean), _over(result)
    bar = share((result.mean, "")) if 0 <= result.mean <= 1 else ""
    some = f' <span class="rl-dim">{over}</span>' if over else ""
    text = f"{mean.text} {over}".rstrip()
    return Drawn(text, Html(f'<span class="rl-measure">{mean.html}{some}{bar}</span>'))


def _over(result: CollectionResult) -> str:
    """Say how many answers a mean is over, as `(3 of 8)`, if some have no reward."""
    return f"({result.scored:,} of {result.answers:,})" if result.scored < result.answers else ""


def _cut_off(result: CollectionResult) -> Cell:
    text = percent(result.cut_off_share) if result.answers else ""
    odd = result.cut_off_share >= OFTEN_CUT_OFF
    return Drawn(text, Html(f'<span class="rl-odd">{text}</span>')) if odd else text


def _generations(generations: Sequence[CollectionSummary], results: Results) -> Html:
    newest, *_ = some = generations[:_SHOWN_GENERATIONS]
    rows = (TableRow([each.label, *_course_of(each, results.get(each.id))]) for each in some)
    all_of_them = [f"%collections {newest.name}"] if len(generations) > len(some) else []
    return Html(table(_OF_GENERATIONS, rows, newest.name) + draw_details([], f"%rewards {newest.label}", *all_of_them))


def _course_of(collection: CollectionSummary, result: CollectionResult | None) -> list[str]:
    if result is None or result.mean is None:
        return ["", "", "", sampled_from(collection, result)]
    mean = f"{draw_mean(result.mean).text} {_over(result)}".rstrip()
    return [mean, trained(result), percent(result.cut_off_share), sampled_from(collection, result)]


def _facts(collection: CollectionSummary, costs: Costs) -> Html:
    cost = costs.get(collection.id)
    facts = [
        ("prompt tokens", f"{collection.prompt_tokens:,}"),
        ("completion tokens", f"{collection.completion_tokens:,}"),
        *([("cost", f"${cost:.2f}")] if cost is not None else []),
    ]
    return draw_details(facts, f"%rewards {collection.label}")
