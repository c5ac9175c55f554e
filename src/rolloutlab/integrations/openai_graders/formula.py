"""Arithmetic formulas over named numbers, evaluated without `eval`: the `calculate_output` of a multi grader."""

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from rolloutlab.errors import InputError, RewardError

_LONGEST = 2000
_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}
SUPPORTED = f"numbers, names, + - * / ^ and {', '.join(_FUNCTIONS)}"


class Formula:
    """A parsed formula. names: the names that it may use.

    Raises:
        InputError: it is not a formula, is too long, or has other names, operators or functions.
    """

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.text = text
        if len(text) > _LONGEST:
            raise InputError(f"a formula has at most {_LONGEST:,} characters", hint="split it into graders")
        try:
            self._tree = ast.parse(text.replace("^", "**").strip(), mode="eval").body
            self._check(self._tree, names)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InputError(f"{text!r} is not a formula: {error}", hint=SUPPORTED) from None

    def value(self, numbers: Mapping[str, float]) -> float:
        """Calculate the result. Raises RewardError if it is not finite, for instance after a division by zero."""
        try:
            value = self._value(self._tree, numbers)
        except (ArithmeticError, ValueError, TypeError) as error:
            raise RewardError(f"{self.text} cannot be calculated of {dict(numbers)}: {error}") from None
        if isinstance(value, complex) or not math.isfinite(value):
            raise RewardError(f"{self.text} is {value} of {dict(numbers)}, which is no finite number")
        return float(value)

    def _check(self, node: ast.AST, names: Sequence[str]) -> None:
        if isinstance(node, ast.Constant) and not isinstance(node.value, bool) and isinstance(node.value, int | float):
            if node.value < 1e300:
                return
        elif isinstance(node, ast.Name):
            if node.id in names:
                return
            raise InputError(f"{self.text!r} uses {node.id!r}, which is no grader", hint=", ".join(names))
        elif isinstance(node, ast.BinOp | ast.UnaryOp) and type(node.op) in _OPERATORS:
            operands = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.operand,)
            for operand in operands:
                self._check(operand, names)
            return
        elif _is_function(node):
            for argument in node.args:
                self._check(argument, names)
            return
        part = ast.unparse(node)
        raise InputError(f"{part!r} in {self.text!r} is not supported", hint=SUPPORTED)

    def _value(self, node: ast.AST, numbers: Mapping[str, float]) -> Any:
        if isinstance(node, ast.Constant):
            return float(node.value)  # type: ignore[arg-type]  # checked; integers could grow without a limit
        if isinstance(node, ast.Name):
            return numbers[node.id]
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](self._value(node.left, numbers), self._value(node.right, numbers))
        if isinstance(node, ast.UnaryOp):
            return _OPERATORS[type(node.op)](self._value(node.operand, numbers))
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        values = [self._value(argument, numbers) for argument in node.args]
        return _FUNCTIONS[node.func.id](*values) if len(values) > 1 or node.func.id not in {"min", "max"} else values[0]


def _is_function(node: ast.AST) -> TypeGuard[ast.Call]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    return node.func.id in _FUNCTIONS and bool(node.args) and not node.keywords
