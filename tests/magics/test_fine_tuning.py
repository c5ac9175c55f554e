"""`%%train --sft`: cells that learn chosen trajectories and fine-tuning files."""

import json
from datetime import datetime

import pytest

from rolloutlab.api.wire import fine_tuning as wire
from rolloutlab.errors import InputError
from rolloutlab.search.field_notation import F
from rolloutlab.service.endpoints import sft_upload
from rolloutlab.training import fine_tuning
from rolloutlab.training.fine_tuning import FineTuning, as_line

LINE = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "fox"}]}


@pytest.fixture
def scored(notebook):
    """A collection of two groups of four, of which the first two answers have reward 1 and the others 0."""
    notebook.run("%%chat capitals -n 4 --seed 1 --max-tokens 4 --over countries\nuser: {{country}}")
    notebook.run("%%reward capitals\nreturn float(trajectory.name.endswith(('/0', '/1')))")
    return notebook


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "facts.jsonl"
    path.write_text("\n".join(map(json.dumps, [LINE, LINE, LINE])))
    return path


def test_rejection_sampling_fine_tuning_is_one_cell(scored, capsys):
    job = scored.run('%%train capitals --sft --where "reward > 0.9"\nlearning_rate: 1e-2')
    sampled = sum(t.tokens for t in scored.lab.collection("capitals").trajectories if t.reward)
    assert f"4 conversations, {sampled} tokens in 1 step" in capsys.readouterr().out
    assert job.status == "succeeded"
    metrics = job.metrics()
    assert list(metrics["num_trajectories"]) == [4]
    assert list(metrics["row_tokens"]) == [sampled]
    assert metrics["loss"][0] > 0
    assert job.step >= 1


def test_what_is_learned_is_chosen_by_the_text_of_reasoning(notebook, tmp_path, capsys):
    thoughts = "carry\nthe one", "borrow", None
    rows = [
        {"messages_and_choices": [
            {"role": "user", "content": f"hello {i}"},
            {"role": "assistant", "content": "carry", "reasoning_content": thought},
        ], "reward": 0.0}
        for i, thought in enumerate(thoughts)
    ]  # fmt: skip
    (tmp_path / "thoughts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    notebook.run(f"%import {tmp_path / 'thoughts.jsonl'} thoughts")
    job = notebook.run("%%train thoughts --sft --where \"'carry' in reasoning_text\"")
    assert "1 conversation," in capsys.readouterr().out
    assert list(job.metrics()["num_trajectories"]) == [1]


def test_the_loss_is_that_of_the_sampled_logprobs(scored):
    """Completions of the checkpoint that is trained: their recorded logprobs are those of the loss."""
    notebook = scored
    notebook.run("%model lab/own")
    notebook.run("%%chat own -n 4 --seed 2 --max-tokens 4\nuser: hello")
    tokens = [
        token.logprob
        for t in notebook.lab.collection("own").trajectories
        for choice in t.choices
        for token in choice.sampled_tokens()
    ]
    loss = notebook.run("%%train own --sft").metrics()["loss"][0]
    notebook.run("%model lab/practice")
    assert loss == pytest.approx(-sum(tokens) / len(tokens), rel=1e-4)


def test_without_a_condition_all_trajectories_are_learned_scored_or_not(notebook, capsys):
    notebook.run("%%chat plain -n 3 --seed 1 --max-tokens 4\nuser: hello")
    notebook.run("%%train plain --sft")
    assert "3 conversations" in capsys.readouterr().out


def test_a_dry_run_reports_what_a_job_would_learn(scored, file):
    dry = scored.run(f'%%train capitals "{file}" --sft --dry-run\nbatch_size: 2')
    assert repr(dry).splitlines()[0].startswith("dry run of capitals, facts.jsonl for lab/")
    assert "11 conversations, " in dry.report()[0]
    assert dry.report()[0].endswith("in 6 steps")
    assert 'Conversations that train</span> <span class="rl-value">11 ' in dry._repr_html_()
    job_ids = list(scored.lab.jobs().index)
    scored.run("%%train capitals --sft --dry-run")
    assert list(scored.lab.jobs().index) == job_ids


def test_a_file_of_conversations_is_learned(notebook, file, capsys):
    job = notebook.run(f"%%train {file} --sft")
    assert "3 conversations, " in capsys.readouterr().out
    assert job.status == "succeeded"


CALL = {"function": {"name": "add", "arguments": {"a": 1}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
ASK, SAY = LINE["messages"]


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ({"prompt": "hello", "completion": "fox"}, LINE["messages"]),
        (
            {"prompt": [ASK, SAY, ASK], "completion": [SAY], "source": "x"},
            [ASK, {**SAY, "weight": 0}, ASK, SAY],
        ),
        (
            {"conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "fox"}], "system": "be"},
            [{"role": "system", "content": "be"}, *LINE["messages"]],
        ),
        (
            {
                "messages": [
                    ASK,
                    {"role": "assistant", "tool_calls": [CALL]},
                    {"role": "tool", "name": "add", "content": "2"},
                    SAY,
                ],
                "tools": json.dumps([TOOL]),
            },
            [
                ASK,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "function": {"name": "add", "arguments": '{"a": 1}'},
                            "type": "function",
                            "id": "call_1_0",
                        }
                    ],
                },
                {"role": "tool", "name": "add", "content": "2", "tool_call_id": "call_1_0"},
                SAY,
            ],
        ),
    ],
)
def test_lines_of_other_tools_are_read_as_messages(notebook, file, line, sent):
    read = as_line(line, "line 1")
    assert read["messages"] == sent
    assert read.get("tools") == ([TOOL] if "tools" in line else None)
    file.write_text(json.dumps(line))
    report = notebook.run(f"%%train {file} --sft --dry-run").report()
    file.write_text(json.dumps({"messages": sent, **({"tools": [TOOL]} if "tools" in line else {})}))
    assert report == notebook.run(f"%%train {file} --sft --dry-run").report()
    assert ("1 conversation, " in report[0]) == ("tools" not in line)  # the policy of these tests has no calls


