"""Prompts of rows: conversations in a column, functions, and values in a text."""

import ast
import json
import pprint
from collections import OrderedDict, deque
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.errors import InputError
from rolloutlab.sampling.plan import SamplingRun, plan_new
from rolloutlab.sampling.preview import Preview
from rolloutlab.sampling.prompt import fill_text
from rolloutlab.sampling.rollout import request_of, with_next_prompt
from rolloutlab.sampling.split import split_rows
from rolloutlab.sampling.tools import Tools


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def assistant(content: str | None = None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", **({"content": content} if content is not None else {}), **more}


SYSTEM = {"role": "system", "content": "Be brief. {{x}}"}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": null}'}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/{{x}}"}}
CONVERSATIONS = [
    [user("hello")],
    [SYSTEM, user("{{x}} and {x}", name="ada")],
    [user([{"type": "text", "text": "{{x}}"}, IMAGE])],
    [user("a"), assistant("b"), user("c")],
    [user("add"), assistant(tool_calls=[CALL]), {"role": "tool", "tool_call_id": "1", "content": "[1]"}],
    [{"role": "developer", "content": "a"}, user("robot: b\nsystem: c")],
]


def work_of(prompt: Any = "{{prompt}}", over: Any = None, **options: Any) -> SamplingRun:
    system, variables = options.pop("system", None), options.pop("variables", {})
    return plan_new("x", prompt, over, system, variables, {"model": "lab/a"}, Tools(()), **options)


def requests(work: SamplingRun) -> list[list[dict[str, Any]]]:
    """The messages of the first request of each group."""
    groups = [(rollout, work.groups[rollout.place]) for rollout in work.rollouts]
    made = [request_of(with_next_prompt(rollout, group), group, work.plan) for rollout, group in groups]
    return [json.loads(request.to_json())["messages"] for request in made]


@pytest.mark.parametrize("alone", [{"prompt": "{{prompt}}"}, {"prompt": "\n {{ prompt }}\n"}, {"column": "prompt"}])
def test_a_conversation_in_a_column_is_sent_as_it_is(alone):
    rows = [{"prompt": conversation, "x": 1} for conversation in CONVERSATIONS]
    prompt = alone.pop("prompt", "")
    assert requests(work_of(prompt, rows, **alone)) == CONVERSATIONS


def test_a_text_in_such_a_column_is_a_user_message_and_never_a_template():
    rows = [{"prompt": text} for text in ("Question: what?", "{{x}}\nsystem: obey", 7, True)]
    assert requests(work_of(over=rows)) == [
        [user("Question: what?")],
        [user("{{x}}\nsystem: obey")],
        [user("7")],
        [user("True")],
    ]


def test_conversations_of_parquet_are_messages_again(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"prompt": [each for each in CONVERSATIONS if not isinstance(each[-1]["content"], list)]})
    frame.to_parquet(tmp_path / "a.parquet")
    arrays = pd.read_parquet(tmp_path / "a.parquet")
    assert isinstance(arrays["prompt"][0], np.ndarray)
    for over in (arrays, tmp_path / "a.parquet", str(tmp_path / "a.parquet")):
        assert requests(work_of(over=over)) == list(frame["prompt"])


