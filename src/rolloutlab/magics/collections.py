"""`%collections` and `%group`."""

from typing import TYPE_CHECKING

from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import magic_arguments

from rolloutlab.collection import Collection
from rolloutlab.magics.cells import LabMagics, argument

if TYPE_CHECKING:
    import pandas as pd


@magics_class
class CollectionMagics(LabMagics):
    """Look at what was sampled."""

    @no_var_expand
    @magic_arguments()
    @argument("-o", "--output", metavar="VARIABLE", help="bind the table to this variable")
    @line_magic
    def collections(self, line: str) -> "pd.DataFrame":
        """List every collection of the lab, newest first."""
        options = self.options(self.collections, line)
        return self.bound(options.output, self.session.collections())

    @no_var_expand
    @magic_arguments()
    @argument("name", values="groups", help="a group, such as capitals/0")
    @argument("-o", "--output", metavar="VARIABLE", help="bind the group to this variable")
    @line_magic
    def group(self, line: str) -> Collection:
        """Show one group: its prompt, and all its completions with reward and advantage."""
        options = self.options(self.group, line)
        return self.bound(options.output, self.session.group(options.name))