def _called(name, arguments):
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [ASK, {"role": "assistant", "content": "", "tool_calls": [call]}, {**SAY, "tool_call_id": None}]


def _described(name, **properties):
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


INTEGER = {"type": "integer"}
DESCRIBED = [_described("weather", city={"type": "string"}), _described("add", a=INTEGER, b={"enum": [1, 2]})]
STRUCTS = [
    {"messages": _called("weather", {"city": "Paris"}), "tools": DESCRIBED},
    {"messages": _called("add", {"a": 1, "b": 2}), "tools": DESCRIBED},
]


@pytest.mark.parametrize("shape", ["messages", "conversations", "completion"])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_neither_calls_nor_schemas_have_what_only_other_rows_have(tmp_path, shape, suffix):
    """Arrow gives each struct all names of its column; files of JSON are written of it, too."""
    pyarrow = pytest.importorskip("pyarrow")
    rows = STRUCTS
    if shape == "conversations":
        rows = [{**row, "conversations": row["messages"]} for row in STRUCTS]
    if shape == "completion":
        rows = [{**row, "prompt": row["messages"][:1], "completion": row["messages"][1:]} for row in STRUCTS]
    rows = [{name: value for name, value in row.items() if name == shape or name != "messages"} for row in rows]
    table = pyarrow.Table.from_pylist([{**row, "made": datetime(2026, 1, 31), "image": b"\xff"} for row in rows])
    path = tmp_path / f"structs.{suffix}"
    if suffix == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    else:
        path.write_text("\n".join(map(json.dumps, table.drop_columns(["made", "image"]).to_pylist())))
    lines = [json.loads(line) for line in FineTuning("lab/a", (), (path,), None, wire.SFTTrainingConfig(), {})]
    for line, row in zip(lines, STRUCTS, strict=True):
        assert line["tools"] == DESCRIBED
        (call,) = line["messages"][1]["tool_calls"]
        wanted = row["messages"][1]["tool_calls"][0]["function"]
        assert {**call["function"], "arguments": json.loads(call["function"]["arguments"])} == wanted


