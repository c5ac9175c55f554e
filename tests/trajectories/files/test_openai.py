"""Fine-tuning messages: what other tools wrote becomes groups, and the best of groups becomes such a file."""

import json

import pytest

from rolloutlab.api.wire.chat import AssistantMessage, Choice
from rolloutlab.errors import InputError
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.group_view import GroupView

ASK = {"role": "user", "content": "2 + 2?"}
TOOL = {"type": "function", "function": {"name": "add"}}


def say(content, **more):
    return {"role": "assistant", "content": content, **more}


@pytest.fixture
def file(tmp_path):
    def write(*examples):
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, examples)))
        return tmp_path / "a.jsonl"

    return write


def test_the_same_prompt_is_the_same_group(desk, file):
    other = {"role": "user", "content": "3 + 3?"}
    desk.read(file(*({"messages": [ask, say(a)]} for ask, a in ((ASK, "4"), (other, "6"), (ASK, "5")))), "sums")
    assert [[t.answer for t in group.trajectories] for group in desk.groups("sums")] == [["4", "5"], ["6"]]
    assert [len(group.prompt) for group in desk.groups("sums")] == [1, 1]


@pytest.mark.parametrize("mask", [{"weight": 0}, {"train": False}, {"training": False}])
def test_what_is_masked_belongs_to_the_prompt(desk, file, mask):
    example = [{"role": "user", "content": "1 + 1?"}, say("2", **mask)]
    desk.read(file({"messages": [*example, ASK, say("4"), ASK, say("5")]}), "sums")
    ((group,),) = (desk.groups("sums"),)
    assert len(group.prompt) == 3
    assert group.trajectories[0].answer == "5"


def test_tools_rewards_and_what_else_a_line_holds_are_kept(desk, file):
    desk.read(file({"messages": [ASK, say("4")], "tools": [TOOL], "reward": 0.5, "sum": 4, "deep": [1]}), "sums")
    ((result,),) = (group.trajectories for group in desk.groups("sums"))
    assert (result.reward, dict(result.row)) == (0.5, {"sum": 4, "deep": [1]})
    assert result.extra == {"tools": [TOOL], "metadata": {"sum": 4}}
    assert result.to_wire().tools[0].function.name == "add"


@pytest.mark.parametrize(
    ("example", "text"),
    [
        ({"messages": [ASK, {"role": "usr", "content": "x"}]}, "messages.1.role: role must be one of"),
        ({"messages": []}, "messages: "),
        ({"messages": [ASK], "tools": [{"type": "web"}]}, "tools.0."),
        ({"messages": [ASK, say("4")], "reward": "high"}, "reward: "),
    ],
)
def test_what_is_wrong_is_named_by_line_and_place(desk, file, example, text):
    with pytest.raises(InputError) as error:
        desk.read(file({"messages": [ASK, say("4")]}, example), "sums")
    assert error.value.message.startswith(f"a.jsonl, line 2: {text}")
    assert desk.lab.collections() == []


def test_the_format_can_be_said_where_a_line_does_not_show_it(desk, file):
    with pytest.raises(InputError, match=r"a\.jsonl, line 1: messages: Field required"):
        desk.read(file({"prompt": "2 + 2?"}), "sums", "openai")


def test_without_a_name_the_error_says_how_to_give_one(desk, file):
    with pytest.raises(InputError) as error:
        desk.read(file({"messages": [ASK, say("4")]}))
    assert error.value.hint == "%import a.jsonl NAME"


