"""The three rules every wire object follows: unknown properties, nulls and numbers."""

import re
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, StrictBool, StrictFloat, StrictInt, model_validator

Boolean = StrictBool
Integer = StrictInt
Number = StrictFloat
"""JSON's own types: `"1"` is not a number, and `true` is not 1. An integer is a fine Number."""


class Wire(BaseModel):
    """An inert object of the wire.

    - Properties the specification does not name are kept and sent on.
    - A null in an optional field is the same as an absent one, and what is absent is not sent.
    - Numbers are finite: JSON has no NaN and no Infinity.
    """

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False, populate_by_name=True)

    @model_validator(mode="after")
    def _null_is_absent(self) -> Self:
        unset = [
            name
            for name in self.__pydantic_fields_set__
            if getattr(self, name) is None
            and (field := type(self).model_fields.get(name)) is not None
            and not field.is_required()
        ]
        self.__pydantic_fields_set__.difference_update(unset)
        return self

    def to_wire(self) -> dict[str, Any]:
        """This object as JSON-ready dictionaries and lists."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def to_json(self) -> str:
        """This object as one JSON text."""
        return self.model_dump_json(by_alias=True, exclude_unset=True)


_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d")


def _is_date_time(text: str) -> str:
    if not _DATE_TIME.match(text):
        raise ValueError("a date-time such as 2026-01-31T12:00:00Z is expected")
    datetime.fromisoformat(text)
    return text


DateTime = Annotated[str, AfterValidator(_is_date_time)]
"""A date-time kept as the text it arrived as, so that a round trip changes nothing."""