def _learned_arguments(file, line):
    file.write_text(json.dumps(line))
    (sent,) = map(json.loads, FineTuning("lab/a", (), (file,), None, wire.SFTTrainingConfig(), {}))
    return [json.loads(m["tool_calls"][0]["function"]["arguments"]) for m in sent["messages"] if m.get("tool_calls")]


def test_a_null_in_plain_lines_is_learned_where_the_tool_has_it(file):
    tools = [_described("weather", city={"type": "string"}, unit={"type": ["string", "null"]})]
    line = {"messages": _called("weather", {"city": "Paris", "unit": None})[:2], "tools": tools}
    assert _learned_arguments(file, line) == [{"city": "Paris", "unit": None}]
    open_tools = [{**tools[0], "function": {**DESCRIBED[0]["function"], "parameters": {"type": "object"}}}]
    assert _learned_arguments(file, line | {"tools": open_tools}) == [{"city": "Paris", "unit": None}]
    assert _learned_arguments(file, {"messages": line["messages"]}) == [{"city": "Paris", "unit": None}]


@pytest.mark.parametrize("column", ["tools", "functions"])
@pytest.mark.parametrize("shape", ["messages", "completion"])
def test_a_null_argument_that_the_tool_does_not_have_is_none_in_plain_lines(file, shape, column):
    place = _described("weather", at={"type": "object", "properties": {"city": {"type": "string"}}})
    tools = json.dumps([place] if column == "tools" else [place["function"]])
    messages = _called("weather", {"at": {"city": "Paris", "a": None}, "b": None})[:2]
    messages = [{**each, "tool_calls": each.get("tool_calls") or []} for each in messages]
    split = {"prompt": messages[:1], "completion": messages[1:]}
    line = {"messages": messages} if shape == "messages" else split
    assert _learned_arguments(file, {**line, column: tools}) == [{"at": {"city": "Paris"}}]


def test_a_parquet_file_is_learned_and_imported(notebook, tmp_path, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pylist([LINE, {"messages": [{**ASK, "name": "ada"}, SAY]}])
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "facts.parquet")
    dry = notebook.run(f"%%train {tmp_path / 'facts.parquet'} --sft --dry-run")
    assert dry.report()[0].startswith("2 conversations, ")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(STRUCTS), tmp_path / "calls.parquet")
    notebook.run(f"%import {tmp_path / 'calls.parquet'} calls")
    first, second = notebook.lab.collection("calls").trajectories
    assert first.extra["tools"] == second.extra["tools"] == DESCRIBED
    calls = [t.items[1].to_wire()["tool_calls"][0]["function"]["arguments"] for t in (first, second)]
    assert list(map(json.loads, calls)) == [{"city": "Paris"}, {"a": 1, "b": 2}]


@pytest.mark.parametrize("shape", ["messages", "completion"])
def test_a_finish_reason_in_a_column_goes_with_its_line(tmp_path, shape):
    pyarrow = pytest.importorskip("pyarrow")
    messages = {"messages": [ASK, SAY]} if shape == "messages" else {"prompt": "hello", "completion": "fo"}
    rows = [{**messages, "finish_reason": "length", "made": 1}, {**messages, "finish_reason": None, "made": 2}]
    path = tmp_path / "cut.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    cut, whole = (json.loads(line) for line in FineTuning("lab/a", (), (path,), None, wire.SFTTrainingConfig(), {}))
    assert cut["finish_reason"] == "length"
    assert whole.get("finish_reason") is None


