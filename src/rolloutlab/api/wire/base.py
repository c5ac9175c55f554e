"""Base class of wire models: unknown properties, nulls, numbers and dates."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    model_validator,
)

Boolean = StrictBool
Integer = StrictInt
Number = StrictFloat
"""JSON's own types: `"1"` is not a number, and `true` is not 1. An integer is a fine Number."""


T = TypeVar("T")
Items = Annotated[list[T], Field(fail_fast=True)]
"""A list that is checked up to its first wrong item: else a megabyte of `0,0,…` would make gigabytes of errors."""


class ListedWire(BaseModel):
    """As `Wire`, but its own validation keeps nulls. The lists that contain it remove them, with `without_nulls`.

    So pydantic calls no Python code per object. For tokens, of which an answer has thousands, those calls took a tenth
    of the time of a client.
    """

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False, populate_by_name=True)

    def to_wire(self) -> dict[str, Any]:
        """Return this object as JSON-ready dictionaries and lists."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def to_json(self) -> str:
        """Return this object as one JSON text."""
        return self.model_dump_json(by_alias=True, exclude_unset=True)


class Wire(ListedWire):
    """A JSON object. Unknown properties are kept; null in an optional field means absent; numbers are finite."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, sent: Any) -> Any:
        return without_nulls(cls, sent)


def without_nulls(model: type[ListedWire], sent: Any) -> Any:
    """Remove the nulls in optional fields of a model from a JSON object; return any other value unchanged."""
    if not isinstance(sent, Mapping) or None not in sent.values():
        return sent
    return {name: value for name, value in sent.items() if value is not None or name not in _optional(model)}


@cache
def _optional(model: type[ListedWire]) -> frozenset[str]:
    """Find every name under which an optional field of `model` may be sent."""
    names: set[str] = set()
    for name, field in model.model_fields.items():
        if not field.is_required():
            aliases = field.validation_alias.choices if isinstance(field.validation_alias, AliasChoices) else []
            names.update((name, *(alias for alias in aliases if isinstance(alias, str))))
    return frozenset(names)


_LEAP = re.compile(r"^(.{16}):60")
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d")


def moment(text: str) -> datetime:
    """Parse a date-time (RFC 3339, 5.6), with lower-case t or z or a leap second too; UTC without an offset."""
    if not _DATE_TIME.match(text):
        raise ValueError("a date-time such as 2026-01-31T12:00:00Z is expected")
    parsed = datetime.fromisoformat(_LEAP.sub(r"\1:59", text.upper()))
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _is_date_time(text: str) -> str:
    moment(text)
    return text


DateTime = Annotated[str, AfterValidator(_is_date_time)]
"""A date-time as its original text, so that a round trip changes nothing."""
