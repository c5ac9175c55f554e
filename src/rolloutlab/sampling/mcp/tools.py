"""Tools of context servers, independent of the MCP SDK."""

import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from rolloutlab.errors import NotFoundError
from rolloutlab.sanitize import escape_control_chars, escape_to_one_line
from rolloutlab.widgets.html import code, for_notebook
from rolloutlab.widgets.kit.parts import head, next_cells, panel
from rolloutlab.widgets.kit.table import Heading, TableRow, table

_LONGEST = 74
_ADD = "%tools add embedded as memory"


@dataclass(frozen=True)
class ContextTool:
    """A tool as its server describes it.

    schema: the JSON schema of its arguments.
    call: calls the tool with arguments; returns the result as text, and whether that is an error of the tool. It is
        awaited on the loop of `rolloutlab.api.http.client.HttpClient`.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    call: Callable[[Mapping[str, Any]], Coroutine[Any, Any, tuple[str, bool]]] = field(repr=False, compare=False)


class ContextTools(Sequence[ContextTool]):
    """The tools of one context server, under the name that a notebook gave it."""

    def __init__(self, name: str, url: str, tools: Sequence[ContextTool]) -> None:
        self.name = name
        self.url = url
        self._tools = tuple(tools)

    @overload
    def __getitem__(self, index: int | str) -> ContextTool: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ContextTool]: ...
    def __getitem__(self, index: int | str | slice) -> ContextTool | Sequence[ContextTool]:
        """Return a tool by its name or place; raise NotFoundError if no tool has the name."""
        if not isinstance(index, str):
            return self._tools[index]
        for tool in self._tools:
            if tool.name == index:
                return tool
        known = escape_to_one_line(", ".join(tool.name for tool in self._tools), _LONGEST)
        wrong = f"{self.name} has no tool {index!r}" if index else f"{self.name} is a context server, and no tool of it"
        raise NotFoundError(wrong, hint=known or f"%tools {self.name}")

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[ContextTool]:
        return iter(self._tools)

    def __repr__(self) -> str:
        head = f"{self.name}: {len(self)} tool{'' if len(self) == 1 else 's'} of {self.url}"
        return "\n".join([head, *(f"  {_call_form(tool)}\n      {_first_line(tool)}".rstrip() for tool in self)])

    def _repr_html_(self) -> str:
        rows = [TableRow([code(_call_form(tool)), _first_line(tool)]) for tool in self]
        about = f"{len(self)} tool{'' if len(self) == 1 else 's'} of {self.url}"
        made = table([Heading("tool"), Heading("what it does")], rows) if rows else ""
        return for_notebook(panel(head(self.name, about), made))


class AddedTools(list[ContextTools]):
    """Every context server that was added."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or f"no context server was added -> {_ADD}"

    def _repr_html_(self) -> str:
        return "".join(tools._repr_html_() for tools in self) or for_notebook(
            panel(head("Tools", "no context server was added"), next_cells(_ADD))
        )


class ToolAnswer(str):
    """A tool's result; a notebook shows its lines, and JSON indented."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(escape_control_chars(_indent(self)))


def _indent(text: str) -> str:
    """Indent a text that is a JSON object or array; other text is returned unchanged."""
    try:
        value = json.loads(text)
        return json.dumps(value, indent=2, ensure_ascii=False) if isinstance(value, dict | list) else text
    except (ValueError, RecursionError):
        return text


def _call_form(tool: ContextTool) -> str:
    """Return the name of a tool with the names of its arguments. An optional argument has a question mark."""
    properties = tool.schema.get("properties")
    required = tool.schema.get("required")
    names = properties if isinstance(properties, Mapping) else {}
    needed = required if isinstance(required, Sequence) else ()
    return escape_to_one_line(
        f"{tool.name}({', '.join(f'{name}' if name in needed else f'{name}?' for name in names)})"
    )


def _first_line(tool: ContextTool) -> str:
    """Return the first sentence of the description of a tool."""
    return escape_to_one_line(tool.description.strip().partition("\n")[0].partition(". ")[0].rstrip("."), _LONGEST)
