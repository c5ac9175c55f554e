"""Forms of tool calls that are not JSON: XML (Qwen3.5, GLM-4.5) and Python (LFM2), and their parsers.

A policy's form is the one that reads back the call that its chat template writes: no names of models are compared.
"""

import ast
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rolloutlab.api.wire.chat import FunctionTool
from rolloutlab.policy.tool_calls import ARGUMENTS, NAME, Call, CallExample, ToolCallFormat, valid_call

Read = Callable[[str, Sequence[FunctionTool]], list[Call] | None]
"""Reads the calls between two marks; None if one is malformed."""


@dataclass(frozen=True)
class MarkedCalls:
    """Calls between two marks, which `read` reads."""

    opening: str
    closing: str
    read: Read

    def split(self, text: str) -> tuple[str, list[Call]]:
        """Split as `parse` does, without tools: values are texts where no tool has a type for them."""
        return self.parse(text)

    def parse(self, text: str, tools: Sequence[FunctionTool] = ()) -> tuple[str, list[Call]]:
        """Return the text around the calls, and the calls; the whole text and no calls if one is malformed."""
        before, *rest = text.split(self.opening)
        around, calls = [before], []
        for part in rest:
            inner, closed, after = part.partition(self.closing)
            read = self.read(inner, tools) if closed else None
            if read is None:
                return text, []
            calls += read
            around.append(after)
        return "".join(each for each in around if each.strip()) if calls else text, calls


def infer_call_form(example: CallExample, end: str) -> ToolCallFormat | MarkedCalls | None:
    """Find the form of a chat template's calls; None if it is none of the known ones.

    end: the text of the end-of-turn token.
    """
    tool = FunctionTool.model_validate({"type": "function", "function": {"name": NAME}})
    for form in _FORMS:
        if form.opening in example.text:
            _, calls = form.parse(example.text, [tool])
            if [(call.name, json.loads(call.arguments)) for call in calls] == [(NAME, ARGUMENTS)]:
                return form
    return ToolCallFormat.of(example, end)


def _xml(function: str, parameter: str, closing: str, text: str, tools: Sequence[FunctionTool]) -> list[Call] | None:
    """Read one call in XML; None if it is malformed. Values get the types of the tool's parameters, by transformers.

    Args:
        function: The pattern of a call, with the groups `name` and `rest`.
        parameter: The pattern of a parameter, with the groups `key` and `value`.
        closing: The text that ends a parameter.
        text: The text of the call.
        tools: The tools of the request.
    """
    call = re.fullmatch(function, text.strip(), re.DOTALL)
    # What follows the last parameter is checked first: for each parameter without an end, the pattern would search the
    # whole rest for one.
    if call is None or call["rest"].rpartition(closing)[2].strip():
        return None
    if re.sub(parameter, "", call["rest"], flags=re.DOTALL).strip():
        return None
    keys = [each["key"] for each in re.finditer(parameter, call["rest"], re.DOTALL)]
    if len({*keys}) < len(keys):
        return None
    from transformers.utils.chat_parsing import parse_response

    whole = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
    content = {"content": "xml-inline", "content_args": {"tag_pattern": parameter}, "transform": whole}
    field = {"open_pattern": rf"^(?P<name>{re.escape(call['name'])})\n", **content}
    schema = {"start_anchor": "\n", "fields": {"call": field}}
    definitions: list[Any] = [tool.to_wire() for tool in tools]
    parsed = parse_response(f"{call['name']}\n{call['rest']}", schema, prefix="", tools=definitions)
    valid = valid_call(parsed["call"]["function"]["name"], parsed["call"]["function"]["arguments"])
    return [valid] if valid else None


def _python(text: str, _: Sequence[FunctionTool]) -> list[Call] | None:
    """Read a Python list of calls with named arguments, whose values are literals of Python or JSON."""
    try:
        body = ast.parse(text.strip(), mode="eval").body
        calls = [_python_call(each) for each in body.elts] if isinstance(body, ast.List) else []
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    valid = [call for call in calls if call]
    return valid if valid and len(valid) == len(calls) else None


def _python_call(node: ast.expr) -> Call | None:
    names = [each.arg for each in node.keywords] if isinstance(node, ast.Call) else []
    if not isinstance(node, ast.Call) or node.args or None in names or len({*names}) < len(names):
        return None
    values = [ast.literal_eval(_JsonNames().visit(each.value)) for each in node.keywords]
    return valid_call(ast.unparse(node.func), dict(zip(map(str, names), values, strict=True)))


class _JsonNames(ast.NodeTransformer):
    """Replaces the constants of JSON by those of Python, since templates write objects as JSON."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        constants = {"true": True, "false": False, "null": None}
        return ast.Constant(constants[node.id]) if node.id in constants else node


_PARAMETER = r"<parameter=(?P<key>[^>\n]{1,200})>\n?(?P<value>.*?)\n?</parameter>"
_ARGUMENT = r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"
_FORMS = (
    MarkedCalls(
        "<tool_call>",
        "</tool_call>",
        partial(_xml, r"<function=(?P<name>[^>\n]{1,200})>(?P<rest>.*)</function>", _PARAMETER, "</parameter>"),
    ),
    MarkedCalls(
        "<tool_call>", "</tool_call>", partial(_xml, r"(?P<name>[^\s<{]{1,200})(?P<rest>.*)", _ARGUMENT, "</arg_value>")
    ),
    MarkedCalls("<|tool_call_start|>", "<|tool_call_end|>", _python),
)
"""Qwen3.5 and Nemotron 3; GLM-4.5; LFM2."""
