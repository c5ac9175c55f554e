"""Tools in a column beside the conversation: offered with it, stored with its trajectories, resumed with it."""

import json

import pandas as pd
import pytest

from rolloutlab.sampling.conversation import as_tools
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.training.fine_tuning import as_line
from tests.playing import TOOL

PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
FUNCTION = {"name": "calculator", "description": "A small calculator.", "parameters": PARAMETERS}
CALCULATOR = {"type": "function", "function": FUNCTION}
QUESTION = [{"role": "user", "content": "What is 27 + 35?"}]
ANSWERED = [*QUESTION, {"role": "assistant"}, {"role": "user", "content": "And 1 + 1?"}]
FORMS = {
    "a list": {"tools": [CALCULATOR]},
    "JSON text": {"tools": json.dumps([CALCULATOR])},
    "JSON texts": {"tools": [json.dumps(CALCULATOR)]},
    "functions without a type": {"tools": [FUNCTION]},
    "the type beside the name": {"tools": [{"type": "function", **FUNCTION}]},
    "the older form": {"functions": [FUNCTION]},
    "the older form as JSON text": {"functions": json.dumps([FUNCTION]), "tools": None},
}


@pytest.fixture
def lab(practice_service, tmp_path):
    session = Session(Settings(home=tmp_path, service=practice_service.address), http=practice_service.http)
    yield session
    session.close()


def sent(lab, row, **options):
    """The tools of the first request."""
    request = lab.preview("talks", over=[row], prompt_column="messages", **options).request
    return [tool.to_wire() for tool in request.tools or ()]


@pytest.mark.parametrize("form", FORMS)
def test_tools_beside_a_conversation_are_offered_in_any_form(lab, form):
    assert sent(lab, {"messages": QUESTION, **FORMS[form]}) == [CALCULATOR]


@pytest.mark.parametrize("form", FORMS)
def test_fine_tuning_reads_the_same_forms(form):
    line = as_line({"messages": [*QUESTION, {"role": "assistant", "content": "62"}], **FORMS[form]}, "line 1")
    functions = [{"type": "function", "function": each} for each in line.get("functions") or ()]
    assert [*(line.get("tools") or ()), *functions] == [CALCULATOR]


def test_each_row_has_its_own_tools_and_a_cell_without_a_column_has_none(lab):
    rows = [{"messages": QUESTION, "tools": [CALCULATOR]}, {"messages": QUESTION, "tools": []}, {"messages": QUESTION}]
    groups = lab.chat("talks", over=rows, prompt_column="messages", n=2, max_tokens=2).groups
    offered = [[t.extra.get("tools") for t in group.trajectories] for group in groups]
    assert offered == [[[CALCULATOR]] * 2, [None] * 2, [None] * 2]
    alone = lab.chat("alone", "user: {{q}}", over=[{"q": "hello", "tools": [CALCULATOR]}], max_tokens=2)
    assert alone.trajectories[0].extra.get("tools") is None


def test_the_policy_calls_a_tool_of_the_row_and_the_conversation_ends_with_the_call(lab):
    settings = {"prompt_column": "messages", "max_tokens": 48, "temperature": 0.0, "seed": 1}
    [single] = lab.chat("one", over=[{"messages": QUESTION, "tools": [CALCULATOR]}], **settings).trajectories
    [call] = single.choices[-1].message.tool_calls
    assert call.function.name == "calculator"
    assert (single.pending, single.extra.get("logs")) == (0, None)
    [two] = lab.chat("two", over=[{"messages": ANSWERED, "tools": [CALCULATOR]}], **settings).trajectories
    assert len(two.choices) == 1
    assert two.extra["logs"] == ["ended with a call of calculator, which no function answers"]


def test_functions_answer_the_calls_of_tools_that_a_row_describes_too(lab):
    def calculator(expression: str) -> str:
        return "62"

    row = {"messages": QUESTION, "tools": [CALCULATOR]}
    offered = sent(lab, row, tools=[calculator])
    assert [tool["function"]["name"] for tool in offered] == ["calculator"]
    settings = {"prompt_column": "messages", "max_tokens": 48, "temperature": 0.0, "seed": 1}
    [made] = lab.chat("talks", over=[row], tools=[calculator], **settings).trajectories
    assert [message["content"] for message in made.messages if message["role"] == "tool"] == ["62"]


def test_a_continued_and_a_compared_conversation_have_the_tools_of_their_row(lab):
    rows = [{"messages": QUESTION, "tools": json.dumps([CALCULATOR])}]
    made = lab.chat("talks", over=rows, prompt_column="messages", n=2, max_tokens=2)
    lab.continue_chat("talks", "And?", max_tokens=2)
    assert all(t.extra["tools"] == [CALCULATOR] for t in lab.collection("talks").trajectories)
    assert repr(lab.preview(made.label, resume=True)) == "nothing is left to sample"
    lab.reward(made.label, lambda answer: 0.0)
    lab.compare(made.label, after=0, over=rows, model=None)
    again = lab.collection("compare.talks.lab.practice.step0")
    assert all(t.extra["tools"] == [CALCULATOR] for t in again.trajectories)


def test_tools_of_parquet_are_offered_without_its_nulls(lab, tmp_path):
    other = {**TOOL["function"], "name": "other"}
    described = [CALCULATOR, {"type": "function", "function": other}]
    pd.DataFrame({"messages": [QUESTION] * 2, "tools": [[each] for each in described]}).to_parquet(
        tmp_path / "a.parquet"
    )
    request = lab.preview("talks", over=str(tmp_path / "a.parquet"), prompt_column="messages").request
    assert [tool.to_wire() for tool in request.tools] == [CALCULATOR]


@pytest.mark.parametrize("value", ["hammer", ["hammer"], [{"tool": "hammer"}], {"hammer": 1}, 3])
def test_a_column_of_that_name_with_something_else_is_not_sent_and_said(lab, value):
    preview = lab.preview("talks", over=[{"messages": QUESTION, "tools": value}], prompt_column="messages")
    assert preview.request.tools is None
    assert preview.notes == ("the tools of 1 row do not describe functions and are not sent",)


@pytest.mark.parametrize("prompt", ["user: {{q}}", lambda row: row["q"]])
def test_a_prompt_that_is_no_column_says_that_the_tools_of_rows_are_not_sent(lab, prompt):
    rows = [{"q": "hello", "tools": [CALCULATOR]}, {"q": "hello", "tools": "hammer"}]
    [note] = lab.preview("talks", prompt, over=rows).notes
    assert note.startswith("tools of 1 row are not sent -> --prompt-column")
    assert lab.preview("talks", prompt, over=rows[1:]).notes == ()


def test_what_is_no_tool_is_left_for_an_error_to_name():
    assert as_tools("[not json") == "[not json"
    assert as_tools(" ") is None
    assert as_tools([{"name": "f", "function": 1}]) == [{"name": "f", "function": 1}]
