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
    @argument("--inference", metavar="URL", help="where chat completions have an address of their own")
    @argument("--key-env", metavar="NAME", values="key variables", help="the environment variable that holds the key")
    @argument("--key-keyring", action="store_true", help="or this machine's keyring holds it; it asks for it once")
    @argument("--project", metavar="TEAM/PROJECT", values="projects", help="what the service counts tokens under")
    @argument("--search", metavar="URL", help="where %%search looks: a collection of a Chroma, or lab")
    @argument(
        "--insecure-http",
        action="store_true",
        help="let the key go unencrypted to an http:// address inside your own network, until the kernel ends",
    )
    @line_magic
    def connect(self, options: Namespace) -> "Connection":
        """Talk to another service, once it has answered; without an argument, show which it is now.

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
    @argument("--base", help="the base model a new one stands on")
    @line_magic
    def model(self, options: Namespace) -> "SelectedModel":
        """Select a model, registering it at first: `%model lab/sorter`, or `%model team/sorter --base practice`."""
        return self.session.model(options.name, base=options.base)

    @magic(binds="the table")
    @argument("--delete", metavar="NAME@STEP", values="model", help="delete a checkpoint, also a damaged one")
    @argument("--recover", action="store_true", help="list again the checkpoints that the service's database lost")
    @argument("--purge", action="store_true", help="remove those from the disk for good")
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
