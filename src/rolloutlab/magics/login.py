"""`%login`, `%whoami` and `%logout`."""

from argparse import Namespace
from typing import TYPE_CHECKING

from IPython.core.magic import line_magic, magics_class

from rolloutlab.magics.base import LabMagics, argument, magic, unquote

if TYPE_CHECKING:
    from rolloutlab.widgets.login.render import SignInTable


@magics_class
class SignInMagics(LabMagics):
    """Sign in to servers."""

    @magic(binds="the result")
    @argument(
        "server",
        nargs="?",
        type=unquote,
        values="servers",
        help="its address, or embedded: the MCP server of the embedded service; default: the connected service",
    )
    @argument(
        "--keep",
        action="store_true",
        help="store the tokens for later kernels, in the keyring or in a file that only you can read",
    )
    @argument("--paste", action="store_true", help="ask for the address that the browser ends on")
    @argument("--issuer", metavar="URL", type=unquote, help="the authorization server, if the server does not name one")
    @argument(
        "--client-id", metavar="ID", type=unquote, help="the id of a client that is registered there for rolloutlab"
    )
    @argument(
        "--secret-env", metavar="NAME", values="key variables", help="the variable that holds the client's secret"
    )
    @argument(
        "--redirect-port",
        metavar="PORT",
        type=int,
        help="redirect to http://127.0.0.1:PORT/callback, as registered for the client",
    )
    @argument(
        "--dangerously-without-pkce",
        action="store_true",
        help="go on if the server does not announce PKCE; an authorization code could be stolen",
    )
    @line_magic
    def login(self, options: Namespace) -> "SignInTable":
        """Sign in to an MCP server or a service with OAuth 2.1, in the browser of the notebook.

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
    @argument("server", nargs="?", type=unquote, values="servers", help="its address, or embedded; default: all")
    @line_magic
    def logout(self, options: Namespace) -> "SignInTable":
        """Revoke and delete tokens; shows where you are still signed in."""
        return self.session.logout(options.server)
