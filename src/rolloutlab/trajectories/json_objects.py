"""JSON objects in a text of a model, with prose, thoughts and code fences around them."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any


def json_objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects in a text, outermost ones only."""
    decoder = json.JSONDecoder(object_pairs_hook=_once)
    objects, place = [], text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
            objects.append(value)
        except (ValueError, RecursionError):
            end = place + 1
        place = text.find("{", end)
    return objects


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs. A key that occurs twice gets the value None: which one is meant is not known."""
    times = Counter(key for key, _ in pairs)
    return {key: value if times[key] == 1 else None for key, value in pairs}
