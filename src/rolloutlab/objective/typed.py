"""How the value of an option is typed: in a cell, and in a field of the form."""

import json
from typing import Any


def read(text: str) -> Any:
    """A JSON value, Python's spelling of true, false and null, or a bare word."""
    plain = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    try:
        return json.loads(plain)
    except ValueError:
        return _number(text)


def written(value: Any) -> str:
    """A value as `read` reads it; nothing for None, which is the default."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _number(text: str) -> Any:
    """Numbers that JSON does not write so, such as .5; a bare word otherwise."""
    try:
        return float(text)
    except ValueError:
        return text.strip("'\"")
