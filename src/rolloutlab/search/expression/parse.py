"""Conditions and ranks from an expression's syntax tree."""

import ast
import operator
from collections.abc import Callable
from difflib import get_close_matches
from functools import reduce
from itertools import pairwise
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.search.dictionary import parse_rank
from rolloutlab.search.expression.source import Text
from rolloutlab.search.rank import FieldTerm, Knn, Rank, Rrf, SparseVector, Val, as_rank
from rolloutlab.search.rules import normalize, violation
from rolloutlab.search.where import All, Among, AnyOf, Compare, Contains, Matches, Where, named, opposite

COMPARISON_SYMBOLS: dict[type[ast.cmpop], str] = {
    ast.Eq: "$eq", ast.NotEq: "$ne", ast.Gt: "$gt", ast.GtE: "$gte", ast.Lt: "$lt", ast.LtE: "$lte",
}  # fmt: skip
SWAPPED = {"$eq": "$eq", "$ne": "$ne", "$gt": "$lt", "$gte": "$lte", "$lt": "$gt", "$lte": "$gte"}
"""Operators with their sides swapped: `0 < reward` is `reward > 0`."""
METHODS: dict[str, Callable[[str, Any], Where]] = {
    "contains": lambda field, value: Contains(field, value),
    "not_contains": lambda field, value: Contains(field, value, negated=True),
    "regex": lambda field, value: Matches(value, field=field),
    "not_regex": lambda field, value: Matches(value, negated=True, field=field),
    "is_in": lambda field, value: Among(field, tuple(value)),
    "not_in": lambda field, value: Among(field, tuple(value), negated=True),
}
"""Methods of a field, which are functions too: `document.regex('a+')` and `regex(document, 'a+')`."""


def read_where(node: ast.expr, text: Text) -> Where:
    """Read the condition of a node."""
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
    if (field := text.field(node)) is not None:
        raise text.error(
            f"{text.source(node)} by itself is not a condition", node, hint=f"{_write_field(field)} == True"
        )
    raise text.error(f"{text.source(node)} is not a condition", node)


def _not(node: ast.UnaryOp, text: Text) -> Where:
    where = _condition(node.operand, text)
    try:
        return opposite(where)
    except InputError as error:
        raise text.error(_strip_f(error.message) or "", node, hint=_strip_f(error.hint)) from None


def _comparison(left: ast.expr, operator: ast.cmpop, right: ast.expr, text: Text) -> Where:
    if isinstance(operator, ast.In | ast.NotIn):
        return _membership(left, right, isinstance(operator, ast.NotIn), text)
    if type(operator) not in COMPARISON_SYMBOLS:
        raise text.error("is does not compare stored values", left, hint="reward == 1, or reward != 1")
    symbol = COMPARISON_SYMBOLS[type(operator)]
    value = text.value(right)
    if value is not NotImplemented and (field := _field(left, text)) is not None:
        return _check_leaf(Compare(field, symbol, value), right, text)
    value = text.value(left)
    if value is not NotImplemented and (field := _field(right, text)) is not None:
        return _check_leaf(Compare(field, SWAPPED[symbol], value), left, text)
    raise _not_a_field_and_a_value(left, right, text)


def _membership(left: ast.expr, right: ast.expr, negated: bool, text: Text) -> Where:
    values, value = text.value(right), text.value(left)
    if isinstance(values, list) and (field := _field(left, text)) is not None:
        return _check_leaf(Among(field, tuple(values), negated), right, text)
    if value is not NotImplemented and (field := _field(right, text)) is not None:
        return _check_leaf(Contains(field, value, negated), left, text)
    field = _field(left, text)
    if field is not None and values is not NotImplemented:
        hint = f"{_write_field(field)} {'not ' if negated else ''}in ({values!r},)"
        raise text.error(f"{text.source(right)} is one value, not several", right, hint=hint)
    raise _not_a_field_and_a_value(left, right, text)


def _method(node: ast.Call, text: Text) -> Where:
    """Read a call such as `document.regex('a+')` or `regex(document, 'a+')`."""
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
    return _check_leaf(METHODS[name](field, value), operands[1], text)


def _field(node: ast.expr, text: Text) -> str | None:
    return None if text.value(node) is not NotImplemented else text.field(node)


