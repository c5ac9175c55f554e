"""`%export`, `%import` and `%logprobs`."""

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.magic import line_magic, magics_class

from rolloutlab.errors import InputError
from rolloutlab.magics.base import LabMagics, argument, magic, unquote

if TYPE_CHECKING:
    from rolloutlab.training.checkpoint_export import CheckpointExport
    from rolloutlab.trajectories.collection import Collection
    from rolloutlab.trajectories.files.exchange import Export


@magics_class
class ExchangeMagics(LabMagics):
    """Collections to files and back."""

    @magic(binds="what was written")
    @argument("names", nargs="+", type=unquote, metavar="name", help="collections, then the file: NAME [NAME ...] FILE")
    @argument(
        "--format",
        values="writable",
        help="jsonl, parquet, openai, csv, or one of a plug-in such as art; default: by the name of the file",
    )
    @argument("--best", action="store_true", help="only the trajectory with the highest reward of each group")
    @argument("--min-reward", type=float, metavar="X", help="only trajectories with at least this reward")
    @argument("--overwrite", action="store_true", help="replace the file, or the folder of an earlier export")
    @argument("--to", type=unquote, metavar="FOLDER", help="write the checkpoint MODEL@STEP to this folder instead")
    @argument("--merged", action="store_true", help="with --to: a whole model, with the adapter merged into its base")
    @argument("--push", metavar="OWNER/REPO", help="with --to: upload the folder to the Hugging Face hub, too")
    @line_magic
    def export(self, options: Namespace) -> "Export | CheckpointExport":
        """Write collections to a file: complete, or in the format of another tool. With --to, write a checkpoint.

        For example:

            %export capitals rivers rollouts.jsonl
            %export capitals best.jsonl --format openai --best --min-reward 0.5
            %export capitals labels.csv
            %export lab/practice@3 --to best
            %export lab/practice@3 --to best-merged --merged --push me/capitals
        """
        _check_options(options)
        if options.to:
            kept = {name: getattr(options, name) for name in ("merged", "push", "overwrite")}
            return self.session.models.export(options.names[0], options.to, **kept)
        *names, path = options.names
        given = {name: getattr(options, name) for name in ("best", "min_reward", "overwrite")}
        return self.session.files.export(names, path, options.format, **given)

    @magic("import", binds="the collection, or a list of several,")
    @argument(
        "path",
        type=unquote,
        metavar="file",
        help="a file of %%export, OpenAI fine-tuning JSONL, or groups of openpipe-art",
    )
    @argument("name", nargs="?", help="the collection's name; default: the one in the file")
    @argument(
        "--format",
        values="readable",
        help="jsonl, parquet, openai, or one of a plug-in such as art; default: what the first line looks like",
    )
    @argument("--logprobs", action="store_true", help="run %%logprobs afterwards, so that the collection can train")
    @line_magic("import")  # type: ignore[arg-type]
    def import_(self, options: Namespace) -> "Collection | list[Collection]":
        """Read a file into new collections. If a line is wrong, nothing is imported.

        For example:

            %import rollouts.jsonl
            %import chats.jsonl support --logprobs
        """
        given = options.path, options.name, options.format
        return self.session.files.import_(*given, logprobs=options.logprobs)

    @magic(binds="the collection")
    @argument("name", help="a collection whose conversations come from elsewhere")
    @argument("-m", "--model", help="the model that computes them; default: the newest checkpoint of the selected one")
    @line_magic
    def logprobs(self, options: Namespace) -> "Collection":
        """Give assistant messages the token ids and logprobs that training needs, in a new generation."""
        return self.session.files.logprobs(options.name, options.model)


def _check_options(options: Namespace) -> None:
    """Raise InputError for options of a file together with those of a checkpoint's folder."""
    names, first = " ".join(options.names), options.names[0]
    of_file = [f"--{name.replace('_', '-')}" for name in ("format", "best", "min_reward") if getattr(options, name)]
    if options.to and of_file:
        message = f"{of_file[0]} is of collections, and --to writes a checkpoint"
        raise InputError(message, hint=f"%export {first} --to {options.to}")
    if options.to and len(options.names) > 1:
        raise InputError(f"--to writes one checkpoint, not {names}", hint=f"%export {first} --to {options.to}")
    of_folder = [name for name in ("merged", "push") if getattr(options, name)]
    if not options.to and (of_folder or (len(options.names) == 1 and "@" in first)):
        given = f" --push {options.push}" if options.push else ""
        hint = f"%export {first} --to FOLDER{' --merged' * bool(options.merged)}{given}"
        raise InputError("a checkpoint needs the folder to write it to", hint=hint)
