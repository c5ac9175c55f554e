"""Files between `openpipe-art` and a lab: groups go there and come back, by the library's own reading and writing."""

import json
import os
import subprocess

import pytest
from conftest import PYTHON

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else litellm asks for prices on the network

import art
from art.trajectories import History
from art.utils.trajectory_migration import deserialize_trajectory_groups, serialize_trajectory_groups
from openai.types.chat.chat_completion import Choice

TRIP = """
import pathlib, sys
from rolloutlab.session import Session
from rolloutlab.settings import Settings

there, back, home = map(pathlib.Path, sys.argv[1:])
lab = Session(Settings(home=home))
lab.files.import_(there, "trip")
lab.files.export("trip", back, "art")
lab.close()
"""


def choice(content, logprob):
    token = {"token": content, "bytes": list(content.encode()), "logprob": logprob, "top_logprobs": []}
    message = {"role": "assistant", "content": content}
    logprobs = {"content": [token], "refusal": None}
    return Choice.model_validate({"finish_reason": "stop", "index": 0, "message": message, "logprobs": logprobs})


@pytest.fixture
def groups():
    tool = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
    return [
        art.TrajectoryGroup(
            [
                art.Trajectory(
                    messages_and_choices=[{"role": "user", "content": f"{i} + {i}?"}, choice(str(i + n), -0.1 - n / 7)],
                    tools=[tool],
                    additional_histories=[History(messages_and_choices=[{"role": "user", "content": "and?"}])],
                    reward=n / 3,
                    metrics={"right": n == i, "n": n},
                    metadata={"who": "ada", "n": n},
                    logs=["begun"],
                )
                for n in range(3)
            ],
            metadata={"sum": 2 * i},
        )
        for i in range(2)
    ]


@pytest.fixture
def travel(tmp_path):
    """Takes the text of a file through a lab and back."""

    def go(text, name):
        (tmp_path / name).write_text(text)
        back = tmp_path / f"back-{name}"
        subprocess.run([PYTHON, "-c", TRIP, tmp_path / name, back, tmp_path / "lab"], check=True)
        return back.read_text()

    return go


def kept(group):
    """What of a group in a file must come back, without nulls; a lab adds to the metadata of its trajectories."""
    names = ("messages_and_choices", "tools", "additional_histories", "reward", "metrics", "logs")
    return [{name: without_nulls(each[name]) for name in names} for each in group["trajectories"]]


def without_nulls(value):
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return list(map(without_nulls, value)) if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["groups.jsonl", "groups.json"])
def test_groups_come_back_with_their_choices_logprobs_and_rewards(groups, travel, name):
    dumped = [group.model_dump(mode="json") for group in groups]
    text = json.dumps(dumped) if name.endswith(".json") else "\n".join(map(json.dumps, dumped))
    back = travel(text, name)
    read = json.loads(back) if name.endswith(".json") else list(map(json.loads, back.splitlines()))
    assert list(map(kept, read)) == list(map(kept, dumped))
    assert [group["metadata"] for group in read] == [group.metadata for group in groups]
    again = deserialize_trajectory_groups("\n".join(map(json.dumps, read)))
    for before, after in zip(groups, again, strict=True):
        for one, other in zip(before, after, strict=True):
            assert other.messages_and_choices == one.messages_and_choices
            assert isinstance(other.messages_and_choices[1], Choice)
            assert one.metadata.items() <= other.metadata.items()


def test_the_lines_that_the_library_itself_writes_are_read(groups, travel):
    back = travel(serialize_trajectory_groups(groups), "old.jsonl")
    again = deserialize_trajectory_groups(back)
    assert [[each.reward for each in group] for group in again] == [[each.reward for each in group] for group in groups]
    assert [group.trajectories[0].messages() for group in again] == [g.trajectories[0].messages() for g in groups]
