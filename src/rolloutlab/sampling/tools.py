"""Tools: the Python functions, and the tools of MCP servers, that a policy may call."""

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import to_json

from rolloutlab.api.wire.chat import FunctionTool, ToolCall, ToolMessage
from rolloutlab.errors import (
    BrokenOffError,
    InputError,
    RefusedError,
    RolloutlabError,
    SignInError,
    UnreachableError,
    described,
)
from rolloutlab.runtime import ThreadCall
from rolloutlab.sampling.config import SamplingConfig
from rolloutlab.sampling.conversation import are_structs, as_list, tools_beside, tools_of
from rolloutlab.sampling.mcp.tools import ContextTool
from rolloutlab.sampling.prompt import Row
from rolloutlab.sanitize import replace_surrogates

_TOOLS = TypeAdapter(list[FunctionTool])


def tools_in(row: Mapping[str, Any], column: str | None) -> list[FunctionTool]:
    """Read the tools that a row describes beside the conversation in a column; empty if they cannot be read."""
    tools = tools_beside(row)
    structs = isinstance(row, Row) and row.structs
    try:
        return _TOOLS.validate_python(
            tools_of(tools, structs=structs or are_structs(as_list(row.get(column or "")) or (), tools)) or []
        )
    except ValidationError:
        return []


def offered_tools(row: Mapping[str, Any], plan: SamplingConfig) -> tuple[FunctionTool, ...]:
    """Return the tools that a row describes and the plan does not have; empty unless the prompt is in a column."""
    if plan.prompt_column is None:
        return ()
    known = {tool.function.name for tool in plan.tools}
    return tuple(tool for tool in tools_in(row, plan.prompt_column) if tool.function.name not in known)


_PARAMETER = re.compile(r"^\s*(?::param )?\*{0,2}(?P<name>\w+)(?: \([^)]*\))?:[ \t]+(?P<text>.+)$", re.MULTILINE)
"""The line of a docstring that describes a parameter."""
_ARGUMENTS: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


class Tools:
    """The tools that a policy may call by name: Python functions, and tools of MCP servers.

    A function is described by its signature and docstring. notes: lines about the names of tools, which are shown when
    a run uses the tools.

    Raises:
        InputError: an item is neither a function nor a tool, two have one name, or a signature cannot be described.
    """

    def __init__(
        self, tools: Iterable[Callable[..., Any] | ContextTool] | None = None, notes: Sequence[str] = ()
    ) -> None:
        self.notes = tuple(notes)
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        self._elsewhere: dict[str, ContextTool] = {}
        self.functions: dict[str, Callable[..., Any]] = {}
        self.schemas: list[FunctionTool] = []
        for tool in tools or ():
            name = name_of(tool)
            if not (callable(tool) or isinstance(tool, ContextTool)) or not re.fullmatch(r"[\w-]{1,64}", name):
                raise InputError(f"a {type(tool).__name__} is not a function with a name", hint="--tools FUNCTION")
            if name in self._adapters or name in self._elsewhere:
                raise InputError(f"there are two tools called {name!r}", hint="give each function its own name")
            if isinstance(tool, ContextTool):
                self._elsewhere[name] = tool
                self.schemas.append(_make_schema(name, tool.description, tool.schema))
            else:
                self.functions[name] = tool
                self._adapters[name], schema = _describe_function(tool)
                self.schemas.append(schema)

    def check(self, collection: str, names: Sequence[str]) -> None:
        """Raise InputError unless these are the tools that a collection was sampled with."""
        if list(names) != [schema.function.name for schema in self.schemas]:
            used = f"with the tools {', '.join(names)}" if names else "without tools"
            hint = f"--tools {','.join(names)}" if names else "leave --tools out"
            raise InputError(f"{collection} was sampled {used}", hint=hint)

    async def answer(self, calls: Sequence[ToolCall]) -> tuple[list[ToolMessage], list[str]]:
        """Answer the calls of one message; return tool messages in their order, and the errors of failed calls.

        An error becomes a tool message, for the policy to read. Each call of a function runs in a thread of its own,
        a coroutine in a loop of its own.

        Raises:
            SignInError: an MCP server requires a sign-in, or the person denied it. UnreachableError: the server has
                ended. The policy does not get these as text, because it can do nothing about them.
        """
        outcomes = await asyncio.gather(*map(self._answer_one, calls))
        messages = [
            ToolMessage(role="tool", tool_call_id=call.id, content=text)
            for call, (text, _) in zip(calls, outcomes, strict=True)
        ]
        return messages, [trouble for _, trouble in outcomes if trouble]

    def has(self, call: ToolCall) -> bool:
        """Whether a call is for one of these tools."""
        return call_name(call) in {schema.function.name for schema in self.schemas}

    def call(self, call: ToolCall) -> Any:
        """Call the function that a call is for, and return its result, which may have to be awaited."""
        if call.type != "function" or call.function.name not in self._adapters:
            raise LookupError(f"there is no such tool; there are {', '.join([*self._adapters, *self._elsewhere])}")
        return self._adapters[call.function.name].validate_json(call.function.arguments or "{}")

    async def _answer_one(self, call: ToolCall) -> tuple[str, str | None]:
        name = call_name(call)
        if call.type == "function" and (elsewhere := self._elsewhere.get(name)):
            result, error = await _call_remote(elsewhere, call.function.arguments or "{}")
        else:
            thread = ThreadCall(lambda: self._call_as_text(call), "rolloutlab-tool")
            result, error = await asyncio.wrap_future(thread.outcome)
        if error is None:
            return result, None
        what = failure_text(error)
        return f"error: {what}", f"{name} failed: {what}"

    def _call_as_text(self, call: ToolCall) -> str | Awaitable[str]:
        result = self.call(call)
        return _await_text(result) if inspect.isawaitable(result) else as_text(result)