def test_a_conversation_that_begins_with_the_model_is_learned_from_its_first_question_on(notebook, file):
    shared = [
        {"from": "gpt", "value": "I am here"},
        {"from": "human", "value": "hello"},
        {"from": "gpt", "value": "fox"},
    ]
    file.write_text(json.dumps({"conversations": shared}))
    (sent,) = map(json.loads, FineTuning("lab/a", (), (file,), None, wire.SFTTrainingConfig(), {}))
    assert [(m["role"], m.get("weight")) for m in sent["messages"]] == [
        ("assistant", 0),
        ("user", None),
        ("assistant", None),
    ]
    begun = notebook.run(f"%%train {file} --sft --dry-run").report()
    assert "1 conversation beginning with the model, whose first message is context (facts.jsonl, line 1)" in begun
    file.write_text(json.dumps(LINE))
    alone = notebook.run(f"%%train {file} --sft --dry-run").report()
    assert begun[0] == alone[0]
    assert not any("beginning with the model" in line for line in alone)


def test_lines_that_are_sent_again_are_counted_once(file):
    rejected = {"prompt": "hello", "completion": "fox", "label": False}
    begun = {"messages": [{"role": "assistant", "content": "I am here"}, *LINE["messages"]]}
    file.write_text("\n".join(map(json.dumps, [begun, rejected])))
    wanted = FineTuning("lab/a", (), (file,), None, wire.SFTTrainingConfig(), {})
    first = list(wanted), wanted.warnings()
    assert (list(wanted), wanted.warnings()) == first
    assert len(first[1]) == 2


def _turns(*pairs):
    return [{"from": role, "value": text} for role, text in pairs]


ADD = {"name": "add", "arguments": {"a": 1}}


@pytest.mark.parametrize(
    "line",
    [
        {"conversations": _turns(("human", "hello"), ("bot", "fox"))},
        {"conversations": _turns(("Human", "hello"), ("Assistant", "fox"))},
        {"conversations": json.dumps(_turns(("user", "hello"), ("model", "fox")))},
        {"messages": [ASK, {"role": "model", "content": "fox"}]},
        {"messages": [ASK, {"role": "Assistant", "content": "fox"}]},
        {"messages": json.dumps(LINE["messages"])},
        {"prompt": json.dumps([ASK]), "completion": json.dumps([SAY])},
    ],
)
def test_roles_by_their_other_names_and_messages_as_json_text_are_read(file, line):
    file.write_text(json.dumps(line))
    (sent,) = map(json.loads, FineTuning("lab/a", (), (file,), None, wire.SFTTrainingConfig(), {}))
    assert sent["messages"] == LINE["messages"]