def _check_leaf(where: Where, node: ast.expr, text: Text) -> Where:
    """Validate a condition on one field."""
    where = normalize(where)
    if wrong := violation(where):
        raise text.error(wrong[0], node, hint=_strip_f(repr(wrong[1])))
    return where


def _not_a_field_and_a_value(left: ast.expr, right: ast.expr, text: Text) -> InputError:
    for node in (left, right):
        if text.value(node) is NotImplemented and text.field(node) is None:
            joined = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr)
            hint = "and, or; or brackets around both sides of & and |" if joined else None
            return text.error(f"{text.source(node)} is neither a field nor a value", node, hint=hint)
    if (field := _field(left, text)) is None:
        return text.error("two values are compared, and no field", left)
    written = f"{_write_field(field)} == '{text.source(right)}'"
    return text.error("two fields are compared; a field is compared with a value", right, hint=written)


def _write_field(field: str) -> str:
    return _strip_f(named(field)) or field


def _strip_f(python: str | None) -> str | None:
    """Remove from a hint in Python's notation the `F.` that a text does not need."""
    return python and python.replace("(F.", "(").removeprefix("F.")


Part = Rank | float
ARITHMETIC_SYMBOLS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
FUNCTIONS = ("exp", "log", "abs")
EXTREMES = ("max", "min")
_RRF = "rrf([knn('paris', default=16, return_rank=True), knn('paris', key='bm25', default=16, return_rank=True)], k=60)"
MAKERS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "knn": ("knn", ("query", "key", "limit", "default", "return_rank"), "knn('paris', limit=50)"),
    "field": ("field", ("key", "default"), "field('reward', default=0)"),
    "val": ("val", ("value",), "val(0.5)"),
    "rrf": ("rrf", ("ranks", "k", "weights", "normalize"), _RRF),
    "sparse": ("sparse", ("indices", "values"), "knn(sparse([3, 17], [0.5, 1.5]), key='topics')"),
}
"""Functions that make ranks, and `sparse`, which makes a query: name, operands in order, and an example."""
ALIASES = {"Knn": "knn", "FieldTerm": "field", "Val": "val", "Rrf": "rrf", "SparseVector": "sparse"}
"""Names in Python's notation, so that a `repr` can be parsed."""


def read_rank(node: ast.expr, text: Text) -> Rank:
    """Read the rank of a node."""
    try:
        part = _part(node, text)
        return part if isinstance(part, Rank) else as_rank(part)
    except RecursionError:
        raise text.error("too deeply nested", node) from None


