"""First `%%reward` cell of a collection: what a hint suggests before the first scoring."""

import re
from collections.abc import Sequence
from keyword import iskeyword

NAMES = ("trajectory", "answer", "reasoning", "messages", "row", "prompt", "completion", "info", "group", "answers")
"""What a parameter can be named, besides the columns of the row."""


def first_body(columns: Sequence[str]) -> str:
    """Guess the body of a `%%reward` cell for rows with these columns. A person then edits it."""
    usable = [name for name in columns if name.isidentifier() and not iskeyword(name) and name not in NAMES]
    return f"return float(str({usable[-1]}) in answer)" if usable else "return float(len(answer) > 0)"


def is_body(code: str) -> bool:
    """Whether the stored source of a reward function is the body of a `%%reward` cell, which can be typed again."""
    return re.search(r"^return\b", code, re.MULTILINE) is not None