@pytest.mark.parametrize(
    "messages",
    [
        _turns(("human", "hello"), ("function_call", json.dumps(ADD)), ("observation", "7"), ("gpt", "fox")),
        _turns(("human", "hello"), ("function_call", json.dumps([ADD])), ("observation", "7"), ("gpt", "fox")),
        [ASK, {"role": "assistant", "content": "", "tool_calls": [ADD]}, {"role": "tool", "content": "7"}, SAY],
    ],
)
def test_calls_by_name_and_arguments_alone_are_read(file, session, messages):
    file.write_text(json.dumps({"conversations" if "from" in messages[0] else "messages": messages}))
    (sent,) = map(json.loads, FineTuning("lab/a", (), (file,), None, wire.SFTTrainingConfig(), {}))
    _, called, result, _ = sent["messages"]
    assert called["role"] == "assistant"
    (call,) = called["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert (result["role"], result["tool_call_id"]) == ("tool", call["id"])
    rows = [{"talk": messages[:3]}]
    (group,) = session.preview("talks", "{{talk}}", over=rows).groups
    assert [message.role for message in group.prompt] == ["user", "assistant", "tool"]


def test_a_role_of_calls_whose_text_is_none_is_named(file):
    file.write_text(json.dumps({"conversations": _turns(("human", "hello"), ("function_call", "add 1"))}))
    with pytest.raises(InputError, match="role must be one of"):
        list(FineTuning("lab/a", (), (file,), None, wire.SFTTrainingConfig(), {}))


@pytest.mark.parametrize("mark", ["label", "kto_tag"])
def test_a_rejected_answer_is_left_out_by_name(notebook, file, mark):
    kept, rejected = {**LINE, mark: True}, {"prompt": "hello", "completion": "ox", mark: False}
    file.write_text("\n".join(map(json.dumps, [kept, rejected, {**LINE, mark: False}])))
    report = notebook.run(f"%%train {file} --sft --dry-run").report()
    assert report[0].startswith("1 conversation, ")
    places = "facts.jsonl, line 2, facts.jsonl, line 3"
    assert f"2 conversations left out: rejected answers (label is false) ({places})" in report


CHOSEN = [ASK, SAY]
REJECTED = [ASK, {"role": "assistant", "content": "ox"}]


@pytest.mark.parametrize(
    "line",
    [
        {"prompt": "hello", "chosen": "fox", "rejected": "ox"},
        {"prompt": CHOSEN[:1], "chosen": CHOSEN[1:], "rejected": REJECTED[1:]},
        {"chosen": CHOSEN, "rejected": REJECTED},
        {"prompt": "hello", "chosen": CHOSEN, "rejected": REJECTED},
        {
            "conversations": [{"from": "human", "value": "hello"}],
            "chosen": {"from": "gpt", "value": "fox"},
            "rejected": {"from": "gpt", "value": "ox"},
        },
    ],
)
def test_of_a_pair_the_chosen_answer_is_learned_and_a_line_says_so(notebook, file, line):
    file.write_text(json.dumps(line))
    (sent,) = map(json.loads, FineTuning("lab/a", (), (file,), None, wire.SFTTrainingConfig(), {}))
    assert sent["messages"] == LINE["messages"]
    report = notebook.run(f"%%train {file} --sft --dry-run").report()
    said = "1 conversation with chosen and rejected: rejected is not learned (facts.jsonl, line 1)"
    assert said in report


@pytest.mark.parametrize(
    "told",
    [
        {"thought": "because"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "be"}, {"type": "reasoning.text", "text": "cause"}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "because"}]},
        {"reasoning_content": "because", "thought": "else"},
    ],
)
def test_reasoning_beside_the_content_is_learned_wherever_it_is(file, told):
    file.write_text(json.dumps({"messages": [ASK, SAY | told]}))
    (sent,) = map(json.loads, FineTuning("lab/a", (), (file,), None, wire.SFTTrainingConfig(), {}))
    assert sent["messages"][1]["reasoning_content"] == "because"


def test_encrypted_reasoning_is_named(notebook, file):
    hidden = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "eA=="}]}
    file.write_text(json.dumps({"messages": [ASK, SAY | hidden]}))
    report = notebook.run(f"%%train {file} --sft --dry-run").report()
    assert "1 conversation with encrypted reasoning: learned without it (facts.jsonl, line 1)" in report


def test_a_nan_in_a_line_is_a_missing_value(notebook, file):
    file.write_text(json.dumps({**LINE, "score": float("nan"), "more": [float("nan"), {"a": "NaN"}]}))
    assert notebook.run(f"%%train {file} --sft --dry-run").report()[0].startswith("1 conversation, ")
    notebook.run(f"%import {file} facts_with_nan")
    (trajectory,) = notebook.lab.collection("facts_with_nan").trajectories
    assert dict(trajectory.row) == {"score": None, "more": [None, {"a": "NaN"}]}


def test_a_column_that_cannot_be_kept_is_left_out_of_an_import_by_name(notebook, tmp_path, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    row = {**LINE, "made": datetime(2026, 1, 31), "image": b"\xff", "metadata": "no JSON", "score": float("nan")}
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist([row]), tmp_path / "odd.parquet")
    notebook.run(f"%import {tmp_path / 'odd.parquet'} odd")
    assert (
        "odd.parquet, row 1, column 'image': a bytes cannot be kept as JSON: left out of 1 row"
        in capsys.readouterr().out
    )
    (trajectory,) = notebook.lab.collection("odd").trajectories
    assert dict(trajectory.row) == {"made": "2026-01-31T00:00:00", "metadata": "no JSON"}
    assert (
        notebook.run(f"%%train {tmp_path / 'odd.parquet'} --sft --dry-run").report()[0].startswith("1 conversation, ")
    )
    message = {**ASK, "content": [{"type": "image", "image": b"\xff"}]}
    table = pyarrow.Table.from_pylist([{"messages": [message], "x": 1}])
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "images.parquet")
    for cell in (f"%import {tmp_path / 'images.parquet'} odd", f"%%train {tmp_path / 'images.parquet'} --sft"):
        assert "images.parquet, row 1, column 'messages': a bytes cannot be kept" in notebook.error(cell)


