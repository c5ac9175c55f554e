"""`%%reward` and `%rewards`."""

import ast
import linecache
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from IPython.core.magic import cell_magic, line_magic, magics_class

from rolloutlab.errors import InputError
from rolloutlab.magics.base import LabMagics, argument, magic, unquoted

if TYPE_CHECKING:
    import pandas as pd

    from rolloutlab.trajectories.collection import Collection
    from rolloutlab.trajectories.rewards_view import RewardsView
    from rolloutlab.trajectories.scoring.functions import Functions, RewardFunction


@magics_class
class RewardMagics(LabMagics):
    """Score trajectories."""

    @magic("%reward", binds="the collection")
    @argument("name", help="the collection to score")
    @argument("--with", dest="function", metavar="F,G", help="reward functions of the notebook, each a component")
    @argument(
        "--weight",
        dest="weights",
        action="append",
        metavar="NAME=NUMBER",
        help="the weight of a component (default: 1)",
    )
    @argument("--judge", metavar="MODEL", help="a model that scores each group; the cell is its rubric")
    @argument("--samples", type=int, help="how often a group is judged (default: 2, in opposite orders)")
    @argument("--overwrite", action="store_true", help="score again what was scored by hand")
    @cell_magic
    def reward(self, options: Namespace, cell: str) -> "Collection":
        """Score every trajectory of a collection.

        The cell is the body of a Python function of `trajectory, answer, messages, row` that returns a number, or a
        dict of components whose sum is the reward. For example:

            %%reward capitals
            return float(answer.strip() == row["capital"])

        Functions of the notebook can be used instead of a cell, or beside one, which is then the component `cell`:

            %%reward capitals --with exact,brief --weight exact=1 --weight brief=0.2

        With --judge a model compares the completions of each group by the rubric in the cell, {{x}} being a column:

            %%reward capitals --judge lab/judge
            The right answer is {{capital}}. Nothing but the name is best.
        """
        if options.judge:
            return self._judge(options, cell)
        if options.samples is not None:
            raise InputError("--samples is for a judge", hint=f"%%reward {options.name} --judge MODEL")
        functions: Functions
        if options.function:
            functions = self._named(options.function)
            functions |= {"cell": compile_reward(cell, self.variables)} if cell.strip() else {}
        else:
            functions = compile_reward(cell, self.variables)
        weights = parse_weights(options.weights or [])
        return self.session.reward(options.name, functions, weights, overwrite=options.overwrite)

    @magic(binds="the table")
    @argument("names", nargs="+", metavar="name", help="collections, patterns such as 'cap*', or one group")
    @argument("--history", dest="reward_history", action="store_true", help="every change of its rewards, newest first")
    @argument(
        "--undo",
        dest="undo_rewards",
        action="store_true",
        help="take back the newest change that is not taken back yet",
    )
    @line_magic
    def rewards(self, options: Namespace) -> "RewardsView | pd.DataFrame":
        """Show the rewards of collections as a table to sort, filter and edit, or how they came to be."""
        names = [unquoted(name) for name in options.names]
        if options.undo_rewards or options.reward_history:
            if len(names) > 1:
                raise InputError("--history and --undo are of one collection", hint=f"%rewards {names[0]} --history")
            if options.undo_rewards:
                self.session.undo_rewards(names[0])
            if options.reward_history:
                return self.session.reward_history(names[0])
        return self.session.rewards(names[0] if len(names) == 1 else names)

    def _judge(self, options: Namespace, rubric: str) -> "Collection":
        if options.function or options.weights:
            hint = 'return {"judge": trajectory.components["judge"], ...} in a %%reward after it'
            raise InputError("a judge gives the whole reward: --with and --weight are for functions", hint=hint)
        return self.session.judge(
            options.name,
            rubric,
            model=options.judge,
            variables=self.variables,
            overwrite=options.overwrite,
            **self.given(options, "samples"),
        )

    def _named(self, functions: str) -> "dict[str, RewardFunction]":
        """The functions of `exact,brief`, or of `metrics.exact,brief`, under their last names."""
        expressions = {name.strip().rpartition(".")[2]: name.strip() for name in functions.split(",")}
        if len(expressions) <= functions.count(",") or expressions.keys() & {"", "cell"}:
            raise InputError(f"--with {functions} does not name each function once", hint="--with exact,brief")
        return {name: self.value(expression) for name, expression in expressions.items()}


def parse_weights(texts: Sequence[str]) -> dict[str, float]:
    """Names and numbers of texts such as `exact=0.5`; InputError for one of another form, or a name given twice."""
    weights: dict[str, float] = {}
    for text in texts:
        name, _, number = (part.strip() for part in text.partition("="))
        if name in weights:
            raise InputError(f"the weight of {name} is given twice", hint=f"--weight {text}")
        try:
            weights[name] = float(number)
        except ValueError:
            raise InputError(f"--weight {text} is not a weight", hint="--weight exact=0.5") from None
    return weights


def compile_reward(body: str, namespace: dict[str, Any]) -> "RewardFunction":
    """The function whose body is the cell. InputError: it is empty, is not Python, or returns nothing."""
    if not body.strip():
        raise InputError("the cell is empty: there is no reward function", hint="return float(len(answer) > 0)")
    filename = "<%%reward>"
    try:
        module = ast.parse("def reward(trajectory, answer, messages, row): pass")
        function = module.body[0]
        assert isinstance(function, ast.FunctionDef)
        function.body = ast.parse(body, filename).body  # so that its lines are those of the cell
        code = compile(module, filename, "exec")
    except SyntaxError as error:
        problem = f"{error.msg} (line {error.lineno})"
        raise InputError(f"the reward function is not Python: {problem}", hint="%%reward? shows an example") from None
    if not any(isinstance(node, ast.Return) and node.value for node in ast.walk(function)):
        raise InputError("the reward function returns nothing", hint="return float(...) in the last line")
    linecache.cache[filename] = (len(body), None, body.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {}
    exec(code, namespace, scope)
    made: RewardFunction = scope["reward"]
    return made
