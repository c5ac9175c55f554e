"""Tools of context servers, for a policy to call."""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rolloutlab.auth.addresses import checked_server
from rolloutlab.context.tool import AddedTools, ContextTool, ContextTools, ToolAnswer
from rolloutlab.errors import InputError, NotFoundError, RefusedError
from rolloutlab.session.sign_in import SignInCalls
from rolloutlab.settings_file import EMBEDDED
from rolloutlab.visible import visible

if TYPE_CHECKING:
    from rolloutlab.context.server import ContextServer

Tool = Callable[..., Any] | ContextTool | ContextTools | str
"""A function; a tool of a context server, or all of them; or names of those that were added: `docs`, `docs.find`."""


class ToolCalls(SignInCalls):
    """Context servers by name."""

    def add_tools(self, url: str, name: str | None = None) -> ContextTools:
        """Know a context server by a name: `--tools NAME` lets a policy call its tools.

        url: its address, or `embedded` for the one of the embedded service, which is started for it. name: by default
        the first word of its host, or the last of its path.

        Raises:
            SignInError: it wants you to sign in first. UnreachableError: no context server answers there.
        """
        address = _checked(self._meant(url), name or (url if url.isidentifier() else "docs"))
        called = name if name is not None else EMBEDDED if url == EMBEDDED else self._name_for(address)
        if not called or not called.isidentifier():
            wrong = f"{called!r} is no name" if called else f"{address} has no name yet"
            raise InputError(wrong, hint=f"%tools add {url} as docs")
        slash = "/" if url.strip().endswith("/") and urlsplit(address).path else ""  # which may be significant
        server = self._context_server(f"{address}{slash}")
        tools = self._http.run(server.tools(), self._show_sign_ins)
        self._context[called] = ContextTools(called, address, tools)
        return self._context[called]

    def tools(self, name: str | None = None) -> ContextTools | AddedTools:
        """The tools of a context server that was added, or of all of them.

        Raises:
            NotFoundError: none was added by that name.
        """
        if name is None:
            return AddedTools(self._context.values())
        if name not in self._context:
            known = ", ".join(self._context) or f"def {name}(query: str): ..."
            hint = f"{known}, or %tools add https://tools.example/mcp as {name}"
            raise NotFoundError(f"there is no function and no context server {name!r}", hint=hint)
        return self._context[name]

    def call_tool(self, name: str, /, **arguments: Any) -> ToolAnswer:
        """Try a tool: what `NAME.TOOL` says to some arguments, a text.

        Raises:
            NotFoundError: no such tool. RefusedError: the server or the tool did not take them.
        """
        server, _, part = name.partition(".")
        tools = self.tools(server)
        assert isinstance(tools, ContextTools)
        tool = tools[part]
        said, is_error = self._http.run(tool.call(arguments), self._show_sign_ins)
        if is_error:
            raise RefusedError(f"{name} says: {visible(said[:500])}")
        return ToolAnswer(said)

    def close(self) -> None:
        for server in self._servers.values():
            self._http.run(server.close())
        super().close()

    def _all(self, tools: Iterable[Tool]) -> list[Callable[..., Any] | ContextTool]:
        """Every tool that is meant, one by one."""
        found: list[Callable[..., Any] | ContextTool] = []
        for tool in tools:
            if isinstance(tool, str):
                name, _, part = tool.partition(".")
                server = self.tools(name)
                assert isinstance(server, ContextTools)
                found += [server[part]] if part else server
            elif isinstance(tool, ContextTools):
                found += tool
            else:
                found.append(tool)
        return found

    def _name_for(self, address: str) -> str | None:
        """What to call a server that was given no name: a word of its address that no other server has."""
        parts = urlsplit(address)
        words = [(parts.hostname or "").split(".")[0], parts.path.rpartition("/")[2]]
        names = [re.sub(r"\W", "_", word) for word in words if word[:1].isalpha()]
        return next((name for name in names if self._address_of(name) in {None, address}), None)

    def _address_of(self, name: str) -> str | None:
        return self._context[name].url if name in self._context else None

    def _context_server(self, address: str) -> "ContextServer":
        try:
            from rolloutlab.context.server import ContextServer
        except ModuleNotFoundError as error:
            raise InputError(f"context servers need {error.name}", hint="pip install 'rolloutlab[context]'") from error
        if address not in self._servers:
            self._servers[address] = ContextServer(address, self.accesses.at(address))
        return self._servers[address]


def _checked(url: str, name: str) -> str:
    try:
        return checked_server(url)
    except InputError as error:
        adding = (error.hint or "").replace("%login", "%tools add")
        raise InputError(error.message, hint=f"{adding} as {name}") from None
