"""`%model` and `%models`."""

from typing import TYPE_CHECKING

from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import magic_arguments

from rolloutlab.magics.cells import LabMagics, argument

if TYPE_CHECKING:
    import pandas as pd

    from rolloutlab.model import SelectedModel


@magics_class
class ModelMagics(LabMagics):
    """Choose the policy that is sampled and trained."""

    @no_var_expand
    @magic_arguments()
    @argument("name", nargs="?", values="models", help="project/name; without it, the selected one is shown")
    @argument("--base", help="the base model a new one stands on")
    @argument("-o", "--output", metavar="VARIABLE", help="bind the model to this variable")
    @line_magic
    def model(self, line: str) -> "SelectedModel":
        """Select a model, registering it at first: `%model lab/sorter`, or `%model team/sorter --base practice`."""
        options = self.options(self.model, line)
        return self.bound(options.output, self.session.model(options.name, base=options.base))

    @no_var_expand
    @magic_arguments()
    @argument("--delete", metavar="NAME@STEP", values="model", help="delete a checkpoint, also a damaged one")
    @argument("--recover", action="store_true", help="list again the checkpoints that the service's database lost")
    @argument("--purge", action="store_true", help="remove those from the disk for good")
    @argument("-o", "--output", metavar="VARIABLE", help="bind the table to this variable")
    @line_magic
    def models(self, line: str) -> "pd.DataFrame":
        """List every model that can be sampled, with its base, newest checkpoint and number of checkpoints."""
        options = self.options(self.models, line)
        if options.delete:
            print(self.session.delete_checkpoint(options.delete))
        if options.recover:
            print(self.session.recover_checkpoints())
        if options.purge:
            print(self.session.purge_checkpoints())
        listed = self.session.models()
        if lost := self.session.lost_checkpoints():
            print(lost)
        return self.bound(options.output, listed)