def test_the_best_of_each_group_is_written(desk, recorded, tmp_path):
    rewards = [(0, 0.2), (0, 0.9), (0, None), (1, 0.1), (2, None)]
    desk.add(*(recorded(f"{reward}", group=g, reward=reward) for g, reward in rewards))
    for choosing, expected in (
        ({}, ["0.2", "0.9", "None", "0.1", "None"]),
        ({"best": True}, ["0.9", "0.1"]),
        ({"min_reward": 0.2}, ["0.2", "0.9"]),
        ({"best": True, "min_reward": 0.5}, ["0.9"]),
    ):
        done = desk.write(tmp_path / "a.jsonl", kind="openai", overwrite=True, **choosing)
        lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
        assert [line["messages"][-1]["content"] for line in lines] == expected
        assert done.trajectories == len(expected)


def test_what_is_written_holds_no_more_than_the_format_knows_and_marks_what_was_given(desk, recorded, tmp_path):
    given = AssistantMessage(role="assistant", content="Sure.")
    desk.add(recorded(prompt=[*recorded().prompt, given], extra={"tools": [TOOL], "logs": ["x"]}))
    desk.write(tmp_path / "a.jsonl", kind="openai")
    line = json.loads((tmp_path / "a.jsonl").read_text())
    assert line.keys() == {"messages", "tools"}
    assert line["messages"][2:] == [say("Sure.", weight=0), say("Paris")]


@pytest.mark.parametrize("mask", [{"weight": 0}, {"train": False}, {"training": False}])
def test_an_answer_that_was_context_is_written_as_context(desk, file, tmp_path, mask):
    desk.read(file({"messages": [ASK, say("4"), ASK, say("5", **mask), ASK, say("6")]}), "sums")
    desk.write(tmp_path / "b.jsonl", "sums", kind="openai")
    [line] = map(json.loads, (tmp_path / "b.jsonl").read_text().splitlines())
    assert [each.get("weight") for each in line["messages"] if each["role"] == "assistant"] == [None, 0, None]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_written_and_read(open_desk, recorded, tmp_path, field):
    one, two = open_desk(), open_desk()
    message = say("Paris", **{field: "a capital"})
    choice = {"finish_reason": "stop", "index": 0, "message": message}
    one.add(recorded(items=[Choice.model_validate(choice)]))
    one.write(tmp_path / "a.jsonl", kind="openai")
    [line] = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
    assert line["messages"][-1] == message
    two.read(tmp_path / "a.jsonl", "capitals")
    [[trajectory]] = [group.trajectories for group in two.groups("capitals")]
    assert (trajectory.reasoning, trajectory.answer) == ("a capital", "Paris")


def test_a_trip_through_such_a_file_keeps_groups_and_messages(open_desk, recorded, tmp_path):
    one, two = open_desk(), open_desk()
    one.add(recorded("Paris"), recorded("Lyon"))
    one.write(tmp_path / "a.jsonl", kind="openai")
    two.read(tmp_path / "a.jsonl", "capitals")
    two.write(tmp_path / "b.jsonl", kind="openai")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    ((group,),) = (two.groups(),)
    assert [t.answer for t in group.trajectories] == ["Paris", "Lyon"]


def test_a_user_whose_message_has_properties_of_a_client_is_shown(desk, file):
    odd = {**ASK, "tool_calls": [{"x": 1}], "function_call": 3}
    desk.read(file({"messages": [odd, say("4"), odd, say("5")]}), "sums")
    collection = Collection(desk.lab, desk.lab.find("sums"))
    assert "2 + 2?" in repr(collection)
    assert "2 + 2?" in collection._repr_html_()


@pytest.mark.parametrize("calls", [["add"], "add", 3, [{"function": "add"}]])
def test_a_group_is_shown_whatever_a_client_calls_the_calls_of_a_user(desk, file, calls):
    odd = {**ASK, "tool_calls": calls, "function_call": "add", "refusal": 3}
    desk.read(file({"messages": [odd, say("4"), odd, say("5")]}), "sums")
    [turn, _] = GroupView(desk.lab, desk.lab.find("sums").id).state()["shown"]["group"]["members"][0]["turns"][1:]
    assert (turn["content"]["text"], turn["calls"], turn["refusal"]) == ("2 + 2?", [], None)
