"""Parser of a dictionary's conditions."""

from collections.abc import Mapping
from dataclasses import replace

from rolloutlab.errors import InputError
from rolloutlab.search.dictionary.cursor import JsonCursor, name_problem, nearest, shown
from rolloutlab.search.dictionary.dump import dump_where
from rolloutlab.search.rules import normalized, normalized_value, value_problem, violation
from rolloutlab.search.where import COMPARISONS, DOCUMENT, ID, All, Among, AnyOf, Compare, Contains, Matches, Where

EXAMPLE = {"reward": {"$gt": 0.5}}
LOGICAL = {"$and": All, "$or": AnyOf}
NEGATED = {
    "$in": False, "$nin": True, "$contains": False, "$not_contains": True, "$regex": False, "$not_regex": True,
}  # fmt: skip
OPERATORS = (*COMPARISONS, *NEGATED)
"""Operators of a field."""


def read_where(cursor: JsonCursor) -> Where:
    """The condition at a cursor: all of its fields must match."""
    if isinstance(cursor.value, Where):
        return read_where(replace(cursor, value=dump_where(cursor.value)))
    cursor = cursor.descend()
    fields = cursor.mapping(EXAMPLE)
    if not fields:
        raise cursor.error("it has no condition", hint=f"{shown(EXAMPLE)}, or leave it out")
    inside = cursor if len(fields) == 1 else cursor.descend()
    parts = tuple(_condition(name, inside) for name in fields)
    return parts[0] if len(parts) == 1 else All(parts)


def _condition(name: str, cursor: JsonCursor) -> Where:
    operand = cursor.key(name)
    if name in LOGICAL:
        parts = tuple(map(read_where, operand.items([EXAMPLE, {"model": "lab/practice"}])))
        return parts[0] if len(parts) == 1 else LOGICAL[name](parts)
    if name.startswith("$"):
        raise _operator_without_field(name, cursor)
    problem = name_problem(name, (ID, DOCUMENT), cursor.known)
    if problem:
        raise operand.error(problem[0], hint=problem[1])
    if not isinstance(operand.value, Mapping):
        return _checked(Compare(name, "$eq", operand.value), operand)
    _one_operator(name, operand)
    operator, operand = operand.only_key(OPERATORS, {name: {"$eq": 0.5}})
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
    for item in values:
        why = value_problem(normalized_value(item.value))
        if why:
            raise item.error(why, "a")
    return Among(name, tuple(item.value for item in values), negated)


def _checked(where: Where, operand: JsonCursor) -> Where:
    where = normalized(where)
    wrong = violation(where)
    if wrong:
        raise operand.error(wrong[0], dump_where(wrong[1]))
    return where


def _one_operator(name: str, condition: JsonCursor) -> None:
    """Raise the errors with a specific fix: several operators, or a name in place of an operator."""
    operators = condition.mapping({"$eq": 0.5})
    if len(operators) > 1 and all(operator in OPERATORS for operator in operators):
        both = {"$and": [{name: {operator: operand}} for operator, operand in operators.items()]}
        raise condition.error(f"it has {len(operators)} operators, and must have exactly one", both)
    for inner, operand in operators.items():
        if not inner.startswith("$") and not nearest(inner, OPERATORS):
            raise condition.unknown(inner, OPERATORS, "operator", hint=shown({f"{name}.{inner}": operand}))


def _operator_without_field(name: str, cursor: JsonCursor) -> InputError:
    if name in OPERATORS:
        return cursor.error(f"{name} needs a field", {"reward": {name: cursor.value[name]}})
    if name == "$not":
        hint = "$ne, $nin, $not_contains or $not_regex; $lte for what is not $gt"
        return cursor.unknown(name, LOGICAL, "operator", hint=hint)
    return cursor.unknown(name, LOGICAL, "operator")
