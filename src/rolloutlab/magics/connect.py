"""`%connect`, `%service`, `%model` and `%models`: the service and the selected model."""

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.magic import line_magic, magics_class

from rolloutlab.magics.base import LabMagics, argument, magic

if TYPE_CHECKING:
    import pandas as pd

    from rolloutlab.connection import Connection
    from rolloutlab.training.models import SelectedModel


@magics_class
class ConnectMagics(LabMagics):
    """Choose the service."""

    @magic(binds="what is shown")
    @argument(
        "service",
        nargs="?",
        values="services",
        help="embedded, a profile of the settings file, an https:// address, wandb:ENTITY/PROJECT, or tinker:MODEL",
    )
    @argument(
        "--inference", metavar="URL", help="the address of chat completions, if the service has another one for them"
    )
    @argument("--key-env", metavar="NAME", values="key variables", help="the environment variable that holds the key")
    @argument(
        "--key-keyring", action="store_true", help="read the key from this machine's keyring; prompts for it once"
    )
    @argument(
        "--project", metavar="TEAM/PROJECT", values="projects", help="the project under which the service counts tokens"
    )
    @argument("--search", metavar="URL", help="what %%search queries: the URL of a Chroma collection, or lab")
    @argument(
        "--insecure-http",
        action="store_true",
        help="let the key go unencrypted to an http:// address inside your own network, until the kernel ends",
    )
    @line_magic
    def connect(self, options: Namespace) -> "Connection":
        """Connect to another service, if it responds; without an argument, show the present connection.

        For example:

            %connect https://train.example --key-env TRAIN_KEY --project research/capitals
            %connect wandb:ENTITY/PROJECT
            %connect embedded
            %connect --search http://127.0.0.1:8000/COLLECTION
        """
        given = self.given(options, "inference", "key_env", "project", "search")
        given |= {name: True for name in ("key_keyring", "insecure_http") if getattr(options, name)}
        return self.session.connect(options.service, **given)


@magics_class
class ModelMagics(LabMagics):
    """Choose the policy that is sampled and trained."""

    @magic(binds="the model")
    @argument("name", nargs="?", values="models", help="project/name; without it, the selected one is shown")
    @argument("--base", help="the base model of a new model")
    @argument(
        "--from",
        dest="start",
        metavar="CHECKPOINT",
        values="model",
        help="make the new model from this checkpoint: lab/practice@2, or a step of the selected model",
    )
    @line_magic
    def model(self, options: Namespace) -> "SelectedModel":
        """Select a model, and register it if it is new: `%model lab/sorter`, `%model team/sorter --base practice`.

        `%model lab/second --from lab/practice@2` makes it from a checkpoint of another model.
        """
        return self.session.model(options.name, base=options.base, start=options.start)

    @magic(binds="the table")
    @argument("--delete", metavar="NAME@STEP", values="model", help="delete a checkpoint, also a damaged one")
    @argument("--recover", action="store_true", help="add lost checkpoints to the service's database again")
    @argument("--purge", action="store_true", help="delete the lost checkpoints from the disk")
    @line_magic
    def models(self, options: Namespace) -> "pd.DataFrame":
        """List every model that can be sampled, with its base, newest checkpoint and number of checkpoints."""
        if options.delete:
            print(self.session.models.delete(options.delete))
        if options.recover:
            print(self.session.models.recover())
        if options.purge:
            print(self.session.models.purge())
        table = self.session.models.list()
        if lost := self.session.models.lost():
            print(lost)
        return table


@magics_class
class ServiceMagics(LabMagics):
    """Look after the embedded service."""

    @magic()
    @argument("action", nargs="?", default="status", choices=["status", "stop", "log", "check"], help="default: status")
    @line_magic
    def service(self, options: Namespace) -> None:
        """Show whether the embedded service runs and where, stop it, show its log's end, or check the lab's files."""
        print(self.session.service(options.action))
