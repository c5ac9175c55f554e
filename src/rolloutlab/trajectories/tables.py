"""Tables of trajectories, collections and reward history, as DataFrames.

The functions import pandas and `frame` only when they are called. Both together take half of a session's start-up
time and memory, and a first cell makes no frame. Other modules make their frames with `data_frame`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rolloutlab.api.prices import DOLLAR, Amount, Tokens, cost
from rolloutlab.api.wire.base import moment
from rolloutlab.errors import InputError
from rolloutlab.settings import Price
from rolloutlab.store.models import CollectionSummary, StoredCollection
from rolloutlab.store.results import CollectionResult
from rolloutlab.store.rewards import Rewards
from rolloutlab.store.scorings import StoredScoring

if TYPE_CHECKING:
    import pandas as pd

BEFORE = ("reward", "advantage")
"""Columns of a frame before those of the components. A narrow terminal leaves out columns in the middle."""
AFTER = ("source", "prompt", "finish_reason", "model", "step", "tokens", "answer")
"""Columns of a frame after those of the components."""
REASONING = "reasoning"
"""The column after the answer, if any trajectory has reasoning."""
EPISODE_END = "episode_end"
"""The column after the reasoning, if any trajectory was an episode of an environment."""


def data_frame(
    data: Mapping[str, Any] | Sequence[Any],
    names: Sequence[Any],
    index: str | None = "trajectory",
    columns: list[str] | None = None,
    types: Mapping[str, Any] | None = None,
) -> "pd.DataFrame":
    """Make a frame with escaped text.

    Args:
        data: Columns by name, or rows.
        names: The values of the index.
        index: The name of the index.
        columns: The names of the columns, if `data` are rows.
        types: Types by column, where pandas would infer another type if values are missing.
    """
    import pandas as pd

    from rolloutlab.trajectories.frame import Frame

    made = Frame(data, index=pd.Index(names, name=index), columns=columns)
    return made.astype(types) if types else made


def trajectory_frame(
    names: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    components: Sequence[Mapping[str, float]],
    prompt_rows: Sequence[Mapping[str, Any]],
    types: Mapping[str, str],
    more: Sequence[str] = (),
) -> "pd.DataFrame":
    """Make a frame with one row per trajectory.

    Args:
        names: The names of the trajectories, for the index.
        rows: The columns of each trajectory, without the components.
        components: The reward components of each trajectory.
        prompt_rows: The row of each prompt; it becomes the columns `row.x`, after all others.
        types: The original types of values that JSON stores as text, by column of the prompt rows.
        more: Further columns, before those of the prompt rows.
    """
    from rolloutlab.trajectories.frame import add_row_columns

    parts = dict.fromkeys(part for each in components for part in each)
    rows = list(rows)
    further = [name for name in (REASONING, EPISODE_END) if name not in parts and any(row.get(name) for row in rows)]
    columns = [*BEFORE, *parts, *AFTER, *further, *more]
    cells = [{**row, **each} for row, each in zip(rows, components, strict=True)]
    made = data_frame(cells, names, columns=columns, types={"reward": float, "advantage": float})
    return add_row_columns(made, prompt_rows, types)


_COUNTS = ("mean_reward", "scored", "trajectories", "prompt_tokens", "completion_tokens", "groups", "missing")
"""Columns of the table of collections. A narrow terminal leaves out columns in the middle."""


def dollars(
    collection: CollectionSummary,
    price_of: Callable[[str], Price | None],
    judged: Mapping[str, Tokens],
    recorded: Amount = 0,
) -> float | None:
    """Return the cost of a collection in dollars; None if the price of a model is not known.

    Sampling and each judge are priced by their own models.

    collection: the collection. Its tokens include those of judges.
    price_of: returns the price of a model.
    judged: the tokens of judges, by model. An older version did not store these apart; they then count as sampled.
    recorded: the cost of sampling in the lab's records. It is more than the cost of the tokens if the service reported
        none for some requests.
    """
    prompt = collection.prompt_tokens - sum(tokens.prompt for tokens in judged.values())
    completion = collection.completion_tokens - sum(tokens.completion for tokens in judged.values())
    sampled = str(collection.plan.get("model")), Tokens(max(0, prompt), max(0, completion))
    amounts = []
    for model, tokens in (sampled, *judged.items()):
        price = price_of(model)
        if price is None:
            return None
        amounts.append(cost(price, tokens))
    if collection.trajectories and sampled[1] == Tokens() and not recorded:
        return None  # the service reported no usage
    return (sum(amounts) - amounts[0] + max(amounts[0], recorded)) / DOLLAR


def match_collections(collections: Sequence[CollectionSummary], pattern: str | None) -> list[CollectionSummary]:
    """Select the collections whose name or label matches the pattern (`cap*`), in the order given.

    Raises:
        InputError: the pattern is not a text.
    """
    if pattern is None:
        return list(collections)
    if not isinstance(pattern, str):
        raise InputError(f"a {type(pattern).__name__} is not a pattern", hint="%collections 'cap*'")
    return [each for each in collections if fnmatchcase(each.name, pattern) or fnmatchcase(each.label, pattern)]


def catalogue(
    listed: Sequence[CollectionSummary],
    price_of: Callable[[str], Price | None],
    judged: Mapping[int, Mapping[str, Tokens]],
    recorded: Mapping[int, Amount],
    results: Mapping[int, CollectionResult] = MappingProxyType({}),
    *,
    hidden: int = 0,
    pattern: str | None = None,
) -> "pd.DataFrame":
    """Make a frame with one row per generation, in the order given. It is shown with one line per name.

    Its columns:

    - `mean_reward`, `scored`, `trajectories`
    - `prompt_tokens`, `completion_tokens`: of sampling and judging
    - `groups`
    - `missing`: planned trajectories that are not sampled yet
    - `trains`: groups whose rewards differ
    - `cut_off`: answers that were cut off
    - `sampled_from`
    - `cost ($)`, if any price is known
    - `created (UTC)`

    Args:
        listed: The generations.
        price_of: Returns the price of a model.
        judged: The tokens of judges by model, by collection id.
        recorded: The recorded cost of sampling, by collection id.
        results: The results, by collection id.
        hidden: The number of collections of comparisons that are left out.
        pattern: The pattern that the names match.
    """
    from rolloutlab.trajectories.frame import ListingFrame
    from rolloutlab.widgets.collection_list import collection_listing, sampled_from

    costs = [dollars(each, price_of, judged.get(each.id, {}), recorded.get(each.id, 0)) for each in listed]
    columns: dict[str, list[Any]] = {name: [getattr(each, name) for each in listed] for name in _COUNTS}
    of_each = [results.get(each.id) for each in listed]
    columns["trains"] = [result.trains if result else 0 for result in of_each]
    columns["cut_off"] = [result.cut_off if result else 0 for result in of_each]
    columns["sampled_from"] = [sampled_from(each, result) for each, result in zip(listed, of_each, strict=True)]
    if any(dollars is not None for dollars in costs):
        columns["cost ($)"] = costs
    columns["created (UTC)"] = [format_minute(each.created_at) for each in listed]
    frame = data_frame(columns, [each.label for each in listed], "collection")
    of_id = {each.id: cost for each, cost in zip(listed, costs, strict=True)}
    shown = collection_listing(listed, results, of_id, here_and_now(), hidden=hidden, pattern=pattern)
    return ListingFrame.of(frame, shown)


def reward_history(rewards: Rewards, scorings: Sequence[StoredScoring], collection: StoredCollection) -> "pd.DataFrame":
    """Make a frame with one row per changed reward, newest first, indexed by the number of the change.

    Its columns: trajectory, when (UTC, whole seconds), who, source, old, new, note, by (the functions, or the judge's
    model) and code (the source text of the functions, or the rubric).

    scorings: the scorings of the collection, newest first.
    """
    import pandas as pd

    edits = rewards.history_of(collection)
    columns = ["trajectory", "when", "who", "source", "old", "new", "note", "by", "code"]
    by = {s.change: (", ".join([*([s.style] if s.style else []), *s.names]), s.code) for s in scorings[::-1]}
    none = "", ""
    rows = [[e.trajectory, e.at, e.who, e.source, e.old, e.new, e.note or "", *by.get(e.change, none)] for e in edits]
    frame = data_frame(rows, [e.change for e in edits], "change", columns, {"old": float, "new": float})
    when = pd.to_datetime(frame["when"], format="ISO8601", utc=True).dt.floor("s")
    return frame.assign(when=when)


def here_and_now() -> datetime:
    """Return the time on the clock of this machine, with its time zone."""
    return datetime.now().astimezone()


def format_minute(time: str) -> str:
    """Format a time for tables, in UTC to the minute: `2026-01-31 12:00`."""
    return f"{moment(time).astimezone(UTC):%Y-%m-%d %H:%M}"
