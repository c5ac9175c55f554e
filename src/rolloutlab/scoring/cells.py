"""A cell as a reward function: its parameters are the names that its body uses."""

import ast
import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolloutlab.errors import InputError

_FILENAME = "<%%reward>"
_USUAL = ("trajectory", "answer", "messages", "row")


class RewardCell:
    """The body of a reward function, as a cell has it. variables: of the notebook, which it sees.

    Raises:
        InputError: it is empty, is not Python, or returns nothing.
    """

    def __init__(self, body: str, variables: dict[str, Any]) -> None:
        if not body.strip():
            raise InputError("the cell is empty: there is no reward function", hint="return float(len(answer) > 0)")
        self.body = body
        self._variables = variables
        try:
            self._lines = ast.parse(body, _FILENAME).body
            self._function(())
        except SyntaxError as error:
            problem = f"{error.msg} (line {error.lineno})"
            hint = "%%reward? shows an example"
            raise InputError(f"the reward function is not Python: {problem}", hint=hint) from None
        if not any(isinstance(node, ast.Return) and node.value for node in self._nodes()):
            raise InputError("the reward function returns nothing", hint="return float(...) in the last line")

    def __call__(self, trajectory: Any, answer: Any, messages: Any, row: Any) -> Any:
        """Call the body with the arguments of a function of before; `compiled` has all names."""
        return self._function(_USUAL)(trajectory, answer, messages, row)

    def compiled(self, names: Sequence[str], columns: Sequence[str]) -> Callable[..., Any]:
        """The function whose parameters are those of the names and columns that the body uses.

        A column precedes a variable of the notebook, as in `%%chat`. A variable, or a name that the body assigns,
        precedes the names that are not in `_USUAL`, so that cells from before there were these names stay valid.
        """
        return self._function(self.parameters(names, columns))

    def parameters(self, names: Sequence[str], columns: Sequence[str]) -> list[str]:
        """The parameters of `compiled`."""
        used = [node for node in self._nodes() if isinstance(node, ast.Name)]
        read = dict.fromkeys(node.id for node in used if isinstance(node.ctx, ast.Load))
        assigned = {node.id for node in used if isinstance(node.ctx, ast.Store)}
        mine = {name for name in names if name not in _USUAL and (name in self._variables or name in assigned)}
        known = {*names} - mine
        of_row = {name for name in columns if name.isidentifier()} - (mine & self._variables.keys())
        return [name for name in read if name in known | of_row]

    def shadowed(self, names: Sequence[str], columns: Sequence[str]) -> list[str]:
        """Notes on names that are both a variable of the notebook and a column, or a name of a trajectory."""
        parameters = self.parameters(names, columns)
        read = {node.id for node in self._nodes() if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        by_column = [n for n in parameters if n in columns and n not in names and n in self._variables]
        by_variable = [n for n in names if n in read and n not in parameters and n in self._variables]
        return [
            *(f"{name} is the column of the row, not the variable of the notebook" for name in by_column),
            *(f"{name} is the variable of the notebook, not what a trajectory has" for name in by_variable),
        ]

    def _nodes(self) -> list[ast.AST]:
        return [node for line in self._lines for node in ast.walk(line)]

    def _function(self, parameters: Sequence[str]) -> Callable[..., Any]:
        waits = any(isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in self._nodes())
        module = ast.parse(f"{'async ' if waits else ''}def reward({', '.join(parameters)}): pass")
        function = module.body[0]
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        function.body = self._lines  # so that its lines are those of the cell
        code = compile(module, _FILENAME, "exec")
        linecache.cache[_FILENAME] = (len(self.body), None, self.body.splitlines(keepends=True), _FILENAME)
        scope: Mapping[str, Any] = {}
        exec(code, self._variables, scope)
        made: Callable[..., Any] = scope["reward"]
        return made
