"""`%%reward` and `%rewards`."""

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from IPython.core.magic import cell_magic, line_magic, magics_class

from rolloutlab.errors import InputError
from rolloutlab.magics.base import LabMagics, argument, magic, unquote

if TYPE_CHECKING:
    import pandas as pd

    from rolloutlab.scoring.functions import Functions, RewardFunction
    from rolloutlab.trajectories.collection import Collection
    from rolloutlab.trajectories.rewards_view import RewardsView

_CALLS = ("concurrency", "timeout", "retries", "processes")


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
    @argument(
        "--grader", nargs="?", const="", metavar="FILE", help="an OpenAI grader; without FILE the cell is its JSON"
    )
    @argument("--judge", metavar="MODEL", help="a model that scores each group; the cell is its rubric")
    @argument("--samples", type=int, help="how often a group is judged (default: 2, in opposite orders)")
    @argument("--max-tokens", type=int, help="the most tokens of one answer of the judge, for a budget")
    @argument(
        "--budget", type=float, metavar="DOLLARS", help="limit of what the judge, or the models of a grader, may cost"
    )
    @argument("--overwrite", action="store_true", default=None, help="score again what was scored by hand")
    @argument("--concurrency", type=int, help="calls at a time (default: 32)")
    @argument("--timeout", type=float, metavar="SECONDS", help="a call that takes longer has failed")
    @argument("--retries", type=int, help="how often a call that failed is made again (default: 0)")
    @argument("--processes", type=int, help="call functions in so many processes; they must be in a module")
    @argument(
        "--resume", action="store_true", default=None, help="score only what the last scoring left out or failed on"
    )
    @argument(
        "--dry-run", dest="dry_run", action="store_true", default=None, help="try three trajectories and store nothing"
    )
    @argument(
        "--cache",
        action="store_true",
        default=None,
        help="store results, and reuse those of the same function",
    )
    @argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        default=None,
        help="reuse no stored result of a judge or a function",
    )
    @cell_magic
    def reward(self, options: Namespace, cell: str) -> "Collection | pd.DataFrame":
        """Score every trajectory of a collection.

        The cell is the body of a Python function that returns a number, or a dict of components whose sum is the
        reward. It may use `trajectory, answer, reasoning, messages, row, prompt, completion, info` and the columns of
        the row. If it uses `group` or `answers`, it returns a list with a value for each member of a group. For
        example:

            %%reward capitals
            return float(answer.strip() == capital)

        Functions of the notebook can be used instead of a cell, or beside one, which is then the component `cell`:

            %%reward capitals --with exact,brief --weight exact=1 --weight brief=0.2

        A trajectory whose function fails gets no reward; `%%reward capitals --resume` scores only those.
        --grader scores with an OpenAI grader, whose JSON is in FILE or in the cell.
        With --judge a model compares the completions of each group. The cell is its rubric; {{x}} is a column:

            %%reward capitals --judge lab/judge
            The right answer is {{capital}}. Nothing but the name is best.
        """
        if options.judge:
            return self._judge(options, cell)
        for name in self.given(options, "samples", "max_tokens"):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is for a judge", hint=f"%%reward {options.name} --judge MODEL")
        result: Collection | pd.DataFrame = self.session.reward(
            options.name,
            self._functions(options, cell),
            parse_weights(options.weights or []),
            **self.given(options, *_CALLS, "overwrite", "resume", "dry_run", "cache", "budget"),
        )
        return result

    @magic(binds="the table")
    @argument("names", nargs="+", metavar="name", help="collections, patterns such as 'cap*', or one group")
    @argument("--history", dest="reward_history", action="store_true", help="every change of its rewards, newest first")
    @argument(
        "--undo",
        dest="undo_rewards",
        action="store_true",
        help="undo the newest change that is not undone yet",
    )
    @argument("--from", dest="file", type=unquote, metavar="FILE", help="take the rewards of an edited labels.csv")
    @line_magic
    def rewards(self, options: Namespace) -> "RewardsView | pd.DataFrame":
        """Show the rewards of collections as a table to sort, filter and edit, or their history.

        For example, after `%export capitals labels.csv` and an edit in a spreadsheet:

            %rewards capitals --from labels.csv
        """
        names = [unquote(name) for name in options.names]
        if options.undo_rewards or options.reward_history or options.file:
            if len(names) > 1:
                message = (
                    "--history and --undo are of one collection" if not options.file else "--from is of one collection"
                )
                raise InputError(message, hint=f"%rewards {names[0]} --history")
            if options.file:
                edits = self.session.collection(names[0]).update_rewards_from(options.file)
                print(f"{edits} -> %rewards {names[0]} --undo takes it back" if edits else edits)
            if options.undo_rewards:
                self.session.collection(names[0]).undo_rewards()
            if options.reward_history:
                return self.session.collection(names[0]).reward_history()
        return self.session.rewards(names[0] if len(names) == 1 else names)

    def _judge(self, options: Namespace, rubric: str) -> "Collection":
        if options.resume or options.dry_run or self.given(options, *_CALLS):
            names = ", ".join(f"--{name}" for name in _CALLS)
            message = f"a judge scores all groups, or goes on by itself: --resume, --dry-run, {names} are for functions"
            raise InputError(message, hint=f"%%reward {options.name} --judge {options.judge}")
        if options.function or options.weights or options.grader is not None:
            hint = 'return {"judge": trajectory.components["judge"], ...} in a %%reward after it'
            raise InputError(
                "a judge gives the whole reward: --with, --grader and --weight are for functions", hint=hint
            )
        return self.session.judge(
            options.name,
            rubric,
            model=options.judge,
            variables=self.variables,
            **self.given(options, "samples", "max_tokens", "overwrite", "cache", "budget"),
        )

    def _functions(self, options: Namespace, cell: str) -> "Functions | None":
        """Return the functions that score. None, with --resume and an empty cell, means those that scored last."""
        if options.grader is not None:
            if bool(options.grader) == bool(cell.strip()):
                message = "a grader is in the file or in the cell, one of both"
                raise InputError(message, hint=f"%%reward {options.name} --grader grader.json, with an empty cell")
            grader = self.session.grader(options.grader or cell)
            return {**self._find_functions(options.function), "grader": grader} if options.function else grader
        if options.function:
            body = {"cell": compile_reward(cell, self.variables)} if cell.strip() else {}
            return self._find_functions(options.function) | body
        return None if options.resume and not cell.strip() else compile_reward(cell, self.variables)

    def _find_functions(self, functions: str) -> "dict[str, RewardFunction]":
        """Return the functions of `exact,brief`, or of `metrics.exact,brief`, by their last names."""
        expressions = {name.strip().rpartition(".")[2]: name.strip() for name in functions.split(",")}
        if len(expressions) <= functions.count(",") or expressions.keys() & {"", "cell"}:
            raise InputError(f"--with {functions} does not name each function once", hint="--with exact,brief")
        return {name: self.value(expression) for name, expression in expressions.items()}


def parse_weights(texts: Sequence[str]) -> dict[str, float]:
    """Parse weights such as `exact=0.5`; raise InputError for another form, or for a name given twice."""
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


def compile_reward(body: str, variables: dict[str, Any]) -> "RewardFunction":
    """Make the function whose body is the cell. It sees the notebook's variables.

    Raises:
        InputError: the cell is empty, is not Python, or returns nothing.
    """
    from rolloutlab.scoring.calls import RewardCell

    return RewardCell(body, variables)