def called(name: str, arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [user(f"{name}?"), assistant("", tool_calls=[call]), {"role": "tool", "tool_call_id": "1", "content": "1"}]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [
    tool("weather", city={"type": "string"}, near={"type": "object", "properties": {"lat": {"type": "number"}}}),
    tool("add", a={"type": ["integer", "null"]}, b={"type": "integer"}),
    tool("now"),
]
CALLED = [
    called("weather", {"city": "Paris"}),
    called("weather", {"city": "Oslo", "near": {"lat": 1.5}}),
    called("weather", {"city": "Rome", "near": {"lon": 2.5, "places": [{"name": "x"}, {"id": 7}]}}),
    called("add", {"a": 1, "b": 2}),
    called("now", {}),
]


def of_arrow(wrote: str, rows: list[dict[str, Any]], folder: Path) -> Any:
    """Rows as a library hands them on that keeps nested values as structs."""
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pylist(rows)
    path = folder / "a.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    if wrote == "parquet":
        return path
    if wrote in {"pandas", "pandas lists"}:
        frame = pd.read_parquet(path)
        return frame if wrote == "pandas" else frame.map(lambda x: x.tolist() if isinstance(x, np.ndarray) else x)
    if wrote == "pandas of Arrow":
        return pd.read_parquet(path, dtype_backend="pyarrow")
    if wrote == "json":
        (folder / "a.jsonl").write_text("\n".join(map(json.dumps, table.to_pylist())))
        return folder / "a.jsonl"
    if wrote == "polars":
        return pytest.importorskip("polars").read_parquet(path)
    if wrote == "polars lazy":
        return pytest.importorskip("polars").scan_parquet(path)
    if wrote in {"datasets", "stream", "rows of datasets"}:
        data = pytest.importorskip("datasets").Dataset(table)
        return {"datasets": data, "stream": data.to_iterable_dataset()}.get(wrote) or list(data)
    return {"table": table, "rows": table.to_pylist(), "iterator": iter(table.to_pylist())}[wrote]


SOURCES = "parquet", "table", "rows", "iterator", "json", "pandas", "pandas of Arrow", "pandas lists"
OTHERS = "polars", "polars lazy", "datasets", "stream", "rows of datasets"


@pytest.mark.parametrize("wrote", [*SOURCES, *OTHERS])
@pytest.mark.parametrize("beside", [{}, {"tools": TOOLS}, {"tools": json.dumps(TOOLS)}])
@pytest.mark.parametrize("function", [False, True])
def test_calls_have_no_argument_that_only_calls_in_other_rows_have(wrote, beside, function, tmp_path):
    rows = [{"prompt": conversation, **beside} for conversation in CALLED]
    over = of_arrow(wrote, rows, tmp_path)
    sent = requests(work_of((lambda row: row["prompt"]) if function else "{{prompt}}", over))
    assert [json.loads(m[1]["tool_calls"][0]["function"]["arguments"]) for m in sent] == [
        json.loads(json.dumps(m[1]["tool_calls"][0]["function"]["arguments"])) for m in CALLED
    ]
    for messages in sent:
        assert [set(message) for message in messages] == [
            {"role", "content"},
            {"role", "content", "tool_calls"},
            {"role", "content", "tool_call_id"},
        ]


def test_a_null_stays_where_a_schema_requires_it_or_the_arguments_are_json(tmp_path):
    required = called("add", {"a": None, "b": 2})
    text = called("add", '{"a": null}')
    rows = [{"prompt": each, "tools": TOOLS} for each in (required, called("weather", {"city": "Paris"}))]
    for over in (of_arrow("table", rows, tmp_path), of_arrow("json", rows, tmp_path)):
        first, second = requests(work_of(over=over))
        assert json.loads(first[1]["tool_calls"][0]["function"]["arguments"]) == {"a": None, "b": 2}
        assert json.loads(second[1]["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}
    (sent,) = requests(work_of(over=of_arrow("table", [{"prompt": text}], tmp_path)))
    assert sent == text


@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv", ""])
def test_a_null_in_plain_json_stays(suffix, tmp_path):
    conversations = [called("weather", {"city": "Paris", "unit": None}), called("add", {"unit": 1})]
    tools = [tool("weather", city={"type": "string"}, unit={"type": ["string", "null"]}), tool("add", unit={})]
    rows: Any = [{"prompt": each, "tools": tools} for each in conversations]
    path = tmp_path / f"a.{suffix}"
    if suffix == "csv":
        pd.DataFrame({"prompt": list(map(json.dumps, conversations))}).to_csv(path)
    elif suffix:
        path.write_text(json.dumps(rows) if suffix == "json" else "\n".join(map(json.dumps, rows)))
    for over in [path] if suffix else [rows, pd.DataFrame(rows)]:
        first, _ = requests(work_of(over=over))
        assert json.loads(first[1]["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris", "unit": None}


def test_parts_of_contents_have_no_property_that_only_other_parts_have(tmp_path):
    parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": "https://example.com/a"}}]
    for wrote in SOURCES:
        over = of_arrow(wrote, [{"prompt": [user(parts)]}, {"prompt": [user(parts[:1], name="ada")]}], tmp_path)
        assert requests(work_of(over=over)) == [[user(parts)], [user(parts[:1], name="ada")]]


def test_a_split_of_structs_is_sampled_without_their_nulls(tmp_path):
    rows = [{"prompt": called(*each), "n": i} for i, each in enumerate([("f", {"a": 1}), ("g", {"b": 2})] * 9)]
    parts = split_rows(of_arrow("table", rows, tmp_path), held_out=0.5, say=lambda _: None)
    sent = [m[1]["tool_calls"][0]["function"]["arguments"] for part in parts for m in requests(work_of(over=part))]
    assert set(sent) == {'{"a": 1}', '{"b": 2}'}


def test_messages_of_sharegpt_and_arguments_that_are_objects_become_those_of_the_wire():
    shared = [{"from": "system", "value": "a"}, {"from": "human", "value": "b"}]
    call = {**CALL, "function": {"name": "add", "arguments": {"a": None}}}
    called = [user("add"), assistant(tool_calls=[call]), {"role": "tool", "tool_call_id": "1", "content": "1"}]
    first, second = requests(work_of(over=[{"prompt": shared}, {"prompt": called}]))
    assert first == [{"role": "system", "content": "a"}, user("b")]
    assert second[1] == assistant(tool_calls=[CALL])


def test_a_list_of_messages_as_json_in_a_text_is_read_and_a_line_says_so():
    texts = [json.dumps(each) for each in CONVERSATIONS]
    others = ['[{"a": 1}]', "[]", '{"role": "user"}', '[{"role": "baker", "name": "Ann"}]', "{{x}}"]
    work = work_of(over=[{"prompt": text, "x": 1} for text in (*texts, *others)])
    assert requests(work) == [*CONVERSATIONS, *([user(text)] for text in others)]
    line = f"{len(texts)} texts of prompt read as JSON of messages"
    assert work.notes == [f"{line} -> lambda row: row['prompt'], as the prompt, sends the text"]
    assert requests(work_of(lambda row: row["prompt"], [{"prompt": texts[0]}])) == [[user(texts[0])]]
    shared = json.dumps([{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}])
    work = work_of(over=[{"prompt": shared}])
    assert requests(work) == [[user("2 + 2?")]]
    assert work.notes[1].endswith("-> json.loads(row['prompt'])[-1] in a reward function has it")


@pytest.mark.parametrize("cell", ["", "user: {{prompt}}"], ids=["column", "text"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_conversations_that_pandas_wrote_to_csv_are_refused_with_what_converts_them(tmp_path, conversation, cell):
    path = tmp_path / "a.csv"
    pd.DataFrame({"prompt": ["hello", conversation]}).to_csv(path, index=False)
    with pytest.raises(InputError) as refused:
        work_of(cell, path, **({} if cell else {"column": "prompt"}))
    assert refused.value.message == (
        "a.csv, line 3: {{prompt}} is a text of messages as Python writes them, or cut short, and no JSON"
    )
    frame = pd.read_csv(path).tail(1)
    first, second = str(refused.value.hint).removesuffix(" before to_csv").split(", or ")
    names = {"frame": frame, "ast": ast, "json": json}
    exec(first, names)
    assert requests(work_of(over=frame)) == [conversation]
    exec(f"frame['prompt'] = frame['prompt']{second}", names)
    frame.to_csv(path, index=False)
    assert requests(work_of(over=path)) == [conversation]


@pytest.mark.parametrize(
    "text",
    [
        str(np.array([user("a"), assistant("b")], dtype=object)),
        repr(np.array([user("a")], dtype=object)),
        str((user("it's"), assistant('"b"'))),
        str(user("a")),
        str([[user("a")]]),
        str([{"from": "human", "value": "a"}]),
        "[ChatMessage(role='user', content='a')]",
        str([user("a" * 40_000)])[:32_767],
        json.dumps([user("a" * 40_000)])[:32_767],
    ],
    ids=lambda text: text[:24],
)
def test_messages_that_another_tool_made_a_text_of_are_refused(text):
    for cell in ("{{prompt}}", "user: {{prompt}}", [user([{"type": "text", "text": "{{prompt}}"}])]):
        with pytest.raises(InputError, match="is a text of messages as Python writes them, or cut short"):
            work_of(cell, [{"prompt": text}])


@pytest.mark.parametrize(
    "text",
    [
        "a role: 'user' and content: 'b'",
        "[1, 2]",
        '{"role": "user", "content": "a"}',
        json.dumps([user("a")]) + "\nWhat comes next?",
        "def f(role='user', content=''): ...",
        "{'a': 1}",
    ],
)
def test_a_text_that_is_none_of_messages_is_sent_as_it_is(text):
    assert requests(work_of("user: {{prompt}}", [{"prompt": text}])) == [[user(text)]]


def test_a_function_that_puts_messages_into_a_text_is_refused():
    with pytest.raises(InputError, match=r"put the Python representation of row\['turns'\] into its text") as refused:
        work_of(lambda row: f"Go on: {row['turns']}", [{"turns": [user("a")]}])
    assert "json.dumps(row['turns'])" in str(refused.value.hint)
    assert requests(work_of(lambda row: f"Sort {row['n']}", [{"n": [2, 1]}])) == [[user("Sort [2, 1]")]]


NESTED_ROW = {
    "messages": [user("a"), assistant("b")],
    "tags": ["red", "blue"],
    "more": {"x": [None, True]},
    "n": [30, 10, 20],
    "t": ["a"],
    "code": "names = ['ada', 'alan']",
    "names": ["ada", "alan"],
}


@pytest.mark.parametrize(
    ("ask", "hint"),
    [
        (lambda r: f"Continue {r['messages'][0]}", "json.dumps(row['messages'][0]) in the text"),
        (lambda r: f"Pick one of {r['tags']}", "json.dumps(row['tags']) in the text"),
        (lambda r: f"{r['more']['x']}?", "json.dumps(row['more']['x']) in the text"),
        (lambda r: f"{r['t']} ", "json.dumps(row['t']) in the text"),
        (lambda r: f"Read {r}", "json.dumps(row) in the text"),
        (lambda r: [user(f"Do {r['messages']}")], "return row['messages'], or json.dumps(row['messages']) in the text"),
        (lambda r: [user([{"type": "text", "text": f"{r['more']}"}])], "json.dumps(row['more']) in the text"),
    ],
)
def test_a_function_that_puts_any_container_of_its_row_into_a_text_is_refused(ask, hint):
    with pytest.raises(InputError, match="row 0: the prompt function <lambda> put the Python representation of") as no:
        work_of(ask, [NESTED_ROW])
    assert str(no.value.hint) == hint
    typed = hint.removesuffix(" in the text").rpartition("return ")[2].rpartition(", or ")[2]
    text = eval(typed, {"json": json, "row": NESTED_ROW})
    assert requests(work_of(lambda r: text, [NESTED_ROW])) == [[user(text)]]


@pytest.mark.parametrize(
    "ask",
    [
        lambda r: f"Sort {r['n']}",
        lambda r: f"What is {r['t']}[0]?",
        lambda r: f"What has {r['code']}?",
        lambda r: f"Name {', '.join(r['tags'])} [or {{}}]",
    ],
)
def test_lists_that_json_writes_so_too_or_that_are_in_a_text_of_the_row_are_sent(ask):
    assert requests(work_of(ask, [NESTED_ROW])) == [[user(ask(NESTED_ROW))]]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"q": "{{x}}"}', '{"q": "a \\"b\\"\\n"}'),
        ('{"q": "{{x y}} {{n}}"}', '{"q": "{{x y}} 5"}'),
        ('{"n": {{n}}}', '{"n": 5}'),
        ('{"s": "\\\\", "q": "{{x}}", "n": {{n}}}', '{"s": "\\\\", "q": "a \\"b\\"\\n", "n": 5}'),
        ("{{json}}", '{"n": [1]}'),
    ],
)
def test_names_in_the_arguments_of_tool_calls_are_filled(arguments, sent):
    call = {**CALL, "function": {"name": "{{n}}", "arguments": arguments}}
    prompt = [user("a"), assistant(tool_calls=[call]), {"role": "tool", "tool_call_id": "1", "content": "{{n}}"}]
    work = work_of(prompt, [{"x": 'a "b"\n', "n": 5, "json": '{"n": [1]}'}])
    _, called, answered = requests(work)[0]
    assert called["tool_calls"] == [{**CALL, "function": {"name": "{{n}}", "arguments": sent}}]
    assert answered["content"] == "5"
    with pytest.raises(InputError, match=r"\{\{x\}\} is neither a column nor a variable"):
        work_of([user("a"), assistant(tool_calls=[{**CALL, "function": {"name": "f", "arguments": '["{{x}}"]'}}])])


def test_the_last_answer_of_a_training_set_is_left_out_and_told_and_stays_in_the_row():
    rows = [{"prompt": [user("2 + 2?"), assistant("4")]}, {"prompt": [user("3 + 3?")]}]
    work = work_of(over=rows)
    assert requests(work) == [[user("2 + 2?")], [user("3 + 3?")]]
    assert work.groups[0].row == rows[0]
    assert work.notes == [
        "the last answer of 1 conversation of prompt is not sent, as the policy gives its own"
        " -> row['prompt'][-1] in a reward function has it"
    ]
    assert repr(Preview(work)).startswith(work.notes[0])


def test_a_conversation_that_begins_with_the_model_is_sent_so_and_a_line_says_what_leaves_that_out():
    shared = [{"from": "gpt", "value": "I am here"}, {"from": "human", "value": "a"}]
    work = work_of(over=[{"prompt": shared}, {"prompt": shared[1:]}])
    assert requests(work) == [[assistant("I am here"), user("a")], [user("a")]]
    assert list(work.notes) == [
        "1 conversation of prompt beginning with the model "
        "-> lambda row: row['prompt'][1:], as the prompt, leaves its message out"
    ]


def test_an_empty_assistant_message_is_a_turn_of_the_policy():
    work = work_of(over=[{"prompt": [user("a"), assistant(""), user("b")]}])
    assert requests(work) == [[user("a")]]
    assert [len(turn) for turn in work.groups[0].script] == [0, 1]


def test_a_system_message_comes_before_conversations_that_have_none():
    assert requests(work_of(over=[{"prompt": [user("a")], "x": "1"}], system="Be {{x}}.")) == [
        [{"role": "system", "content": "Be 1."}, user("a")]
    ]
    with pytest.raises(InputError, match=r"row 1: \{\{prompt\}\} has a system message of its own"):
        work_of(over=[{"prompt": "a"}, {"prompt": [SYSTEM, user("a")]}], system="Be brief.")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([{"role": "robot", "content": "a"}], "row 1: message 0: role must be one of"),
        ([user("a"), user(None)], "row 1: message 1: "),
        ([], "row 1: the prompt has no message"),
        ([assistant("only an answer")], "row 1: the prompt has no message"),
        (["a"], "row 1: {{prompt}} is a list of str, not of messages"),
        ({"role": "user", "content": "a"}, "row 1: {{prompt}} is a dict"),
        (None, "row 1: {{prompt}} has no value"),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_row(value, message):
    with pytest.raises(InputError) as refused:
        work_of(over=[{"prompt": "hello"}, {"prompt": value}])
    assert refused.value.message.startswith(message)
    assert refused.value.hint


def test_a_column_for_the_prompt_leaves_no_room_for_a_text():
    with pytest.raises(InputError, match="the cell has to be empty"):
        work_of("{{prompt}}", [{"prompt": "a"}], column="prompt")
    with pytest.raises(InputError, match="neither a column nor a variable"):
        work_of("", [{"prompt": "a"}], column="prompts")


def test_a_conversation_inside_a_text_is_an_error_with_what_to_type():
    with pytest.raises(InputError, match=r"row 0: \{\{prompt\}\} is a list") as refused:
        work_of("user: {{prompt}}", [{"prompt": [user("a")]}])
    assert "a cell that is only {{prompt}}" in str(refused.value.hint)


def test_a_function_makes_the_prompt_of_each_row_from_a_copy():
    def ask(row: dict[str, Any]) -> Any:
        row["turns"].pop()
        return "robot: {{x}}" if row["n"] else [SYSTEM, *row["turns"]]

    rows = [{"n": n, "turns": [user("a"), assistant("b")]} for n in (0, 1)]
    work = work_of(ask, rows)
    assert requests(work) == [[SYSTEM, user("a")], [user("robot: {{x}}")]]
    assert [group.row for group in work.groups] == rows
    assert requests(work_of(lambda row: "{{n}}", rows, system="Be {{n}} {{y}} {z}.", variables={"y": "2"}))[1] == [
        {"role": "system", "content": "Be 1 2 {z}."},
        user("{{n}}"),
    ]
    with pytest.raises(InputError, match=r"\{\{no\}\} is neither a column nor a variable"):
        work_of(lambda row: "a", rows, system="{{no}}")
    assert requests(work_of(lambda row: "a", None, system="b")) == [[{"role": "system", "content": "b"}, user("a")]]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda row: "a" if row["no"] else "b", "row 1: the prompt function <lambda> failed: KeyError: 'no'"),
        (lambda row: 3 if row["n"] else "a", "row 1: the prompt function <lambda> returned a int"),
        (lambda row: [row["n"]] if row["n"] else "a", "row 1: the prompt function <lambda> returned a list"),
        (lambda row: [user("a"), assistant("b")] if row["n"] else "a", "row 1: the messages of the prompt function"),
        (lambda row: [user(row)] if row["n"] else "a", "row 1: message 0: "),
    ],
)
def test_an_error_of_such_a_function_names_the_row(function, message):
    rows = [{"n": 0, "no": 1}, {"n": 1}]
    with pytest.raises(InputError) as refused:
        work_of(function, rows)
    assert refused.value.message.startswith(message)


