"""`%tools`."""

import json
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from IPython.core.magic import line_magic, magics_class

from rolloutlab.errors import InputError
from rolloutlab.magics.base import LabMagics, argument, magic, unquote
from rolloutlab.sanitize import escape_to_one_line

if TYPE_CHECKING:
    from rolloutlab.sampling.mcp.tools import AddedTools, ContextTools, ToolAnswer

_ADD = "%tools add embedded as memory"
_CALL = '%tools call docs.find {"query": "paris"}'


@magics_class
class ToolMagics(LabMagics):
    """MCP servers (context servers), whose tools a policy may call."""

    @magic(binds="the result")
    @argument("words", nargs="*", values="tool words", help="add URL as NAME; NAME; call NAME.TOOL {...}")
    @line_magic
    def tools(self, options: Namespace) -> "ContextTools | AddedTools | ToolAnswer":
        """Add an MCP server, list its tools, or try one. `%%chat --tools NAME` lets a policy call them.

        For example:

            %tools add embedded as memory
            %tools add https://tools.example/mcp as docs
            %tools docs
            %tools call docs.find {"query": "paris"}
        """
        match options.words:
            case []:
                return self.session.tools.list()
            case ("add",):
                raise InputError("%tools add needs the URL of a context server", hint=_ADD)
            case ("add", url, "as"):
                raise InputError("there is no name after as", hint=f"%tools add {url} as docs")
            case ("call",):
                raise InputError("%tools call needs the name of a tool, and its arguments as JSON", hint=self._call())
            case ("add", url):
                return self.session.tools.add(unquote(url))
            case ("add", url, "as", name) | ("add", url, name):
                return self.session.tools.add(unquote(url), name)
            case ("call", name, *given):
                return self.session.tools.call(unquote(name), **_parse_arguments(" ".join(given)))
            case (name,):
                return self.session.tools.list(name)
            case _:
                raise InputError("%tools takes add, call or the name of a server", hint=_ADD)

    def _call(self) -> str:
        """Return an example of a call: of a tool of an added server, if there is one."""
        tools = next(filter(None, self.session.tools.servers.values()), None)
        return f"%tools call {tools.name}.{escape_to_one_line(tools[0].name)} {{}}" if tools else _CALL


def _parse_arguments(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text or "{}")
    except ValueError as error:
        raise InputError(f"the arguments are not JSON: {error}", hint=_CALL) from None
    if not isinstance(given, dict):
        raise InputError("the arguments are not a JSON object", hint=_CALL)
    return given
