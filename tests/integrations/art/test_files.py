"""Trajectory groups of openpipe-art. tests/acceptance has the library itself."""

import json

import pytest

from rolloutlab.errors import InputError

ASK = {"role": "user", "content": "2 + 2?"}


def choice(content):
    message = {"role": "assistant", "content": content, "refusal": None, "audio": None, "tool_calls": None}
    return {"finish_reason": "stop", "index": 0, "logprobs": None, "message": message}


def trajectory(*items, reward=1.0, **more):
    return {"messages_and_choices": list(items), "tools": None, "additional_histories": [], "reward": reward, **more}


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz"])
def test_groups_rewards_rows_and_logprobs_come_back(open_desk, recorded, tmp_path, name):
    one, two = open_desk(), open_desk()
    one.add(
        recorded("Paris", reward=1.0, components={"right": 1.0}),
        recorded("Lyon", reward=0.0),
        recorded("Nice"),
        recorded("Lima", group=1, row={"country": "Peru"}, reward=0.5),
    )
    done = one.write(tmp_path / name, kind="art")
    assert (done.trajectories, done.groups) == (3, 2)
    two.read(tmp_path / name, "capitals")
    first, second = two.groups()
    assert [(t.answer, t.reward, t.tokens, t.model) for t in first.trajectories] == [
        ("Paris", 1.0, 1, "lab/practice"),
        ("Lyon", 0.0, 1, "lab/practice"),
    ]
    assert second.row == {"country": "Peru"}
    assert first.trajectories[0].items == one.groups()[0].trajectories[0].items
    two.write(tmp_path / f"again-{name}", kind="art")
    assert two.read(tmp_path / f"again-{name}", "again") == ["again:1"]
    assert [t.items for g in two.groups("again") for t in g.trajectories] == [
        t.items for g in two.groups() for t in g.trajectories
    ]


def test_what_a_group_has_in_common_is_its_prompt(desk, tmp_path):
    other = {"role": "system", "content": "Be brief."}
    group = {"trajectories": [trajectory(ASK, choice("4")), trajectory(ASK, other, choice("5"))]}
    (tmp_path / "a.jsonl").write_text(json.dumps(group))
    desk.read(tmp_path / "a.jsonl", "sums")
    ((result,),) = (desk.groups("sums"),)
    assert len(result.prompt) == 1
    assert [len(t.items) for t in result.trajectories] == [2, 3]


def test_what_is_wrong_is_named_by_line_and_place(desk, tmp_path):
    group = {"trajectories": [trajectory(ASK, choice("4")), trajectory(ASK, {"role": "usr"})]}
    (tmp_path / "a.jsonl").write_text(json.dumps(group))
    with pytest.raises(InputError) as error:
        desk.read(tmp_path / "a.jsonl", "sums")
    assert error.value.message.startswith("a.jsonl, line 1: trajectories.1: messages_and_choices.1.role: ")
