"""From what was found to something new: a conversation up to a turn, and hits as a collection."""

import pytest

from rolloutlab.api.wire.chat import Choice, UserMessage
from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.sampling.prompt import parse_chat
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import NewGroup, Score
from rolloutlab.trajectories.branch import Branch, copy_trajectories, take_branch
from tests.labs import lab_with


def said(text):
    return Choice.model_validate(
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    )


def asked(text):
    return UserMessage(role="user", content=text)


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    prompts = [NewGroup([asked("France?")], {"n": 1}), NewGroup([asked("Peru?")], {"n": 2})]
    turns = [said("Paris"), asked("Sure?"), said("Yes"), asked("Really?"), said("Quite")]
    groups = [[turns, said("Lyon")]] * 2
    collection = lab_with(lab, *groups, prompts=prompts, model="m", step=3, sampling={"seed": 1})
    result = [t for group in lab.groups(collection) for t in group.trajectories]
    lab.rewards.give([Score(t, float(i), {"right": float(i)}) for i, t in enumerate(result)], "function")
    yield lab
    lab.close()


def contents(messages):
    return [message["content"] for message in messages]


def test_a_branch_keeps_so_many_answers(lab):
    assert contents(take_branch(lab, "capitals:1/0/0", 0)) == ["France?"]
    assert contents(take_branch(lab, "capitals:1/0/0", 1)) == ["France?", "Paris", "Sure?"]
    assert contents(take_branch(lab, "capitals/0/0")) == ["France?", "Paris", "Sure?", "Yes", "Really?"]


@pytest.mark.parametrize("turn", [-1, 3, True, "1"])
def test_a_turn_that_is_not_there_is_refused(lab, turn):
    with pytest.raises(InputError, match="capitals/0/0 has 3 answers"):
        take_branch(lab, "capitals/0/0", turn)


@pytest.mark.parametrize(
    ("name", "error"),
    [("capitals/0", InputError), (7, InputError), ("capitals/0/9", NotFoundError), ("nobody/0/0", NotFoundError)],
)
def test_what_names_no_trajectory_is_refused(lab, name, error):
    with pytest.raises(error):
        take_branch(lab, name)


def test_the_cell_of_a_branch_says_its_messages(lab):
    messages = take_branch(lab, "capitals:1/0/0", 1)
    first, _, body = messages.cell("again").partition("\n")
    assert (first, parse_chat(body)) == ("%%chat again -n 8", messages)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "a\nuser: b"},
        {"role": "user", "content": " a "},
        {"role": "tool", "content": "1", "tool_call_id": "2"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
    ],
)
def test_what_the_text_of_a_cell_cannot_say_becomes_a_call(message):
    assert Branch([message]).cell("again") == f"lab.chat('again', {[message]!r}, n=8)"


def test_braces_in_a_message_are_no_place_for_a_value():
    messages = [{"role": "user", "content": "{{x}}"}]
    assert Branch(messages).cell("again") == f"lab.chat('again', lambda row: {messages!r}, n=8)"


def test_hits_become_a_collection_whose_groups_share_a_prompt(lab):
    label = copy_trajectories(lab, ["capitals:1/1/1", "capitals:1/0/0", "capitals:1/1/0"], "best")
    groups = lab.groups(lab.find(label))
    response = [
        [(t.prompt, t.answer, t.reward, t.components, t.source, t.step, t.row) for t in g.trajectories] for g in groups
    ]
    peru = "Peru?", {"n": 2}
    assert response == [
        [
            ("Peru?", "Lyon", 3.0, {"right": 3.0}, "function", 3, peru[1]),
            ("Peru?", "Quite", 2.0, {"right": 2.0}, "function", 3, peru[1]),
        ],
        [("France?", "Quite", 0.0, {"right": 0.0}, "function", 3, {"n": 1})],
    ]


def test_nothing_found_makes_no_collection(lab):
    with pytest.raises(NotFoundError):
        copy_trajectories(lab, [], "best")
    with pytest.raises(InputError):
        copy_trajectories(lab, ["capitals:1/0/0"], "no name")
    with pytest.raises(NotFoundError):
        copy_trajectories(lab, ["capitals:1/0/0", "capitals:1/0/7"], "best")
    assert [c.name for c in lab.collections()] == ["capitals"]
