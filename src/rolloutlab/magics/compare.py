"""`%compare` and `%%compare`."""

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.magic import line_cell_magic, magics_class

from rolloutlab.errors import InputError
from rolloutlab.magics.base import LabMagics, argument, magic
from rolloutlab.magics.reward import compile_reward

if TYPE_CHECKING:
    from rolloutlab.trajectories.comparison import Comparison


@magics_class
class CompareMagics(LabMagics):
    """Compare checkpoints."""

    @magic(binds="the comparison")
    @argument("name", help="the collection whose prompts and seeds are sampled again")
    @argument("--before", metavar="STEP", default="0", help="the one checkpoint (default: 0)")
    @argument("--after", metavar="STEP", default="latest", help="the other checkpoint (default: latest)")
    @argument("-n", type=int, help="completions per prompt; default: as many as the collection has")
    @argument("--over", metavar="ROWS", help="other rows, such as held_out, for the collection's prompt")
    @argument("--anytime", action="store_true", help="an interval that stays valid however often you compare")
    @argument("--bounds", nargs=2, type=float, metavar=("LEAST", "LARGEST"), help="rewards, if not within 0 and 1")
    @argument("-m", "--model", help="the model whose checkpoints they are; default: the selected one")
    @argument("--tools", metavar="FUNCTIONS", help="the functions that the collection was sampled with")
    @argument("--env", metavar="ENVIRONMENT", help="the environment that the collection was sampled with")
    @argument("--concurrency", type=int, help="requests under way at once (default: 64)")
    @line_cell_magic
    def compare(self, options: Namespace, cell: str | None = None) -> "Comparison":
        """Compare two checkpoints on the same prompts and seeds.

        Both are scored by the reward function that last scored the collection in this notebook, or by the body of the
        cell. A verdict needs 16 prompts that were not trained on in between. For example:

            %compare capitals --before 0 --after latest --over held_out

            %%compare capitals --over held_out -n 4
            return float(answer.strip() == row["capital"])
        """
        given = self.given(options, "n", "model", "concurrency")
        if options.over:
            given["over"] = self.rows(options.over)
        if options.tools:
            given["tools"] = self.tools_named(options.tools)
        if options.env:
            given["env"] = self.environment(options.env)
        reward = compile_reward(cell, self.variables) if cell and cell.strip() else None
        return self.session.compare(
            options.name,
            reward,
            before=_step(options.before),
            after=None if options.after == "latest" else _step(options.after),
            anytime=options.anytime,
            bounds=(options.bounds[0], options.bounds[1]) if options.bounds else None,
            variables=self.variables,
            **given,
        )


def _step(text: str) -> int:
    if not text.isdecimal():
        raise InputError(f"{text!r} is not a checkpoint step", hint="--before 0 --after latest")
    return int(text)
