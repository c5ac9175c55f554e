"""`%connect`."""

from typing import TYPE_CHECKING

from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import magic_arguments

from rolloutlab.magics.cells import LabMagics, argument

if TYPE_CHECKING:
    from rolloutlab.connection import Connection


@magics_class
class ConnectMagics(LabMagics):
    """Choose the service."""

    @no_var_expand
    @magic_arguments()
    @argument(
        "service", nargs="?", values="services", help="embedded, a profile of the settings file, or an https:// address"
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
    @argument("-o", "--output", metavar="VARIABLE", help="bind what is shown to this variable")
    @line_magic
    def connect(self, line: str) -> "Connection":
        """Talk to another service, once it has answered; without an argument, show which it is now.

        For example:

            %connect https://train.example --key-env TRAIN_KEY --project research/capitals
            %connect embedded
            %connect --search http://127.0.0.1:8000/COLLECTION
        """
        options = self.options(self.connect, line)
        given = self.given(options, "inference", "key_env", "project", "search")
        if options.key_keyring:
            given["key_keyring"] = True
        if options.insecure_http:
            given["insecure_http"] = True
        found = self.session.connect(options.service, **given)
        return self.bound(options.output, found)
