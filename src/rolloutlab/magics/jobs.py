"""`%jobs` and `%job`."""

from typing import TYPE_CHECKING

from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from rolloutlab.magics.cells import LabMagics

if TYPE_CHECKING:
    import pandas as pd

    from rolloutlab.training.job import Job


@magics_class
class JobMagics(LabMagics):
    """Look at submitted jobs."""

    @no_var_expand
    @magic_arguments()
    @argument("-o", "--output", metavar="VARIABLE", help="bind the table to this variable")
    @line_magic
    def jobs(self, line: str) -> "pd.DataFrame":
        """List every job that this lab submitted, newest first, with its status and the step it made."""
        options = self.options(self.jobs, line)
        return self.bound(options.output, self.session.jobs())

    @no_var_expand
    @magic_arguments()
    @argument("job_id", nargs="?", metavar="id", help="the job's id, or the beginning of it; without it, the newest")
    @argument("--wait", action="store_true", help="follow it until it has ended")
    @argument("--cancel", action="store_true", help="end it at its next row; its step then does not count")
    @argument("-o", "--output", metavar="VARIABLE", help="bind the job to this variable")
    @line_magic
    def job(self, line: str) -> "Job":
        """Attach to a job, from this kernel or any other of the lab."""
        options = self.options(self.job, line)
        job = self.session.job(options.job_id)
        if options.cancel:
            job.cancel()
        if options.wait:
            job.wait()
        else:
            job.events()
        return self.bound(options.output, job)
