"""Parser of a whole search dictionary: where, rank, group_by, limit and select."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.search.dictionary import rank, where
from rolloutlab.search.dictionary.cursor import JsonCursor, nearest, shown, too_deep
from rolloutlab.search.dictionary.dump import dump
from rolloutlab.search.query import SCORE, SHOWN, GroupBy, Limit, MaxK, MinK, Search, Select
from rolloutlab.search.rank import Rank
from rolloutlab.search.where import Where

EXAMPLE = {"where": where.EXAMPLE, "rank": rank.KNN, "limit": 10}
KEYS = ("where", "filter", "rank", "group_by", "limit", "select")
BEST = {"$min_k": {"keys": [SCORE], "k": 1}}
AGGREGATES = {"$min_k": MinK, "$max_k": MaxK}


def parse(search: Search | Mapping[str, Any] | str, known: Collection[str] | None = None) -> Search:
    """A search from its dictionary or JSON text. A key that is null counts as absent.

    known: names of the metadata fields there are; without it any name will do.

    Raises:
        InputError: it is not valid; the message names the path and the value, the hint is something to type.
    """
    if isinstance(search, Search):
        search = dump(search)
    cursor = JsonCursor(_json(search) if isinstance(search, str) else search, known=known)
    _surely_keys(cursor)
    parts = cursor.object((), KEYS, EXAMPLE)
    if "where" in parts and "filter" in parts:
        raise cursor.error("where and filter are two names of the same key", {"where": {"$and": ["...", "..."]}})
    filtered = parts.get("where", parts.get("filter"))
    ranked = rank.read_rank(parts["rank"]) if "rank" in parts else None
    return Search(
        where.read_where(filtered) if filtered is not None else None,
        ranked,
        _group_by(parts["group_by"], ranked) if "group_by" in parts else None,
        _limit(parts["limit"]) if "limit" in parts else Limit(),
        _select(parts["select"]) if "select" in parts else Select(),
    )


def parse_where(value: Where | Mapping[str, Any] | str, known: Collection[str] | None = None) -> Where:
    """As `parse`, for the value of `where`."""
    return where.read_where(JsonCursor(_json(value) if isinstance(value, str) else value, "where", known))


def parse_rank(value: Rank | Mapping[str, Any] | float | str, known: Collection[str] | None = None) -> Rank:
    """As `parse`, for the value of `rank`."""
    return rank.read_rank(JsonCursor(_json(value) if isinstance(value, str) else value, "rank", known))


def check(search: Search) -> Search:
    """A search in Python's notation, validated; InputError if a dictionary could not express it."""
    return parse(search)


def check_fields(search: Search | Mapping[str, Any] | str, known: Collection[str]) -> None:
    """Check that all metadata fields of a search are known.

    Raises:
        InputError: one is not; the hint is the nearest that is.
    """
    parse(search, known)


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"the search is not JSON: {error.msg} at {place}", hint=shown(EXAMPLE)) from None
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:
        raise InputError(f"the search is not JSON: {error}", hint=shown(EXAMPLE)) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without duplicate keys, of which `json` would keep the last."""
    merged = dict(pairs)
    if len(merged) < len(pairs):
        names = [name for name, _ in pairs]
        again = next(name for name in names if names.count(name) > 1)
        both = {"$and": [{name: value} for name, value in pairs if name == again]}
        raise InputError(f"the key {again!r} appears twice in one object", hint=shown(both, 400))
    return merged


def _surely_keys(cursor: JsonCursor) -> None:
    """Raise the errors with a specific fix: keys that belong one level down."""
    found = cursor.mapping(EXAMPLE)
    for name, value in found.items():
        if name in rank.OPERATORS:
            raise cursor.unknown(name, KEYS, "key of a search", hint=shown({"rank": {name: value}}, 400))
        if name == "offset":
            raise cursor.unknown(name, KEYS, "key of a search", hint=shown({"limit": {"offset": value}}))
        if name not in KEYS and not nearest(name, KEYS) and (name in where.LOGICAL or isinstance(value, Mapping)):
            raise cursor.unknown(name, KEYS, "key of a search", hint=shown({"where": {name: value}}, 400))


def _group_by(cursor: JsonCursor, ranked: Rank | None) -> GroupBy | None:
    fix = {"keys": ["model"], "aggregate": BEST}
    if not cursor.mapping(fix):
        return None  # other clients send {} for none
    parts = cursor.object(("keys", "aggregate"), (), fix)
    keys = tuple(key.field("model") for key in parts["keys"].items(["model"]))
    operator, operand = parts["aggregate"].only_key(AGGREGATES, BEST)
    inside = operand.object(("keys", "k"), (), BEST["$min_k"])
    by = tuple(key.field(SCORE, (SCORE,)) for key in inside["keys"].items([SCORE]))
    if ranked is None and SCORE in by:
        raise cursor.error("the best by score are kept, and there is no rank", hint=shown({"rank": rank.KNN}))
    return GroupBy(keys, AGGREGATES[operator](by, inside["k"].integer(1, least=1)))


def _limit(cursor: JsonCursor) -> Limit:
    fix = {"limit": 10, "offset": 0}
    if not isinstance(cursor.value, Mapping):
        return Limit(cursor.integer(fix))
    parts = cursor.object((), ("limit", "offset"), fix)
    return Limit(**{name: part.integer(fix[name]) for name, part in parts.items()})


def _select(cursor: JsonCursor) -> Select:
    fix = ["#document", SCORE, "reward"]
    if isinstance(cursor.value, Mapping):
        cursor = cursor.object(("keys",), (), {"keys": fix})["keys"]
    return Select(tuple(key.field(SCORE, SHOWN) for key in cursor.items(fix, least=0)))
