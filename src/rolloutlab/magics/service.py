"""`%service`."""

from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from rolloutlab.magics.cells import LabMagics


@magics_class
class ServiceMagics(LabMagics):
    """Look after the embedded service."""

    @no_var_expand
    @magic_arguments()
    @argument("action", nargs="?", default="status", choices=["status", "stop", "log", "check"], help="default: status")
    @line_magic
    def service(self, line: str) -> None:
        """Show whether the embedded service runs and where, stop it, show its log's end, or check the lab's files."""
        print(self.session.service(self.options(self.service, line).action))
