"""`%%reward`."""

import ast
import linecache
from typing import Any

from IPython.core.magic import cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from rolloutlab.collection import Collection
from rolloutlab.errors import InputError
from rolloutlab.magics.cells import LabMagics
from rolloutlab.session import RewardFunction


@magics_class
class RewardMagics(LabMagics):
    """Score trajectories."""

    @no_var_expand
    @magic_arguments("%reward")
    @argument("name", help="the collection to score")
    @argument("-o", "--output", metavar="VARIABLE", help="bind the collection to this variable")
    @cell_magic
    def reward(self, line: str, cell: str) -> Collection:
        """Score every trajectory of a collection.

        The cell is the body of a Python function of `trajectory, answer, messages, row` that returns a number, or a
        dict of components whose sum is the reward. For example:

            %%reward capitals
            return float(answer.strip() == row["capital"])
        """
        options = self.options(self.reward, line)
        collection = self.session.reward(options.name, compile_reward(cell, self.variables))
        return self.bound(options.output, collection)


def compile_reward(body: str, namespace: dict[str, Any]) -> RewardFunction:
    """The function whose body is the cell; it sees the notebook's variables.

    Raises:
        InputError: the cell is empty, is not Python, or returns nothing.
    """
    if not body.strip():
        raise InputError("the cell is empty: there is no reward function", hint="return float(len(answer) > 0)")
    filename = "<%%reward>"
    try:
        module = ast.parse("def reward(trajectory, answer, messages, row): pass")
        function = module.body[0]
        assert isinstance(function, ast.FunctionDef)
        function.body = ast.parse(body, filename).body
        code = compile(module, filename, "exec")
    except SyntaxError as error:
        said = f"{error.msg} (line {error.lineno})"
        raise InputError(f"the reward function is not Python: {said}", hint="%%reward? shows an example") from None
    if not any(isinstance(node, ast.Return) and node.value for node in ast.walk(function)):
        raise InputError("the reward function returns nothing", hint="return float(...) in the last line")
    linecache.cache[filename] = (len(body), None, body.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {}
    exec(code, namespace, scope)
    made: RewardFunction = scope["reward"]
    return made
