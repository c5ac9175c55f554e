"""A position in a JSON value with typed accessors; every error names the path, the value and what to type."""

import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from reprlib import Repr
from typing import Any

from rolloutlab.errors import InputError

DEEPEST = 100
"""The largest nesting depth of conditions or ranks."""
LONGEST = 2**63 - 1
"""The largest integer: 64 bits."""
LARGEST = sys.float_info.max
SINGLE = 3.4028234663852886e38
"""The largest float32, as ranks are computed in float32."""

_MANY = {"reward": "PART", "row": "COLUMN"}
"""The placeholder in `row.COLUMN` and `reward.PART`, for kinds of fields of which a lab has many."""


@dataclass(frozen=True)
class JsonCursor:
    """A value in a JSON document. path: its place, such as `where.$and[1].reward`. known: the field names, if known."""

    value: Any
    path: str = ""
    known: Collection[str] | None = None
    depth: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", plain(self.value))

    def error(self, why: str, fix: Any = None, *, hint: str | None = None) -> InputError:
        """Make the error for this value. fix: a valid value for this position."""
        return InputError(
            f"{self.path or 'the search'} is {show(self.value)}: {why}",
            hint=hint or (show(fix, 400) if fix is not None else None),
        )

    def descend(self) -> "JsonCursor":
        """Return this cursor, one level deeper."""
        if self.depth == DEEPEST:
            raise too_deep()
        return replace(self, depth=self.depth + 1)

    def key(self, name: str) -> "JsonCursor":
        step = f".{name}" if re.fullmatch(r"[#$]?[\w-]+", name) else f"[{json.dumps(name, ensure_ascii=False)}]"
        return replace(self, value=self.value[name], path=(self.path + step).removeprefix("."))

    def items(self, fix: Any, least: int = 1) -> list["JsonCursor"]:
        """Return the items of a list, which must have at least so many."""
        if not isinstance(self.value, list | tuple):
            raise self.error("must be a list", fix)
        if len(self.value) < least:
            raise self.error(f"must be a list of at least {least}", fix)
        return [replace(self, value=value, path=f"{self.path}[{index}]") for index, value in enumerate(self.value)]

    def mapping(self, fix: Any) -> Mapping[str, Any]:
        if not isinstance(self.value, Mapping):
            raise self.error("must be an object", fix)
        for name in self.value:
            if not isinstance(name, str):
                raise self.error(f"its key {name!r} is not a text", fix)
        return self.value

    def object(self, required: Collection[str], optional: Collection[str], fix: Any) -> dict[str, "JsonCursor"]:
        """Return the members of an object with these keys only. An optional key that is null counts as absent."""
        keys = self.mapping(fix)
        choices = (*required, *optional)
        for name in keys:
            if name not in choices:
                raise self.unknown(name, choices, "key")
        for name in required:
            if name not in keys:
                raise self.error(f"it has no {name!r}", fix)
        return {name: self.key(name) for name in keys if name in required or keys[name] is not None}

    def only_key(self, operators: Collection[str], fix: Any) -> tuple[str, "JsonCursor"]:
        """Return the one operator of an object, and its operand."""
        operator_map = self.mapping(fix)
        for name in operator_map:
            if name not in operators:
                raise self.unknown(name, operators, "operator")
        if len(operator_map) != 1:
            raise self.error(f"it has {len(operator_map)} operators, and must have exactly one", fix)
        (name,) = operator_map
        return name, self.key(name)

    def unknown(self, name: str, choices: Collection[str], what: str, *, hint: str | None = None) -> InputError:
        """Make the error for a key that is not one of the choices."""
        hint = hint or nearest(name, choices) or ", ".join(choices)
        return self.key(name).error(f"{name!r} is an unknown {what}", hint=hint)

    def number(self, fix: Any, largest: float = SINGLE) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.error("must be a number", fix)
        if not abs(self.value) <= largest:  # also false for nan
            raise self.error(f"must be finite, at most {largest:.3g} in size", fix)
        return self.value

    def integer(self, fix: Any, least: int = 0, largest: int = LONGEST) -> int:
        """Return an integer. 16.0 counts, as in JSON Schema, and true does not."""
        value = self.value
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or not least <= value <= largest:
            bound = f"at least {least}" + ("" if largest == LONGEST else f" and at most {largest}")
            raise self.error(f"must be an integer, {bound}", fix)
        return int(value)

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.error("must be true or false", True)
        return self.value

    def text(self, fix: Any) -> str:
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.error("must be a non-empty string", fix)
        if not encodable(self.value):
            raise self.error("contains half of a surrogate pair", fix)
        return self.value

    def field(self, fix: str, besides: Collection[str] = ()) -> str:
        """Return the name of a metadata field, or one of the `#` names that are allowed here."""
        if not isinstance(self.value, str) or not self.value:
            raise self.error("must be the name of a field", fix)
        if problem := name_problem(self.value, besides, self.known):
            raise self.error(problem[0], hint=problem[1])
        return self.value


def name_problem(name: str, besides: Collection[str], known: Collection[str] | None) -> tuple[str, str] | None:
    """Say why a name is not a metadata field, and what to type; None if it is. besides: other allowed names."""
    if name in besides:
        return None
    if not name or name[0] in "$#":
        near = nearest(name, besides) if name else None
        return f"{name!r} is not a field here", near or " or ".join((*besides, "the name of a metadata field"))
    if not encodable(name):
        return "contains half of a surrogate pair", name.encode(errors="ignore").decode() or "reward"
    if known is not None and name not in known:
        if f"#{name}" in besides:
            return f"no record has a field {name!r}", f"#{name}"
        near = nearest(name, known) or ", ".join(_by_kind(known)) or "no record has fields yet"
        return f"no record has a field {name!r}", near
    return None


def _by_kind(fields: Iterable[str]) -> list[str]:
    """List the names of fields, with one placeholder such as `row.COLUMN` for all fields of a kind."""
    named = (field.partition(".") for field in sorted(fields))
    return list(dict.fromkeys(f"{kind}.{_MANY.get(kind, 'NAME')}" if dot else kind for kind, dot, _ in named))


def too_deep() -> InputError:
    return InputError(
        f"the search is nested more than {DEEPEST} deep",
        hint='one list instead of many in one another: {"$or": [a, b, c]}, or {"$in": [...]} for values of one field',
    )


def encodable(text: str) -> bool:
    """Whether a text can be encoded as UTF-8: a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Find the closest of some names, if any is close."""
    folded = {choice.lstrip("$#").lower(): choice for choice in choices}
    near = get_close_matches(name.lstrip("$#").lower(), folded, 1)
    return folded[near[0]] if near else None


def plain(value: Any) -> Any:
    """Convert NumPy numbers and arrays, and members of string enumerations, to plain Python values."""
    if type(value).__module__ == "numpy":
        return value.tolist()
    return str(value) if isinstance(value, str) and type(value) is not str else value


def show(value: Any, longest: int = 80) -> str:
    """Write a value as JSON on one line, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text = text if encodable(text) else json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        brief = Repr()
        brief.maxlevel = 4
        text = brief.repr(value)
    return text if len(text) <= longest else f"{text[: longest - 4]} ..."