class Count(int):
    """A number whose text is its representation."""

    def __repr__(self) -> str:
        return f"<Count object at {id(self)}>"


class Size(float):
    __repr__ = Count.__repr__


class Price(Decimal):
    __str__ = __repr__ = Count.__repr__


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (1, "1"),
        (0.1, "0.1"),
        (True, "True"),
        (np.float64(0.5), "0.5"),
        (np.int32(3), "3"),
        pytest.param(Count(3), "3", id="a kind of int"),
        pytest.param(Size(0.5), "0.5", id="a kind of float"),
        pytest.param(Price("1.10"), "1.10", id="a kind of Decimal"),
        (np.bool_(False), "False"),
        (np.str_("a"), "a"),
        (Decimal("1.10"), "1.10"),
        (date(2026, 1, 31), "2026-01-31"),
        (datetime(2026, 1, 31, 12), "2026-01-31 12:00:00"),
        (Colour.RED, "red"),
        (PurePosixPath("a/b"), "a/b"),
    ],
)
def test_a_scalar_is_put_in_as_its_text(value, text):
    assert fill_text("[{{x}}]", {}, {"x": value}) == f"[{text}]"


@pytest.mark.parametrize(
    "value",
    [
        [1],
        (1,),
        {"a": 1},
        {1},
        b"a",
        np.array([1]),
        np.array(["a", "b"]),
        pd.DataFrame({"a": [1]}),
        pd.Series([1]),
        print,
        lambda: 1,
        json,
        object(),
        Path,
        1j,
        range(3),
        iter([1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_scalar_is_an_error_with_what_to_type(value):
    with pytest.raises(InputError, match=r"\{\{x\}\} is a .*, which has no text of its own") as refused:
        fill_text("[{{x}}]", {}, {"x": value})
    assert refused.value.hint


@pytest.mark.parametrize(
    "value", [None, float("nan"), np.float32("nan"), Decimal("NaN"), Decimal("sNaN"), pd.NaT, pd.NA]
)
def test_what_is_missing_is_never_put_in(value):
    with pytest.raises(InputError, match="has no value"):
        fill_text("[{{x}}]", {}, {"x": value})


@pytest.mark.parametrize("prompt", ["{{y}} {{x}}", "user: {{y}}", lambda row: row["x"] + "\ud83d"])
def test_a_text_that_utf_8_cannot_encode_is_an_error_with_its_row(prompt):
    with pytest.raises(InputError, match="row 0: the prompt contains a lone surrogate"):
        work_of(prompt, [{"x": "a"}], variables={"y": "\ud83d"})


def test_columns_with_spaces_are_columns_too():
    assert requests(work_of("{{Question text}}? {{no name}}", [{"Question text": "Why"}])) == [
        [user("Why? {{no name}}")]
    ]


class Tagged(str):
    """A text whose `str` is its representation."""

    def __str__(self) -> str:
        return f"Tagged({[*self]})"


class Mode(str, Enum):  # noqa: UP042 - the kind that older code has
    """A member is a text, which `str` represents as `Mode.FAST`."""

    FAST = "fast"


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.dates() | st.decimals()
NESTED = st.recursive(
    SCALARS
    | st.datetimes()
    | st.text(max_size=3).map(Tagged)
    | st.sampled_from([Mode.FAST, np.float32("nan"), np.datetime64("NaT"), np.int8(3), pd.NA, pd.NaT, np.array(7)])
    | st.binary(max_size=2)
    | st.just(object())
    | st.just(print)
    | st.sets(st.integers(), max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.sampled_from(["role", "content", "a"]), inner, max_size=3)
        | st.lists(inner, min_size=1, max_size=2).map(lambda items: np.array([*items, None], dtype=object)[:-1])
        | st.lists(inner, min_size=2, max_size=3).map(lambda items: [items[0], None, *items[1:]])
        | st.lists(inner, max_size=2).map(deque)
        | st.lists(st.integers(-9, 9), max_size=3).map(np.array)
        | st.dictionaries(st.just("a"), inner, max_size=1).map(OrderedDict)
    ),
    max_leaves=6,
)
TEMPLATES = [
    "{{x}}",
    "user: {{x}}",
    "a {{x}} b",
    "system: {{x}}\nuser: {{y}}",
    [user([{"type": "text", "text": "{{x}}"}])],
]


def containers(value: Any) -> list[Any]:
    """Every part of a value that is no scalar."""
    inner = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(inner, list | tuple | set | deque) or getattr(inner, "ndim", 0):
        own = [] if len(inner) == 0 else [value]
        return [*own, *(each for part in inner for each in containers(part))]
    odd = isinstance(value, bytes | Tagged | Mode) or type(value) is object or callable(value)
    return [value] if odd else []


@given(NESTED, st.sampled_from(TEMPLATES), st.booleans())
def test_no_request_ever_has_the_python_representation_of_a_container_or_an_object(value, template, in_row):
    given_values = {"x": value, "y": "z"}
    try:
        work = work_of(template, [given_values] if in_row else None, variables={} if in_row else given_values)
    except InputError:
        return
    sent = json.dumps(requests(work), ensure_ascii=False)
    for part in containers(value):
        for text in {repr(part), str(part)}:
            assert text not in sent or not any(mark in text for mark in "[{(<.")


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system"]), "content": st.text(st.characters(codec="utf-8"), min_size=1)},
        optional={"name": st.just("ada")},
    ),
    min_size=1,
    max_size=3,
)
WRITTEN = [repr, lambda m: repr(tuple(m)), lambda m: str(np.array([*m, None], dtype=object)[:-1]), pprint.pformat]


@given(MESSAGES, st.sampled_from(WRITTEN), st.sampled_from(["{{x}}", "user: {{x}}", "system: {{x}}\nuser: b"]))
def test_no_request_has_messages_that_were_made_a_text_and_json_of_them_is_sent_as_they_are(messages, write, template):
    with pytest.raises(InputError, match="is a text of messages"):
        work_of(template, [{"x": write(messages)}])
    assert requests(work_of("{{x}}", [{"x": json.dumps(messages)}])) == [messages]


def test_conversations_go_through_the_lab_and_on(session):
    rows = [{"prompt": [SYSTEM, user(f"hello {i}"), assistant("a")], "n": i} for i in range(3)]
    made = session.chat("chats", prompt_column="prompt", over=iter(rows), limit=2, n=2, max_tokens=2)
    assert [[m.to_wire() for m in group.prompt] for group in made.groups] == [row["prompt"][:-1] for row in rows[:2]]
    assert [group.row for group in made.groups] == rows[:2]
    session.continue_chat("chats", "And?", max_tokens=2)
    session.reward("chats:1", lambda trajectory, answer, messages, row: 0.0)
    compared = session.compare("chats:1", after=0, over=rows[2:], model=None)
    assert [pair.prompt for pair in compared.pairs] == ["hello 2"]
    again = session.collection("compare.chats.lab.practice.step0")
    assert [[m.to_wire() for m in group.prompt] for group in again.groups] == [rows[2]["prompt"][:-1]]


def test_what_a_function_made_is_resumed_continued_and_compared(session, monkeypatch):
    def ask(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [user(f"{row['n']}?")]

    rows = [{"n": i} for i in range(2)]
    made = session.chat("sums", ask, over=rows, n=2, max_tokens=2)
    assert made.missing == 0
    assert repr(session.preview("sums", resume=True)) == "nothing is left to sample"
    session.reward("sums", lambda trajectory, answer, messages, row: float(row["n"]))
    assert [pair.prompt for pair in session.compare("sums", after=0).pairs] == ["0?", "1?"]
    with pytest.raises(InputError, match="a function made the prompts of sums") as refused:
        session.compare("sums", after=0, over=[{"n": 5}])
    assert "prompt=FUNCTION" in str(refused.value.hint)
    assert [pair.prompt for pair in session.compare("sums", after=0, over=[{"n": 5}], prompt=ask).pairs] == ["5?"]
    continued = session.continue_chat("sums", "And?", max_tokens=2)
    assert [t.messages[0] for t in continued.trajectories] == [user("0?"), user("0?"), user("1?"), user("1?")]


def test_the_lines_about_prompts_stay_on_the_screen(session, capsys):
    session.chat("chats", prompt_column="p", over=[{"p": [user("a"), assistant("b")]}], max_tokens=2)
    assert "the last answer of 1 conversation of p is not sent" in capsys.readouterr().out


def test_a_dry_run_does_not_use_up_an_iterator(session):
    rows = iter([{"p": "a"}])
    with pytest.raises(InputError, match="a dry run would use up the list_iterator"):
        session.preview("chats", "{{p}}", over=rows)
    assert next(rows) == {"p": "a"}
