"""Field notation of searches in Python: `F.reward > 0.5` is a checked condition."""

from collections.abc import Iterable
from typing import Any, NoReturn

from rolloutlab.errors import InputError
from rolloutlab.search.rules import check_where
from rolloutlab.search.where import DOCUMENT, ID, Among, Compare, Contains, Matches, Scalar, Where, named


class Field:
    """A field of records: `F.reward`, `F["reward.exact match"]`, `F.id`, `F.document`. Operators give conditions."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __eq__(self, value: Any) -> Where:  # type: ignore[override]
        return check_where(Compare(self._name, "$eq", value))

    def __ne__(self, value: Any) -> Where:  # type: ignore[override]
        return check_where(Compare(self._name, "$ne", value))

    def __gt__(self, value: float) -> Where:
        return check_where(Compare(self._name, "$gt", value))

    def __ge__(self, value: float) -> Where:
        return check_where(Compare(self._name, "$gte", value))

    def __lt__(self, value: float) -> Where:
        return check_where(Compare(self._name, "$lt", value))

    def __le__(self, value: float) -> Where:
        return check_where(Compare(self._name, "$lte", value))

    __hash__ = None  # type: ignore[assignment]

    def is_in(self, values: Iterable[Scalar]) -> Where:
        return check_where(Among(self._name, _check_several(self, values)))

    def not_in(self, values: Iterable[Scalar]) -> Where:
        return check_where(Among(self._name, _check_several(self, values), negated=True))

    def contains(self, value: Scalar) -> Where:
        return check_where(Contains(self._name, value))

    def not_contains(self, value: Scalar) -> Where:
        return check_where(Contains(self._name, value, negated=True))

    def regex(self, pattern: str) -> Where:
        return check_where(Matches(pattern, field=self._name))

    def not_regex(self, pattern: str) -> Where:
        return check_where(Matches(pattern, negated=True, field=self._name))

    def __contains__(self, value: Any) -> NoReturn:
        raise InputError(f"`in {self!r}` would give True or False", hint=f"{self!r}.contains({value!r})")

    def __repr__(self) -> str:
        return named(self._name)


class _Fields:
    """`F.reward` and `F["reward"]` are the field `reward`; `F.id` and `F.document` are the record's own id and text."""

    def __getattr__(self, name: str) -> Field:
        if name.startswith("__"):
            raise AttributeError(name)
        return Field({"id": ID, "document": DOCUMENT}.get(name, name))

    def __getitem__(self, name: str) -> Field:
        return Field(name)


F = _Fields()


def _check_several(field: Field, values: Any) -> tuple[Scalar, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{values!r} is one value, not several", hint=f"{field!r} == {values!r}")
    return tuple(values)
