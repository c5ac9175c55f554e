"""`%%train`, `%jobs` and `%job`: training jobs."""

import textwrap
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from IPython.core.magic import cell_magic, line_magic, magics_class

from rolloutlab.errors import InputError
from rolloutlab.magics.base import LabMagics, argument, magic, unquote
from rolloutlab.objective.option_docs import help_lines, read

if TYPE_CHECKING:
    import pandas as pd

    from rolloutlab.training.dry_run import DryRun, FineTuningCheck
    from rolloutlab.training.form import TrainingForm
    from rolloutlab.training.job import Job

T = TypeVar("T")


def _add_options(magic: Callable[..., T]) -> Callable[..., T]:
    """Add the options of a job to the end of a magic's help."""
    listed = [textwrap.fill(line, 100, initial_indent=" " * 12, subsequent_indent=" " * 16) for line in help_lines()]
    magic.__doc__ = "\n".join([(magic.__doc__ or "").rstrip(), *listed])
    return magic


@magics_class
class TrainMagics(LabMagics):
    """Submit training jobs."""

    @magic("%train", binds="the job")
    @argument("names", nargs="+", metavar="name", help="scored collections to train on, or patterns such as 'cap*'")
    @argument("--sft", action="store_true", help="supervised fine-tuning on the answers; also takes fine-tuning files")
    @argument(
        "--where",
        metavar="CONDITION",
        type=unquote,
        help='which trajectories --sft learns: "reward > 0.9" (default: all)',
    )
    @argument(
        "--dry-run",
        dest="check",
        action="store_true",
        help="only check: show what would train, and why the rest would not",
    )
    @argument("--form", action="store_true", help="show a form with the options, and what would train with them")
    @argument("--budget", type=float, metavar="DOLLARS", help="submit no job that costs more than this")
    @argument("--wait", action=BooleanOptionalAction, default=True, help="follow the job until it has ended (default)")
    @cell_magic
    @_add_options
    def train(self, options: Namespace, cell: str) -> "Job | DryRun | FineTuningCheck | TrainingForm":
        """Train the selected model on scored collections.

        The cell holds options, one `name: value` per line; all have defaults. Interrupting the cell leaves the job
        running. For example:

            %%train capitals
            learning_rate: 2e-3
            epsilon: 0.2

        `algorithm: dapo` sets several options; an option that you also type overrides it:

            %%train capitals
            algorithm: dapo
            groups_per_step: 16

        With --sft the options are learning_rate (one number, or a list with one for each step) and batch_size
        (conversations per step; by default as many as fit):

            %%train capitals --sft --where "reward > 0.9"

        The options:
        """
        names, given = [name.strip("'\"") for name in options.names], parse_options(cell, self.variables)
        tuning: dict[str, Any] = {"sft": True} if options.sft else {}
        tuning |= self.given(options, "where")
        paid = self.given(options, "budget")
        if options.form and tuning:
            raise InputError("--form has the options of reinforcement learning", hint="--sft without --form")
        if options.form:
            return self.session.train_form(names, given, **paid)
        if options.check:
            return self.session.check(names, given, **tuning)
        return self.session.train(names, given, wait=options.wait, **tuning, **paid)


def parse_options(cell: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the `name: value` lines of a cell. `#` begins a comment, `{{x}}` is a variable.

    Raises:
        InputError: a line is wrong, or an option is given twice.
    """
    from rolloutlab.sampling.prompt import fill_text

    options: dict[str, Any] = {}
    for number, line in enumerate(cell.splitlines(), start=1):
        content = fill_text(line.partition("#")[0], variables).strip()
        if not content:
            continue
        name, colon, value = (part.strip() for part in content.partition(":"))
        if not colon or not name or not value:
            raise InputError(f"line {number} is not an option: {line.strip()!r}", hint="learning_rate: 2e-3")
        if name in options:
            raise InputError(f"{name} is given twice", hint=f"{name}: {value}")
        options[name] = read(value)
    return options


@magics_class
class JobMagics(LabMagics):
    """Look at submitted jobs."""

    @magic(binds="the table")
    @argument("-n", type=int, default=20, metavar="N", help="show the N newest (default: 20)")
    @line_magic
    def jobs(self, options: Namespace) -> "pd.DataFrame":
        """List the jobs that this lab submitted, newest first: what each made, and rewards before and after it."""
        return self.session.jobs(options.n)

    @magic(binds="the job")
    @argument(
        "job_id", nargs="?", metavar="id", help="its id or the beginning of it, or MODEL@STEP; default: the newest"
    )
    @argument("--wait", action="store_true", help="follow it until it has ended")
    @argument("--cancel", action="store_true", help="end it, also within a gradient step; it then makes no checkpoint")
    @line_magic
    def job(self, options: Namespace) -> "Job":
        """Attach to a job, from this kernel or any other of the lab."""
        job = self.session.job(options.job_id)
        if options.cancel:
            job.cancel()
        if options.wait:
            job.wait()
        else:
            job.events()
        return job
