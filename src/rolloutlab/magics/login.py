"""`%login`, `%whoami` and `%logout`."""

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.magic import line_magic, magics_class

from rolloutlab.magics.base import LabMagics, argument, magic, unquoted

if TYPE_CHECKING:
    from rolloutlab.widgets.login.render import SignInTable


@magics_class
class SignInMagics(LabMagics):
    """Sign in to servers."""

    @magic(binds="the result")
    @argument(
        "server",
        nargs="?",
        type=unquoted,
        values="servers",
        help="its address, or embedded: the context server of the embedded service; default: what is connected",
    )
    @argument("--keep", action="store_true", help="beyond this kernel, in the keyring or a file that only you can read")
    @argument("--paste", action="store_true", help="ask for the address that the browser ends on")
    @argument("--issuer", metavar="URL", type=unquoted, help="the authorization server, where the server names none")
    @argument("--client-id", metavar="ID", type=unquoted, help="as registered there for rolloutlab")
    @argument(
        "--secret-env", metavar="NAME", values="key variables", help="the variable that holds the client's secret"
    )
    @argument(
        "--redirect-port",
        metavar="PORT",
        type=int,
        help="answers come to http://127.0.0.1:PORT/callback, as registered there for the client",
    )
    @argument(
        "--dangerously-without-pkce",
        action="store_true",
        help="go on where the server does not announce PKCE: a code could be stolen",
    )
    @line_magic
    def login(self, options: Namespace) -> "SignInTable":
        """Sign in to a context server or a service, with OAuth 2.1 through the notebook's own browser.

        For example:

            %login https://tools.example/mcp
            %login embedded --keep
        """
        names = ("keep", "paste", "issuer", "client_id", "secret_env", "redirect_port", "dangerously_without_pkce")
        given = {name: value for name, value in self.given(options, *names).items() if value}
        return self.session.login(options.server, **given)

    @magic(binds="the result")
    @line_magic
    def whoami(self, _options: Namespace) -> "SignInTable":
        """Show where you are signed in, with which scopes and until when; never a secret."""
        return self.session.whoami()

    @magic(binds="what is left")
    @argument("server", nargs="?", type=unquoted, values="servers", help="its address, or embedded; default: all")
    @line_magic
    def logout(self, options: Namespace) -> "SignInTable":
        """Give tokens back and forget them; shows where you are still signed in."""
        return self.session.logout(options.server)
