"""Source text of an expression: its `ast` tree, names and values in it, and errors with a caret at the position."""

import ast
import re
import warnings
from collections.abc import Collection
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.search.json_cursor import name_problem, too_deep
from rolloutlab.search.where import DOCUMENT, ID

OWN = {"id": ID, "document": DOCUMENT}
"""Names of the record's own fields in the notation."""
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | `[^`]*`""", re.VERBOSE)
_BLANK = re.compile(rf"{_QUOTED.pattern} | \s", re.VERBOSE)
_WINDOW = 100
_FOREIGN = re.compile(
    rf"{_QUOTED.pattern} | && | \|\| | <> | \b(?:AND|OR|NOT|IN)\b | !(?!=) | (?<![<>=!])=(?!=)", re.VERBOSE
)
_WORDS = {
    "&&": "and", "||": "or", "!": "not ", "<>": "!=", "=": "==", "AND": "and", "OR": "or", "NOT": "not", "IN": "in",
}  # fmt: skip
"""Operators of SQL and JavaScript with those of Python."""


class Text:
    """One condition or rank as text. example: a text that is shown as a hint. known: names of the fields, if known."""

    def __init__(self, text: str, example: str, known: Collection[str] | None) -> None:
        self.line = _BLANK.sub(lambda match: " " if match[0].isspace() else match[0], text).rstrip()
        self.example = example
        self.known = known
        self._ticked: dict[int, str] = {}  # names in backticks, by their start in `_readable`
        self._readable = _QUOTED.sub(self._replace_backticks, self.line)
        self._indent = len(self._readable) - len(self._readable.lstrip())

    def tree(self) -> ast.expr:
        """Parse the text into its syntax tree."""
        if not self.line.strip():
            raise InputError("the text is empty", hint=self.example)
        try:
            with warnings.catch_warnings(action="ignore"):  # about escapes such as \d, which stay as they are
                return ast.parse(self._readable.lstrip(), mode="eval").body
        except SyntaxError as error:
            place = self._indent + max((error.offset or 1) - 1, 0)
            raise self._point_at(f"syntax error: {error.msg}", place, hint=self._respell()) from None
        except (RecursionError, MemoryError):
            raise too_deep() from None
        except ValueError as error:  # such as a null byte
            raise InputError(f"syntax error: {error}", hint=self.example) from None

    def error(self, why: str, node: ast.AST, *, hint: str | None = None) -> InputError:
        """Make the error for a node."""
        return self._point_at(why, self._place(node), hint=hint or self.example)

    def source(self, node: ast.AST) -> str:
        """Return the source of a node."""
        begin = self._place(node)
        end = self._character(node.end_col_offset or 0)  # type: ignore[attr-defined]
        return self.line[begin:end]

    def field(self, node: ast.AST) -> str | None:
        """Return the field that a node names; None if it is not a name. InputError if no record has this field."""
        if (name := self._name(node)) is not None:
            self.check_name(name, node, (ID, DOCUMENT))
        return name

    def check_name(self, name: str, node: ast.AST, besides: Collection[str] = ()) -> None:
        """Raise InputError for an unknown field name."""
        if problem := name_problem(name, besides, self.known):
            raise self.error(problem[0], node, hint=problem[1])

    def value(self, node: ast.AST) -> Any:
        """Return the literal of a node: a string, number, bool or a list of them; NotImplemented if it is none."""
        if isinstance(node, ast.Name) and node.id in ("true", "false"):
            return node.id == "true"
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            values = [self.value(item) for item in node.elts]
            return NotImplemented if any(value is NotImplemented for value in values) else values
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            number = self.value(node.operand)
            if isinstance(number, bool) or not isinstance(number, int | float):
                return NotImplemented
            return -number if isinstance(node.op, ast.USub) else number
        return node.value if isinstance(node, ast.Constant) else NotImplemented

    def _name(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            ticked = self._ticked.get(self._place(node))
            return ticked if ticked is not None else OWN.get(node.id, self._spelling_of(node))
        if isinstance(node, ast.Subscript) and _is_fields(node.value):
            inside = self.value(node.slice)
            if not isinstance(inside, str):
                raise self.error("F[...] has the name of a field in it", node, hint='F["reward.exact match"]')
            return inside
        if isinstance(node, ast.Attribute):
            if _is_fields(node.value):
                return OWN.get(node.attr, self._spelling_of(node))
            before = self._name(node.value)
            return None if before is None else f"{before}.{self._spelling_of(node)}"
        return None

    def _spelling_of(self, node: ast.AST) -> str:
        """Return the last name of a node as it was written, since `ast` applies NFKC to identifiers."""
        return self.source(node).rpartition(".")[2].strip()

    def _replace_backticks(self, match: re.Match[str]) -> str:
        """Replace a name in backticks by one of the same length, so that columns stay the same."""
        quoted = match[0]
        if not quoted.startswith("`"):
            return quoted
        if len(quoted) < 3:
            hint = "`reward.exact match` > 0"
            raise self._point_at("there is no name between the backticks", match.start(), hint=hint)
        self._ticked[match.start() + 1] = quoted[1:-1]
        return f" {'x' * (len(quoted) - 2)} "

    def _place(self, node: ast.AST) -> int:
        return self._character(node.col_offset)  # type: ignore[attr-defined]

    def _character(self, column: int) -> int:
        """Return the character index of an `ast` column, which counts UTF-8 bytes."""
        read = self._readable.lstrip()
        return self._indent + len(read.encode(errors="surrogatepass")[:column].decode(errors="replace"))

    def _point_at(self, why: str, place: int, *, hint: str) -> InputError:
        """Make an error with the text and a caret below the position."""
        place = min(place, len(self.line))
        begin = max(0, min(place - _WINDOW // 2, len(self.line) - _WINDOW))
        part = re.sub(r"\s", " ", self.line[begin : begin + _WINDOW])
        return InputError(f"{why}\n  {part}\n  {' ' * (place - begin)}^", hint=hint)

    def _respell(self) -> str:
        """Replace operators of SQL or JavaScript by Python's; without any, return the example."""
        better = _FOREIGN.sub(lambda match: _WORDS.get(match[0], match[0]), self.line)
        return better if better != self.line else self.example


def _is_fields(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "F"
