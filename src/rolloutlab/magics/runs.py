"""`%runs`."""

from argparse import Namespace
from shlex import quote
from typing import TYPE_CHECKING

from IPython.core.magic import line_magic, magics_class

from rolloutlab.errors import InputError
from rolloutlab.magics.base import LabMagics, argument, magic, unquote

if TYPE_CHECKING:
    from rolloutlab.runs.catalogue import RunList
    from rolloutlab.runs.view import RunView


@magics_class
class RunMagics(LabMagics):
    """What happened over all steps."""

    @magic(binds="the list, or the view")
    @argument("names", nargs="*", type=unquote, values="runs", metavar="name", help="runs, models, or patterns")
    @argument("--note", type=unquote, metavar="TEXT", help="write a note on these runs")
    @argument("--tag", action="append", type=unquote, metavar="TAG", help="add a tag to these runs")
    @argument("--untag", action="append", type=unquote, metavar="TAG", help="take a tag away")
    @argument("--csv", type=unquote, metavar="FILE", help="write the numbers of one run to a file")
    @argument("--report-to", action="append", metavar="TRACKER", help="trackio, tensorboard or wandb, with :PLACE")
    @line_magic
    def runs(self, options: Namespace) -> "RunList | RunView":
        """List the runs of the lab, or show one or several over common steps.

        For example:

            %runs
            %runs lab/practice
            %runs lab/sql-kl lab/sql-lr1e4
            %runs lab/practice --tag keep --note 'steady, shorter answers'
            %runs lab/practice --csv run.csv --report-to tensorboard
        """
        written = options.note is not None or options.tag or options.untag
        if (written or options.csv or options.report_to) and not options.names:
            raise InputError("these options are of a run, or of several", hint="%runs NAME --tag keep")
        if any(not tag.strip() for tag in options.tag or ()):  # before the note is written
            raise InputError("a tag is empty", hint=f"%runs {' '.join(map(quote, options.names))} --tag keep")
        if not options.names:
            return self.session.runs()
        shown = self.session.runs(*options.names)
        if written:
            shown.write(options.note, options.tag or (), options.untag or ())
        if options.csv:
            print(shown.to_csv(options.csv))
        if options.report_to:
            shown.send(options.report_to)
        return shown
