"""Tools in a row: their descriptions in a column beside a conversation, which the policy is offered with it."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rolloutlab.api.wire.chat import FunctionTool
from rolloutlab.sampling.config import SamplingConfig
from rolloutlab.sampling.conversation import are_structs, listed, tools_beside, tools_of
from rolloutlab.sampling.prompt import Row

_TOOLS = TypeAdapter(list[FunctionTool])


def tools_in(row: Mapping[str, Any], column: str | None) -> list[FunctionTool]:
    """The tools that a row describes beside the conversation in a column; none if what it has describes no tools."""
    tools = tools_beside(row)
    structs = isinstance(row, Row) and row.structs
    try:
        return _TOOLS.validate_python(
            tools_of(tools, structs=structs or are_structs(listed(row.get(column or "")) or (), tools)) or []
        )
    except ValidationError:
        return []


def offered(row: Mapping[str, Any], plan: SamplingConfig) -> tuple[FunctionTool, ...]:
    """The tools that a row describes, where its conversation is the prompt, without those that functions answer."""
    if plan.prompt_column is None:
        return ()
    known = {tool.function.name for tool in plan.tools}
    return tuple(tool for tool in tools_in(row, plan.prompt_column) if tool.function.name not in known)