@pytest.mark.parametrize("line", [{"instruction": "a", "output": "b"}, {"prompt": "a", "chosen": "b"}, {"prompt": 3}])
def test_a_line_of_an_unknown_shape_is_named_with_what_it_has(notebook, file, line):
    file.write_text(json.dumps(line))
    error = notebook.error(f"%%train {file} --sft")
    assert f"line 1: a line has messages, conversations, or prompt and completion; here: {', '.join(line)}" in error
    assert '{"messages": [' in error


def test_a_wrong_line_of_a_file_is_named_before_anything_is_submitted(notebook, file):
    file.write_text(json.dumps(LINE) + '\n{"prompt": "hello"}')
    assert "facts.jsonl, line 2: " in notebook.error(f"%%train {file} --sft")


def test_the_list_of_jobs_shows_what_was_chosen(scored):
    job = scored.run('%%train capitals --sft --where "reward > 0.9"')
    row = scored.lab.jobs().loc[job.id[:8]]
    assert row["options"] == "sft True, where reward > 0.9"
    assert row["collections"] == "capitals"


def test_a_condition_is_a_value_too(scored):
    job = scored.lab.train("capitals", sft=True, where=F.reward < 0.5, say=lambda _: None)
    assert list(job.metrics()["num_trajectories"]) == [4]


REFUSED = [
    ('%%train capitals --where "reward > 0.9"', "a condition chooses what supervised fine-tuning learns"),
    ('%%train capitals --sft --where "reward > 7"', "no trajectory of capitals meets reward > 7"),
    ('%%train capitals --sft --where "reward >"', "reward >"),
    ('%%train capitals --sft --where "rewrd > 0"', "rewrd"),
    ('%%train facts.jsonl --sft --where "reward > 0"', "a file has none"),
    ("%%train capitals --sft\nppo: true", "unknown option 'ppo' with --sft"),
    ("%%train capitals --sft\nlearning_rate: -1", "learning_rate: -1"),
    ("%%train capitals --sft\nbatch_size: 0", "batch_size: 0"),
    ("%%train capitals --sft --form", "--form has the options of reinforcement learning"),
    ("%%train nothing --sft", "nothing"),
]


def test_what_cannot_be_is_an_error_with_what_to_type(scored):
    before = list(scored.lab.jobs().index)
    for cell, message in REFUSED:
        assert message in scored.error(cell), cell
        assert list(scored.lab.jobs().index) == before, cell


def test_too_few_learning_rates_are_reported_before_there_is_a_job(scored, file):
    before = list(scored.lab.jobs().index)
    cell = f'%%train capitals "{file}" --sft{{}}\nbatch_size: 4\nlearning_rate: [1e-3, 1e-3]'
    lines = scored.run(cell.format(" --dry-run")).report()
    hint = "learning_rate: one number, or 3 of them"
    assert lines[:2] == [lines[0], f"no job can begin: 2 learning rates for 3 gradient steps -> {hint}"]
    assert lines[0].endswith(" in 3 steps")
    assert scored.error(cell.format("")).splitlines() == [
        "InputError: 2 learning rates for 3 gradient steps",
        f"  -> {hint}",
    ]
    assert list(scored.lab.jobs().index) == before


def test_nothing_is_uploaded_for_a_model_with_other_adapters(scored, service, file):
    scored.run("%model lab/of_another_rank")
    with service.database.write() as connection:
        connection.execute("UPDATE models SET base = base || ' --lora-rank=64' WHERE name = 'of_another_rank'")
    files, jobs = set(service.folder.glob("files/*")), list(scored.lab.jobs().index)
    for cell in (f"%%train {file} --sft", f"%%train {file} --sft --dry-run", "%%train capitals"):
        error = scored.error(cell)
        assert "ConflictError: lab/of_another_rank was made with --lora-rank=64, and this service runs with" in error
        assert "rolloutlab serve --policy" in error
    assert set(service.folder.glob("files/*")) == files
    assert list(scored.lab.jobs().index) == jobs
    scored.run("%model lab/practice")