def call_name(call: ToolCall) -> str:
    """Return the name of the tool that a call is for."""
    return call.function.name if call.type == "function" else call.custom.name


def failure_text(error: BaseException) -> str:
    """Return the text of a tool's error, for the policy to read."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return replace_surrogates(f"{'.'.join(map(str, first['loc'])) or 'arguments'}: {first['msg']}")
    return described(error, None)


async def _call_remote(tool: ContextTool, arguments: str) -> tuple[str, BaseException | None]:
    """Call a tool of an MCP server; return its result, or its error as a value. Errors that end the run are raised."""
    try:
        result, is_error = await tool.call(_ARGUMENTS.validate_json(arguments))
    except (RolloutlabError, ValidationError) as error:
        if isinstance(error, SignInError | UnreachableError) and not isinstance(error, BrokenOffError):
            raise
        return "", error
    return (replace_surrogates(result), None) if not is_error else ("", RefusedError(result))


async def _await_text(result: Awaitable[Any]) -> str:
    return as_text(await result)


def name_of(tool: Callable[..., Any] | ContextTool) -> str:
    """Return the name of a tool for a policy. Characters of an MCP tool's name that services refuse become `_`."""
    return re.sub(r"[^\w-]", "_", tool.name)[:64] if isinstance(tool, ContextTool) else getattr(tool, "__name__", "")


def _describe_function(function: Callable[..., Any]) -> tuple[TypeAdapter[Any], FunctionTool]:
    """Describe a function as a tool; return also what calls it with validated arguments."""
    name = function.__name__
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(function)  # type: ignore[arg-type]  # it describes calls too
        parameters = adapter.json_schema()
    except (PydanticUserError, NameError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        message = f"{name} cannot be described as a tool: {reason}"
        raise InputError(message, hint=f"def {name}(city: str): ...") from error
    doc = inspect.getdoc(function) or ""
    descriptions = {match["name"]: match["text"] for match in _PARAMETER.finditer(doc)}
    for parameter, schema in parameters.get("properties", {}).items():
        schema.pop("title", None)
        if parameter in descriptions:
            schema.setdefault("description", descriptions[parameter])
    return adapter, _make_schema(name, doc.partition("\n\n")[0], parameters)


def _make_schema(name: str, description: str, parameters: Mapping[str, Any]) -> FunctionTool:
    function = {"name": name, "description": description, "parameters": dict(parameters)}
    return FunctionTool.model_validate({"type": "function", "function": function})


def as_text(result: Any) -> str:
    """Return a result as the text of a tool message: a text as it is, any other value as JSON."""
    if isinstance(result, str):
        return replace_surrogates(result)
    try:
        return to_json(result, fallback=str).decode()
    except ValueError:  # a lone surrogate somewhere in it
        return json.dumps(result, default=str)
