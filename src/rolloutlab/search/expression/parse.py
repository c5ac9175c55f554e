"""Conditions from an expression's syntax tree."""

import ast
from collections.abc import Callable
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.search.expression.source import Text
from rolloutlab.search.rules import normalized, violation
from rolloutlab.search.where import All, Among, AnyOf, Compare, Contains, Matches, Where, named, opposite

SYMBOLS: dict[type[ast.cmpop], str] = {
    ast.Eq: "$eq", ast.NotEq: "$ne", ast.Gt: "$gt", ast.GtE: "$gte", ast.Lt: "$lt", ast.LtE: "$lte",
}  # fmt: skip
TURNED = {"$eq": "$eq", "$ne": "$ne", "$gt": "$lt", "$gte": "$lte", "$lt": "$gt", "$lte": "$gte"}
"""`0 < reward` is `reward > 0`."""
METHODS: dict[str, Callable[[str, Any], Where]] = {
    "contains": lambda field, value: Contains(field, value),
    "not_contains": lambda field, value: Contains(field, value, negated=True),
    "regex": lambda field, value: Matches(value, field=field),
    "not_regex": lambda field, value: Matches(value, negated=True, field=field),
    "is_in": lambda field, value: Among(field, tuple(value)),
    "not_in": lambda field, value: Among(field, tuple(value), negated=True),
}
"""Methods of a field; also functions: `document.regex('a+')` and `regex(document, 'a+')`."""


def read_where(node: ast.expr, text: Text) -> Where:
    """The condition of a node."""
    try:
        return _condition(node, text)
    except RecursionError:
        raise text.error("too deeply nested", node) from None


def _condition(node: ast.expr, text: Text) -> Where:
    if isinstance(node, ast.BoolOp):
        kind = All if isinstance(node.op, ast.And) else AnyOf
        return kind(tuple(_condition(value, text) for value in node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        kind = All if isinstance(node.op, ast.BitAnd) else AnyOf
        return kind((_condition(node.left, text), _condition(node.right, text)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        return _not(node, text)
    if isinstance(node, ast.Compare):
        sides = pairwise((node.left, *node.comparators))
        parts = tuple(_comparison(a, op, b, text) for op, (a, b) in zip(node.ops, sides, strict=True))
        return parts[0] if len(parts) == 1 else All(parts)
    if isinstance(node, ast.Call):
        return _method(node, text)
    field = text.field(node)
    if field is not None:
        raise text.error(f"{text.source(node)} by itself is not a condition", node, hint=f"{_written(field)} == True")
    raise text.error(f"{text.source(node)} is not a condition", node)


def _not(node: ast.UnaryOp, text: Text) -> Where:
    where = _condition(node.operand, text)
    try:
        return opposite(where)
    except InputError as error:
        raise text.error(_unfielded(error.message) or "", node, hint=_unfielded(error.hint)) from None


def _comparison(left: ast.expr, operator: ast.cmpop, right: ast.expr, text: Text) -> Where:
    if isinstance(operator, ast.In | ast.NotIn):
        return _membership(left, right, isinstance(operator, ast.NotIn), text)
    if type(operator) not in SYMBOLS:
        raise text.error("is does not compare stored values", left, hint="reward == 1, or reward != 1")
    symbol = SYMBOLS[type(operator)]
    value = text.value(right)
    if value is not NotImplemented and (field := _field(left, text)) is not None:
        return _sound(Compare(field, symbol, value), right, text)
    value = text.value(left)
    if value is not NotImplemented and (field := _field(right, text)) is not None:
        return _sound(Compare(field, TURNED[symbol], value), left, text)
    raise _not_a_field_and_a_value(left, right, text)


def _membership(left: ast.expr, right: ast.expr, negated: bool, text: Text) -> Where:
    values, value = text.value(right), text.value(left)
    if isinstance(values, list) and (field := _field(left, text)) is not None:
        return _sound(Among(field, tuple(values), negated), right, text)
    if value is not NotImplemented and (field := _field(right, text)) is not None:
        return _sound(Contains(field, value, negated), left, text)
    field = _field(left, text)
    if field is not None and values is not NotImplemented:
        hint = f"{_written(field)} {'not ' if negated else ''}in ({values!r},)"
        raise text.error(f"{text.source(right)} is one value, not several", right, hint=hint)
    raise _not_a_field_and_a_value(left, right, text)


def _method(node: ast.Call, text: Text) -> Where:
    """`document.regex('a+')`, or `regex(document, 'a+')`."""
    called, operands = node.func, list(node.args)
    if isinstance(called, ast.Attribute):
        operands.insert(0, called.value)
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if name not in METHODS:
        near = get_close_matches(name, METHODS, 1)
        hint = f"document.{near[0]}('paris')" if near else ", ".join(f"{known}(...)" for known in METHODS)
        raise text.error(f"{name or text.source(called)} is not a method of a field", node, hint=hint)
    field = _field(operands[0], text) if len(operands) == 2 and not node.keywords else None
    value = text.value(operands[1]) if field is not None else NotImplemented
    listed = name in ("is_in", "not_in")
    if field is None or value is NotImplemented or isinstance(value, list) is not listed:
        hint = f"model.{name}(['a', 'b'])" if listed else f"document.{name}('paris')"
        raise text.error(f"{name} takes a field and {'a list' if listed else 'one value'}", node, hint=hint)
    return _sound(METHODS[name](field, value), operands[1], text)


def _field(node: ast.expr, text: Text) -> str | None:
    return None if text.value(node) is not NotImplemented else text.field(node)


def _sound(where: Where, node: ast.expr, text: Text) -> Where:
    """A condition on one field, validated."""
    where = normalized(where)
    wrong = violation(where)
    if wrong:
        raise text.error(wrong[0], node, hint=_unfielded(repr(wrong[1])))
    return where


def _not_a_field_and_a_value(left: ast.expr, right: ast.expr, text: Text) -> InputError:
    for node in (left, right):
        if text.value(node) is NotImplemented and text.field(node) is None:
            joined = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr)
            hint = "and, or; or brackets around both sides of & and |" if joined else None
            return text.error(f"{text.source(node)} is neither a field nor a value", node, hint=hint)
    field = text.field(left) if text.value(left) is NotImplemented else None
    if field is None:
        return text.error("two values are compared, and no field", left)
    written = f"{_written(field)} == '{text.source(right)}'"
    return text.error("two fields are compared; a field is compared with a value", right, hint=written)


def _written(field: str) -> str:
    return _unfielded(named(field)) or field


def _unfielded(python: str | None) -> str | None:
    """A hint in Python's notation, without the `F.` that a text does not need."""
    return python and python.replace("(F.", "(").removeprefix("F.")
