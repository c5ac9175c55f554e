"""Reading the conditions of a dictionary."""

from collections.abc import Mapping
from dataclasses import replace

from rolloutlab.errors import InputError
from rolloutlab.search.dictionary.cursor import JsonCursor, name_fault, nearest, shown
from rolloutlab.search.dictionary.dump import dump_where
from rolloutlab.search.rules import normalized, settled_value, value_fault, violation
from rolloutlab.search.where import COMPARISONS, DOCUMENT, ID, All, Among, AnyOf, Compare, Contains, Matches, Where

EXAMPLE = {"reward": {"$gt": 0.5}}
LOGICAL = {"$and": All, "$or": AnyOf}
NEGATED = {
    "$in": False, "$nin": True, "$contains": False, "$not_contains": True, "$regex": False, "$not_regex": True,
}  # fmt: skip
OPERATORS = (*COMPARISONS, *NEGATED)
"""What may be asked of a field."""


def where_at(spot: JsonCursor) -> Where:
    """The condition at a spot: its fields are all asked for."""
    if isinstance(spot.value, Where):
        return where_at(replace(spot, value=dump_where(spot.value)))
    spot = spot.deeper()
    found = spot.mapping(EXAMPLE)
    if not found:
        raise spot.wrong("it has no condition", hint=f"{shown(EXAMPLE)}, or leave it out")
    inside = spot if len(found) == 1 else spot.deeper()
    parts = tuple(_condition(name, inside) for name in found)
    return parts[0] if len(parts) == 1 else All(parts)


def _condition(name: str, spot: JsonCursor) -> Where:
    at = spot.key(name)
    if name in LOGICAL:
        parts = tuple(map(where_at, at.items([EXAMPLE, {"model": "lab/practice"}])))
        return parts[0] if len(parts) == 1 else LOGICAL[name](parts)
    if name.startswith("$"):
        raise _operator_without_field(name, spot)
    unfit = name_fault(name, (ID, DOCUMENT), spot.known)
    if unfit:
        raise at.wrong(unfit[0], hint=unfit[1])
    if not isinstance(at.value, Mapping):
        return _checked(Compare(name, "$eq", at.value), at)
    _one_operator(name, at)
    operator, operand = at.single(OPERATORS, {name: {"$eq": 0.5}})
    return _checked(_leaf(name, operator, operand), operand)


def _leaf(name: str, operator: str, operand: JsonCursor) -> Where:
    if operator in COMPARISONS:
        return Compare(name, operator, operand.value)
    negated = NEGATED[operator]
    if operator in ("$contains", "$not_contains"):
        return Contains(name, operand.value, negated)
    if operator in ("$regex", "$not_regex"):
        return Matches(operand.value, negated, name)
    values = operand.items({name: {operator: ["a", "b"]}})
    for at in values:
        why = value_fault(settled_value(at.value))
        if why:
            raise at.wrong(why, "a")
    return Among(name, tuple(at.value for at in values), negated)


def _checked(where: Where, operand: JsonCursor) -> Where:
    where = normalized(where)
    wrong = violation(where)
    if wrong:
        raise operand.wrong(wrong[0], dump_where(wrong[1]))
    return where


def _one_operator(name: str, at: JsonCursor) -> None:
    """The mistakes that have a fix of their own: several operators, and a name where an operator is expected."""
    found = at.mapping({"$eq": 0.5})
    if len(found) > 1 and all(operator in OPERATORS for operator in found):
        both = {"$and": [{name: {operator: operand}} for operator, operand in found.items()]}
        raise at.wrong(f"it has {len(found)} operators, and there has to be exactly one", both)
    for inner, operand in found.items():
        if not inner.startswith("$") and not nearest(inner, OPERATORS):
            raise at.unknown(inner, OPERATORS, "operator", hint=shown({f"{name}.{inner}": operand}))


def _operator_without_field(name: str, spot: JsonCursor) -> InputError:
    if name in OPERATORS:
        return spot.wrong(f"{name} is asked of a field", {"reward": {name: spot.value[name]}})
    if name == "$not":
        hint = "$ne, $nin, $not_contains or $not_regex; $lte for what is not $gt"
        return spot.unknown(name, LOGICAL, "operator", hint=hint)
    return spot.unknown(name, LOGICAL, "operator")
