"""`%export`, `%import` and `%logprobs`."""

from typing import TYPE_CHECKING

from IPython.core.magic import line_magic, magics_class

from rolloutlab.magics.base import LabMagics, argument, magic, unquoted
from rolloutlab.trajectories.files import FORMATS

if TYPE_CHECKING:
    from rolloutlab.trajectories.collection import Collection
    from rolloutlab.trajectories.files.write import Export


@magics_class
class ExchangeMagics(LabMagics):
    """Collections to files and back."""

    @magic()
    @argument(
        "names", nargs="+", type=unquoted, metavar="name", help="collections, then the file: NAME [NAME ...] FILE"
    )
    @argument("--format", choices=FORMATS, help="default: by the file's name, .jsonl or .parquet")
    @argument("--best", action="store_true", help="of each group only what has the highest reward")
    @argument("--min-reward", type=float, metavar="X", help="only what has at least this reward")
    @argument("--overwrite", action="store_true", help="replace the file if it is there")
    @argument("-o", "--output", metavar="VARIABLE", help="bind what was written to this variable")
    @line_magic
    def export(self, line: str) -> "Export":
        """Write collections to a file: all of it, or what other tools can read.

        For example:

            %export capitals rivers rollouts.jsonl
            %export capitals best.jsonl --format openai --best --min-reward 0.5
        """
        options = self.options(self.export, line)
        *names, path = options.names
        given = {name: getattr(options, name) for name in ("best", "min_reward", "overwrite")}
        return self.bound(options.output, self.session.export(names, path, options.format, **given))

    @magic("import")
    @argument(
        "path",
        type=unquoted,
        metavar="file",
        help="a file of %%export, OpenAI fine-tuning JSONL, or groups of openpipe-art",
    )
    @argument("name", nargs="?", help="the collection's name; default: the one in the file")
    @argument("--format", choices=FORMATS, help="default: what the first line looks like")
    @argument("--logprobs", action="store_true", help="then %%logprobs, so that it trains")
    @argument("-o", "--output", metavar="VARIABLE", help="bind the collection, or a list of several, to this variable")
    @line_magic("import")  # type: ignore[arg-type]
    def import_(self, line: str) -> "Collection | list[Collection]":
        """Read a file into new collections: all of it or, when something in it is wrong, nothing.

        For example:

            %import rollouts.jsonl
            %import chats.jsonl support --logprobs
        """
        options = self.options(self.import_, line)
        given = options.path, options.name, options.format
        return self.bound(options.output, self.session.import_(*given, logprobs=options.logprobs))

    @magic()
    @argument("name", help="a collection whose conversations come from elsewhere")
    @argument("-m", "--model", help="whose logprobs; default: the newest checkpoint of the selected model")
    @argument("-o", "--output", metavar="VARIABLE", help="bind the collection to this variable")
    @line_magic
    def logprobs(self, line: str) -> "Collection":
        """Give assistant messages the token ids and logprobs that training needs, in a new generation."""
        options = self.options(self.logprobs, line)
        return self.bound(options.output, self.session.logprobs(options.name, options.model))
