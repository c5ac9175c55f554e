"""Python functions as tools: how they are described to a policy, and what becomes of its calls."""

import asyncio
import functools
import json
import threading
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from rolloutlab.api.wire.chat import CustomToolCall, FunctionToolCall
from rolloutlab.errors import BrokenOffError, InputError, SignInError, UnreachableError
from rolloutlab.sampling.mcp.tools import ContextTool
from rolloutlab.sampling.tools import Tools


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    The second is 2 unless it is given.

    :param a: the first
    """
    return a + b


def call(name: str, arguments: Any = None, identity: str = "c") -> FunctionToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return FunctionToolCall(id=identity, type="function", function={"name": name, "arguments": text})


def outcome(function, arguments: Any = None) -> tuple[str, list[str]]:
    messages, troubles = asyncio.run(Tools([function]).answer([call(function.__name__, arguments)]))
    return messages[0].content, troubles


def test_a_tool_is_described_by_its_signature_and_docstring():
    (schema,) = Tools([add]).schemas
    assert schema.function.description == "Add two numbers."
    assert schema.function.parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer", "description": "the first"}, "b": {"type": "integer", "default": 2}},
        "required": ["a"],
        "additionalProperties": False,
    }


def test_types_become_their_json_schema():
    def find(unit: Literal["c", "f"], near: Annotated[float, Field(ge=0)], tags: list[str] | None = None) -> None:
        """Find."""

    properties = Tools([find]).schemas[0].function.parameters["properties"]
    assert properties["unit"] == {"enum": ["c", "f"], "type": "string"}
    assert properties["near"] == {"minimum": 0, "type": "number"}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("text", "text"),
        (3, "3"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (None, "null"),
        ({1j}, '["1j"]'),
        (ArithmeticError("x"), '"x"'),
    ],
)
def test_a_result_is_said_as_text_or_json(result, said):
    def give() -> Any:
        return result

    assert outcome(give) == (said, [])


def test_a_coroutine_is_awaited():
    async def wait(a: int) -> int:
        await asyncio.sleep(0)
        return a + 1

    assert outcome(wait, {"a": 1}) == ("2", [])


def test_the_calls_of_a_message_run_side_by_side_and_are_answered_in_their_order():
    both = threading.Barrier(2, timeout=240)

    def meet(name: str) -> str:
        both.wait()
        return name

    calls = [call("meet", {"name": "a"}, "1"), call("meet", {"name": "b"}, "2")]
    messages, troubles = asyncio.run(Tools([meet]).answer(calls))
    assert [(m.tool_call_id, m.content) for m in messages] == [("1", "a"), ("2", "b")]
    assert troubles == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "a: Missing required argument"),
        ({"a": "many"}, "a: Input should be a valid integer"),
        ({"a": 1, "c": 2}, "c: Unexpected keyword argument"),
        ("{", "arguments: Invalid JSON"),
        ("[1]", None),
    ],
)
def test_wrong_arguments_are_told_to_the_policy_and_the_function_is_not_called(arguments, said):
    content, troubles = outcome(add, arguments)
    assert said is None or content.startswith(f"error: {said}")
    assert said is None or troubles[0].startswith(f"add failed: {said}")


def test_a_call_without_arguments_is_one_with_none():
    def now() -> str:
        return "noon"

    assert outcome(now, "") == ("noon", [])


def test_a_tool_that_does_not_exist_is_answered_with_those_that_do():
    messages, troubles = asyncio.run(Tools([add]).answer([call("subtract")]))
    assert messages[0].content == "error: LookupError: there is no such tool; there are add"
    assert troubles == ["subtract failed: LookupError: there is no such tool; there are add"]


def test_a_custom_call_is_answered_as_none_of_ours():
    custom = CustomToolCall(id="c", type="custom", custom={"name": "sql", "input": "select"})
    messages, _ = asyncio.run(Tools([add]).answer([custom]))
    assert messages[0].content.startswith("error: LookupError")


@pytest.mark.parametrize("bad", [3, functools.partial(add, 1), lambda a: a])
def test_what_has_no_name_is_no_tool(bad):
    with pytest.raises(InputError, match="is not a function with a name"):
        Tools([bad])


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(InputError, match="two tools called 'add'"):
        Tools([add, add])


def test_a_signature_that_has_no_schema_is_refused_with_the_reason():
    def odd(a: threading.Thread) -> None:
        """Odd."""

    with pytest.raises(InputError, match="odd cannot be described as a tool"):
        Tools([odd])


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
def test_a_tool_that_wants_to_end_everything_ends_only_itself(error):
    def leave() -> None:
        raise error

    said, (trouble,) = outcome(leave)
    assert said.startswith(f"error: {type(error).__name__}")
    assert trouble.startswith(f"leave failed: {type(error).__name__}")


def test_tools_that_hang_keep_no_other_from_being_called():
    go_on = threading.Event()

    def hang() -> str:
        go_on.wait(240)
        return "late"

    async def play() -> list[str]:
        tools = Tools([hang, add])
        hanging = [asyncio.create_task(tools.answer([call("hang")])) for _ in range(40)]
        messages, _ = await tools.answer([call("add", {"a": 1})])
        go_on.set()
        return [messages[0].content, *[(await task)[0][0].content for task in hanging]]

    assert asyncio.run(play()) == ["3", *["late"] * 40]


@pytest.mark.parametrize(
    "error", [StopIteration(), asyncio.CancelledError(), SystemExit(1), KeyboardInterrupt(), BaseException("x")]
)
def test_whatever_a_tool_raises_is_an_answer(error):
    def fail() -> None:
        raise error

    content, troubles = outcome(fail)
    assert content.startswith(f"error: {type(error).__name__}")
    assert len(troubles) == 1


def test_half_of_a_character_does_not_reach_a_request():
    half = chr(0xD83D)

    def text() -> str:
        return half

    def nested() -> list[str]:
        return [half]

    def fail() -> None:
        raise ValueError(half)

    for function in (text, nested, fail):
        content, _ = outcome(function)
        assert content.encode().decode() == content


def elsewhere(said=("found", False), name="find"):
    """A tool of a context server; `said` is what it answers, or raises."""
    asked = []

    async def answered(arguments):
        asked.append(arguments)
        if isinstance(said, Exception):
            raise said
        return said

    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    return ContextTool(name, "Finds.", schema, answered), asked


def test_a_tool_of_a_context_server_is_described_as_it_describes_itself_and_called():
    tool, asked = elsewhere()
    tools = Tools([tool, add])
    assert [schema.function.name for schema in tools.schemas] == ["find", "add"]
    assert tools.schemas[0].function.parameters == tool.schema
    messages, troubles = asyncio.run(tools.answer([call("find", {"query": "x"}), call("add", {"a": 1}, "d")]))
    assert [(message.tool_call_id, message.content) for message in messages] == [("c", "found"), ("d", "3")]
    assert (asked, troubles) == ([{"query": "x"}], [])


@pytest.mark.parametrize(
    ("said", "arguments", "content"),
    [
        (("no such record", True), {"query": "x"}, "error: no such record"),
        (BrokenOffError("it took too long"), {"query": "x"}, "error: it took too long"),
        (("found", False), "[1]", "error: Input should be an object"),
        (("found", False), "{", "error: Invalid JSON"),
    ],
)
def test_what_goes_wrong_at_a_context_server_is_an_answer_too(said, arguments, content):
    tool, _ = elsewhere(said)
    messages, troubles = asyncio.run(Tools([tool]).answer([call("find", arguments)]))
    assert content.removeprefix("error: ") in messages[0].content
    assert messages[0].content.startswith("error: ")
    assert troubles[0].startswith("find failed: ")


@pytest.mark.parametrize("error", [SignInError("https://tools.example wants you to sign in"), UnreachableError("gone")])
def test_what_no_other_call_could_change_is_no_answer_for_a_policy(error):
    tool, _ = elsewhere(error)
    with pytest.raises(type(error)):
        asyncio.run(Tools([tool]).answer([call("find", {"query": "x"})]))


def test_a_function_and_a_tool_of_one_name_are_refused():
    tool, _ = elsewhere(name="add")
    with pytest.raises(InputError, match="two tools called 'add'"):
        Tools([add, tool])
