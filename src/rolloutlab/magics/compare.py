"""`%compare` and `%%compare`."""

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.magic import line_cell_magic, magics_class

from rolloutlab.magics.base import LabMagics, argument, magic
from rolloutlab.magics.reward import compile_reward

if TYPE_CHECKING:
    from rolloutlab.trajectories.comparison import Comparison, Comparisons


@magics_class
class CompareMagics(LabMagics):
    """Compare checkpoints."""

    @magic(binds="the comparison")
    @argument("name", help="the collection whose prompts and seeds are sampled again; default: the one trained on last")
    @argument(
        "checkpoints", nargs="*", help="two or more, such as lab/sorter@3 or a step; others are compared with the first"
    )
    @argument("--best", action="store_true", default=None, help="these are runs: compare the best checkpoint of each")
    @argument("--before", metavar="CHECKPOINT", help="the checkpoint to compare with (default: the oldest)")
    @argument(
        "--after", metavar="CHECKPOINT", default="latest", help="the checkpoint that is compared (default: latest)"
    )
    @argument("-n", type=int, help="completions per prompt; default: as many as the collection has")
    @argument("--over", metavar="ROWS", help="other rows, such as held_out, for the collection's prompt")
    @argument(
        "--anytime", action="store_true", default=None, help="an interval that stays valid however often you compare"
    )
    @argument("--bounds", nargs=2, type=float, metavar=("LEAST", "LARGEST"), help="range of the rewards, if not 0 to 1")
    @argument("-m", "--model", help="the model, for checkpoints given as a step; default: the selected one")
    @argument("--tools", metavar="FUNCTIONS", help="the functions that the collection was sampled with")
    @argument("--env", metavar="ENVIRONMENT", help="the environment that the collection was sampled with")
    @argument("--concurrency", type=int, help="requests under way at once (default: 64)")
    @line_cell_magic
    def compare(self, options: Namespace, cell: str | None = None) -> "Comparison | Comparisons":
        """Compare checkpoints on the same prompts and seeds, by default the oldest and newest of the selected model.

        The body of the cell scores all of them; without a body, the reward function that last scored the collection in
        this notebook. A verdict needs 16 prompts that were not trained on between the checkpoints. Samples of an
        earlier comparison are reused. For example:

            %compare capitals --over held_out
            %compare capitals lab/practice@0 lab/second@4 lab/second@8 --over held_out
            %compare lab/practice@2 lab/second@1 --over held_out
            %compare capitals lab/slow lab/fast --best --over held_out

            %%compare capitals --over held_out -n 4
            return float(answer.strip() == row["capital"])
        """
        given = self.given(options, "n", "model", "concurrency", "anytime", "best")
        named = not {"@", "/"} & set(options.name)  # the name of a checkpoint has one of them, a collection's has none
        if checkpoints := [*([] if named else [options.name]), *options.checkpoints]:
            given["checkpoints"] = checkpoints
        if options.over:
            given["over"] = self.rows(options.over)
        if options.tools:
            given["tools"] = self.tools_named(options.tools)
        if options.bounds:
            given["bounds"] = tuple(options.bounds)
        if options.env:
            given["env"] = self.environment(options.env)
        reward = compile_reward(cell, self.variables) if cell and cell.strip() else None
        return self.session.compare(
            options.name if named else None,
            reward,
            before=None if options.before is None else _parse_step(options.before),
            after=None if options.after == "latest" else _parse_step(options.after),
            variables=self.variables,
            **given,
        )


def _parse_step(text: str) -> int | str:
    return int(text) if text.isdecimal() else text