def _part(node: ast.expr, text: Text) -> Part:
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC_SYMBOLS:
        return _compute(ARITHMETIC_SYMBOLS[type(node.op)], node, text, _part(node.left, text), _part(node.right, text))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inside = _part(node.operand, text)
        return -inside if isinstance(node.op, ast.USub) else inside
    if isinstance(node, ast.Call):
        return _read_call(node, text)
    if (value := text.value(node)) is NotImplemented:
        if (field := text.field(node)) is None:
            raise text.error(f"{text.source(node)} cannot be part of a rank", node)
        return _check_rank(FieldTerm(field), node, text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        hint = f"knn({value!r})" if isinstance(value, str) else None
        raise text.error(f"{text.source(node)} is not a rank", node, hint=hint)
    _check_rank(Val(value), node, text)
    return value


def _compute(compute: Callable[..., Any], node: ast.expr, text: Text, *parts: Part) -> Part:
    try:
        result: Part = compute(*parts)
    except (ZeroDivisionError, OverflowError) as error:
        raise text.error(f"{text.source(node)}: {error}", node) from None
    return result


def _read_call(node: ast.Call, text: Text) -> Part:
    called, operands, name = node.func, list(node.args), ""
    if isinstance(called, ast.Attribute):
        name, operands = called.attr, [called.value, *operands]
    elif isinstance(called, ast.Name):
        name = ALIASES.get(called.id, called.id)
    if name in FUNCTIONS and len(operands) == 1 and not node.keywords:
        return getattr(as_rank(_part(operands[0], text)), name)()  # type: ignore[no-any-return]
    if name in EXTREMES and len(operands) > 1 and not node.keywords:
        return reduce(lambda a, b: getattr(a, name)(b), [as_rank(_part(operand, text)) for operand in operands])
    if name in MAKERS and name != "sparse" and isinstance(called, ast.Name):
        return _make(name, node, text)
    if name in FUNCTIONS or name in EXTREMES:
        hint = f"{name}(knn('paris'))" if name in FUNCTIONS else f"{name}(knn('paris'), 0.5)"
        raise text.error(f"{name} is of {'one rank' if name in FUNCTIONS else 'two ranks or more'}", node, hint=hint)
    names = (*MAKERS, *FUNCTIONS, *EXTREMES)
    near = get_close_matches(name.lower(), names, 1)
    hint = ", ".join(f"{known}(...)" for known in names)
    if near:
        hint = MAKERS[near[0]][2] if near[0] in MAKERS else f"{near[0]}(...)"
    raise text.error(f"{name or text.source(called)} is not a function of ranks", node, hint=hint)


def _make(name: str, node: ast.Call, text: Text) -> Rank:
    operands = _operands(name, node, text)
    if name == "rrf":
        return _fuse(operands, node, text)
    values = {key: _value(key, inside, text) for key, inside in operands.items()}
    if name == "field" and isinstance(values.get("key"), str):
        text.check_name(values["key"], operands["key"])
    kinds: dict[str, Callable[..., Rank]] = {"knn": Knn, "field": FieldTerm, "val": Val}
    try:
        made = kinds[name](**values)
    except (InputError, TypeError):
        raise text.error(f"{text.source(node)} is not complete", node, hint=MAKERS[name][2]) from None
    return _check_rank(made, node, text)


def _operands(name: str, node: ast.Call, text: Text) -> dict[str, ast.expr]:
    """Find the operands of a call by their names."""
    _, keys, example = MAKERS[name]
    if len(node.args) > len(keys) or any(isinstance(inside, ast.Starred) for inside in node.args):
        raise text.error(f"{name} has {len(keys)} operands: {', '.join(keys)}", node, hint=example)
    operands = dict(zip(keys, node.args, strict=False))
    for keyword in node.keywords:
        if keyword.arg not in keys or keyword.arg in operands:
            near = get_close_matches(keyword.arg or "", keys, 1)
            why = f"{name} has no {keyword.arg!r}" if keyword.arg not in keys else f"{keyword.arg!r} is there twice"
            raise text.error(why, keyword, hint=near[0] + "=" if near and "no" in why else example)
        operands[keyword.arg] = keyword.value
    if keys[0] not in operands:
        raise text.error(f"{name} has no {keys[0]}", node, hint=example)
    return operands


def _value(key: str, node: ast.expr, text: Text) -> Any:
    if key == "query" and isinstance(node, ast.Call):
        return _sparse(node, text)
    if (value := text.value(node)) is NotImplemented:
        raise text.error(f"{text.source(node)} is not a value", node, hint=f"'{text.source(node)}'")
    return value


def _sparse(node: ast.Call, text: Text) -> SparseVector:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    operands = _operands("sparse", node, text) if ALIASES.get(name, name) == "sparse" else {}
    lists = [text.value(inside) for inside in operands.values()]
    if len(lists) != 2 or not all(isinstance(each, list) for each in lists):
        raise text.error("a query is a text, a list of numbers or a sparse vector", node, hint=MAKERS["sparse"][2])
    return SparseVector(**dict(zip(operands, lists, strict=True)))


def _fuse(operands: dict[str, ast.expr], node: ast.Call, text: Text) -> Rank:
    ranks = operands.pop("ranks")
    if not isinstance(ranks, ast.List | ast.Tuple):
        raise text.error("rrf fuses a list of ranks", ranks, hint=MAKERS["rrf"][2])
    options = {key: _value(key, inside, text) for key, inside in operands.items()}
    try:
        return Rrf([read_rank(each, text) for each in ranks.elts], **options)
    except (InputError, TypeError, ValueError) as error:
        if isinstance(error, InputError) and "\n" in error.message:
            raise  # the inner error already points at its position
        raise text.error(str(error), node, hint=MAKERS["rrf"][2]) from None


def _check_rank(rank: Rank, node: ast.expr, text: Text) -> Rank:
    """Validate a rank."""
    try:
        return parse_rank(rank)
    except InputError as error:
        raise text.error(error.message.removeprefix("rank."), node, hint=error.hint) from None