def test_a_conversation_that_no_service_reads_is_named_with_its_line(notebook, file, monkeypatch):
    monkeypatch.setattr(fine_tuning, "MAX_LINE_BYTES", 1000)
    longer = {"messages": [{"role": "user", "content": "x" * 1000}, LINE["messages"][1]]}
    file.write_text("\n".join(map(json.dumps, [LINE, longer])))
    for cell in (f"%%train {file} --sft", f"%%train {file} --sft --dry-run"):
        error = notebook.error(cell)
        assert "facts.jsonl, line 2: 1," in error
        assert "bytes in one conversation, and a service reads at most 1,000" in error
        assert "shorten this conversation, or leave it out" in error


def test_both_sides_have_one_limit_of_a_line():
    assert fine_tuning.MAX_LINE_BYTES is sft_upload.MAX_LINE_BYTES is wire.MAX_LINE_BYTES


def test_a_collection_without_answers_to_learn_is_an_error(notebook, tmp_path):
    path = tmp_path / "asked.jsonl"
    path.write_text(json.dumps({"messages": LINE["messages"][:1]}))
    assert "no answer of an assistant to learn" in notebook.error(f"%%train {path} --sft")


def test_options_are_a_dict(scored):
    with pytest.raises(InputError, match="options are a dict"):
        scored.lab.train("capitals", [("learning_rate", 1)], sft=True)


def test_the_job_of_fine_tuning_is_shown_as_such(scored, file):
    job = scored.run(f'%%train capitals "{file}" --sft\nbatch_size: 4')
    state = job.state()
    assert [curve["title"] for curve in state["curves"]].index("fine-tuning loss") == 0
    assert "Cross-entropy" in state["curves"][0]["healthy"]
    assert state["numbers"]["kl_base"][0] is not None
    assert "reward" not in state["numbers"]
    assert 'conversations that train</span> <span class="rl-value">11 <small>of 11' in job._repr_html_()
    assert scored.lab.jobs().loc[job.id[:8], "options"] == f"sft True, files ['{file}'], batch_size 4"


def test_a_comparison_tells_what_is_not_known_of_its_prompts(scored, file):
    over = [{"country": name} for name in ("Chad", "Peru")]
    score = lambda trajectory, answer: float(len(answer))  # noqa: E731
    scored.run("%model lab/compared")
    scored.run(f'%%train "{file}" --sft')
    compare = {"over": over, "n": 1, "before": 0}
    lines = scored.lab.compare("capitals", score, after=1, **compare).words()
    assert f"also fine-tuned on {file} in between: whether these prompts are in it is not checked" in lines
    scored.run('%%train capitals --sft --where "reward > 0.9"')
    lines = scored.lab.compare("capitals", score, after=2, **compare).words()
    assert "fine-tuned on capitals where reward > 0.9 in between: all its prompts count as trained on" in lines
    scored.run("%model lab/practice")


@pytest.mark.parametrize(
    "line",
    [
        {"system": "be", "messages": [ASK, SAY]},
        {"system": [{"text": "be"}], "messages": [ASK, SAY]},
        {"system": "be", "prompt": "hello", "completion": "fox"},
        {"system": "be", "messages": [{"role": "system", "content": "be"}, ASK, SAY]},
    ],
)
def test_a_system_text_beside_the_messages_is_their_first(line):
    assert as_line(line, "line 1")["messages"] == [{"role": "system", "content": "be"}, ASK, SAY]


def test_two_system_texts_are_an_error_that_names_the_line(notebook, file):
    file.write_text(json.dumps({"system": "be", "messages": [{"role": "system", "content": "do"}, ASK, SAY]}))
    error = notebook.error(f"%%train {file} --sft")
    assert "line 1: system is beside the messages and among them, with other words" in error
