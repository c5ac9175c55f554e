"""`%collections` and `%group`."""

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.magic import line_magic, magics_class

from rolloutlab.magics.base import LabMagics, argument, magic, unquote

if TYPE_CHECKING:
    import pandas as pd

    from rolloutlab.trajectories.collection import Collection


def ranking(text: str) -> list[int | list[int]]:
    """Parse a ranking such as `2,0=3,1`: positions from the best to the worst, `=` between those equally good.

    Its name is in argparse's error about a wrong value: "invalid ranking value".
    """
    places = [[int(position) for position in place.split("=")] for place in unquote(text).split(",")]
    return [place if len(place) > 1 else place[0] for place in places]


@magics_class
class CollectionMagics(LabMagics):
    """Look at what was sampled."""

    @magic(binds="the table")
    @argument("pattern", nargs="?", type=unquote, help="only names like this, such as 'cap*'")
    @argument("--delete", metavar="NAME", help="hide all generations of a collection, or one (NAME:2)")
    @argument("--restore", metavar="NAME", help="bring back what was deleted last under this name")
    @argument("--rename", nargs=2, metavar=("OLD", "NEW"), help="give a collection another name")
    @argument("--all", action="store_true", help="also list the collections that comparisons sampled")
    @line_magic
    def collections(self, options: Namespace) -> "pd.DataFrame":
        """List the collections of the lab, newest first; delete, restore or rename one."""
        if options.delete:
            self.session.delete(options.delete)
        if options.restore:
            self.session.restore(options.restore)
        if options.rename:
            self.session.rename(*options.rename)
        return self.session.collections(options.pattern, all=options.all)

    @magic(binds="the group")
    @argument(
        "name", values="groups", help="a group, such as capitals/0; of a collection all groups, widest rewards first"
    )
    @argument("--rank", type=ranking, metavar="2,0=3,1", help="give rewards by rank, best first; = marks a tie")
    @line_magic
    def group(self, options: Namespace) -> "Collection":
        """Show one group: its prompt, and all its completions with reward and advantage."""
        group = self.session.collection(options.name)
        if options.rank:
            group.rank(options.rank)
        return group
