"""JSON objects in a text that a model wrote, with prose, thoughts and code fences around them."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any


def find_json_objects(text: str) -> list[dict[str, Any]]:
    """Find the JSON objects in a text, without those inside of others."""
    decoder = json.JSONDecoder(object_pairs_hook=_make_object)
    objects, place = [], text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
            objects.append(value)
        except (ValueError, RecursionError):
            end = place + 1
        place = text.find("{", end)
    return objects


def _make_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object. A key that occurs twice gets the value None, because it is not known which value is meant."""
    times = Counter(key for key, _ in pairs)
    return {key: value if times[key] == 1 else None for key, value in pairs}
