"""The registry of MCP servers: each under the name that a notebook gave it, with its tools and its connection."""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rolloutlab.auth.urls import check_server
from rolloutlab.connection import Connector
from rolloutlab.errors import InputError, NotFoundError, RefusedError
from rolloutlab.sampling.mcp.tools import AddedTools, ContextTool, ContextTools, ToolAnswer
from rolloutlab.sampling.tools import Tools, name_of
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.settings import EMBEDDED

if TYPE_CHECKING:
    from rolloutlab.sampling.mcp.client import McpConnection

Tool = Callable[..., Any] | ContextTool | ContextTools | str
"""A function; a tool of an MCP server, or all of them; or names of those that were added: `docs`, `docs.find`."""

_LONGEST = 500  # characters that are shown of a tool's error


class McpRegistry:
    """The MCP servers of a session, as `lab.tools`: each under its name, with its tools.

    tick: called while this thread waits, to show sign-ins that servers require.
    """

    def __init__(self, connector: Connector, tick: Callable[[], None]) -> None:
        self.servers: dict[str, ContextTools] = {}
        """The added servers with their tools, by name."""
        self._connector = connector
        self._tick = tick
        self._connections: dict[str, McpConnection] = {}  # by URL: servers under two names share one

    def add(self, url: str, name: str | None = None) -> ContextTools:
        """Add an MCP server under a name; with `--tools NAME` a policy can call its tools.

        url: its URL, or `embedded` for that of the embedded service, which is started if needed. name: by default the
        first word of the host name, or the last word of the path if that is taken.

        Raises:
            SignInError: you must sign in first. UnreachableError: no MCP server responds there.
        """
        address = _check_url(self._connector.mcp_url(url), name or (url if url.isidentifier() else "docs"))
        chosen = name if name is not None else EMBEDDED if url == EMBEDDED else self._free_name(address)
        if not chosen or not chosen.isidentifier():
            wrong = f"{chosen!r} is not a Python name" if chosen else f"no name can be derived from {address}"
            raise InputError(wrong, hint=f"%tools add {url} as docs")
        # the check removes a slash at the end of a path, but to the server it may be another path
        slash = "/" if url.strip().endswith("/") and urlsplit(address).path else ""
        connection = self._connection(f"{address}{slash}")
        tools = self._connector.http.run(connection.tools(), self._tick)
        if connection.incomplete:
            warnings.warn(connection.incomplete, stacklevel=2)
        self.servers[chosen] = ContextTools(chosen, address, tools)
        return self.servers[chosen]

    def list(self, name: str | None = None) -> ContextTools | AddedTools:
        """List the tools of one added server, or of all.

        Raises:
            NotFoundError: no server was added under this name.
        """
        return AddedTools(self.servers.values()) if name is None else self._server(name)

    def urls(self) -> Sequence[str]:
        """List the URLs of servers that you are signed in to or have added. This does not open the keyring."""
        return [*self._connector.oauth.servers(), *(tools.url for tools in self.servers.values())]

    def call(self, name: str, /, **arguments: Any) -> ToolAnswer:
        """Call the tool `SERVER.TOOL` with arguments, and return its text.

        Raises:
            NotFoundError: no such tool. RefusedError: the server or the tool rejected the arguments.
        """
        server, _, tool = name.partition(".")
        result, is_error = self._connector.http.run(self._server(server)[tool].call(arguments), self._tick)
        if is_error:
            raise RefusedError(f"{name} says: {escape_control_chars(result[:_LONGEST])}")
        return ToolAnswer(result)

    def resolve(self, tools: Iterable[Tool]) -> Tools:
        """Replace the name of a server by all its tools, and return a list of functions and tools.

        If several have the same name, those of servers are renamed to SERVER_TOOL.
        """
        resolved: list[Callable[..., Any] | ContextTool] = []
        for tool in tools:
            if isinstance(tool, str):
                server, _, name = tool.partition(".")
                resolved += [self._server(server)[name]] if name else self._server(server)
            elif isinstance(tool, ContextTools):
                resolved += tool
            else:
                resolved.append(tool)
        own = [each for i, each in enumerate(resolved) if not any(each is before for before in resolved[:i])]
        names = Counter(map(name_of, own))
        renamed: list[tuple[str, str]] = []
        for i, each in enumerate(own):
            of = self._server_of(each) if isinstance(each, ContextTool) and names[name_of(each)] > 1 else None
            if of and isinstance(each, ContextTool):
                own[i] = replace(each, name=f"{of}_{each.name}")
                renamed.append((f"{of}.{each.name}", name_of(own[i])))
        several = ", ".join(f"{tool} as {name}" for tool, name in renamed)
        return Tools(own, [f"tools of one name are called {several}"] if renamed else ())

    def _server(self, name: str) -> ContextTools:
        """Return the tools of a server; raise NotFoundError if no server has this name."""
        if name not in self.servers:
            known = ", ".join(self.servers) or f"def {name}(query: str): ..."
            hint = f"{known}, or %tools add https://tools.example/mcp as {name}"
            raise NotFoundError(f"there is no function and no context server {name!r}", hint=hint)
        return self.servers[name]

    def _server_of(self, tool: ContextTool) -> str | None:
        """Find the name of the server that has a tool."""
        return next((name for name, known in self.servers.items() if any(tool is each for each in known)), None)

    def close(self) -> None:
        """Close the connections; a later call opens them again."""
        for connection in self._connections.values():
            self._connector.http.run(connection.close())

    def _free_name(self, address: str) -> str | None:
        """Find a name for a server that was given none: a word of its address that no other server has."""
        parts = urlsplit(address)
        words = [(parts.hostname or "").split(".")[0], parts.path.rpartition("/")[2]]
        names = [re.sub(r"\W", "_", word) for word in words if word[:1].isalpha()]
        return next((n for n in names if n not in self.servers or self.servers[n].url == address), None)

    def _connection(self, url: str) -> "McpConnection":
        try:
            from rolloutlab.sampling.mcp.client import McpConnection
        except ModuleNotFoundError as error:
            raise InputError(f"context servers need {error.name}", hint="pip install 'rolloutlab[context]'") from error
        if url not in self._connections:
            self._connections[url] = McpConnection(url, self._connector.oauth.at(url))
        return self._connections[url]


def _check_url(url: str, name: str) -> str:
    """Check the URL of a server as `checked_server` does, with hints for `%tools add`."""
    try:
        return check_server(url)
    except InputError as error:
        adding = (error.hint or "").replace("%login", "%tools add")
        raise InputError(error.message, hint=f"{adding} as {name}") from None
