"""A trajectory as a record: readable text, and everything known of it as metadata."""

import pytest

from rolloutlab.search.documents import record_of, rewards_of
from rolloutlab.store.changes import Entry, RewardChange


@pytest.fixture
def entry():
    """Makes an entry of one answer."""

    def make(**overrides):
        choice = {"finish_reason": "stop", "message": {"role": "assistant", "content": "Paris"}, "logprobs": None}
        record = {
            "name": "capitals:2/0/3",
            "collection": "capitals",
            "generation": 2,
            "group_id": 7,
            "group": "capitals:2/0",
            "prompt": [{"role": "user", "content": "Capital of France?"}],
            "items": [choice],
            "row": {
                "country": "France",
                "rank": 1,
                "names": ["a", "b"],
                "mixed": [1, "b"],
                "deep": {"a": 1},
                "none": None,
            },
            "extra": {},
            "model": "lab/practice",
            "step": 4,
            "created_at": "2026-01-31T12:00:00+00:00",
            "tokens": 2,
            "finish_reason": "stop",
        }
        return Entry(**record | overrides)

    return make


def test_the_document_is_the_conversation_with_its_roles(entry):
    assert record_of(entry()).document == "user: Capital of France?\n\nassistant: Paris"


def test_tool_calls_are_lines_of_the_document_and_their_names_metadata(entry):
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"city": "Paris"}'}}
    items = [
        {"message": {"role": "assistant", "content": None, "tool_calls": [call, call]}, "finish_reason": "tool_calls"},
        {"role": "tool", "content": [{"type": "text", "text": "2 million"}], "tool_call_id": "1"},
        {"message": {"role": "assistant", "content": "2 million"}, "finish_reason": "stop"},
    ]
    record = record_of(entry(items=items))
    line = 'assistant calls look_up({"city": "Paris"})'
    assert record.document.split("\n\n")[1:] == [f"{line}\n{line}", "tool: 2 million", "assistant: 2 million"]
    assert (record.metadata["tools"], record.metadata["turns"]) == (["look_up"], 2)


def reasoning_of(record):
    return [record.document[begin:end] for begin, end in record.reasoning]


def test_reasoning_is_a_part_of_the_document_in_every_turn(entry):
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    thoughts = "2 + 2: carry\n\nassistant: none 🤔", "Two lines\nmore", "\ud83e\udd14 é"
    items = [
        {
            "message": {"role": "assistant", "reasoning_content": thoughts[0], "content": None, "tool_calls": [call]},
            "finish_reason": "tool_calls",
        },
        {"role": "tool", "content": "<think>not mine</think>", "tool_call_id": "1"},
        {
            "message": {"role": "assistant", "content": f"<think>\n{thoughts[1]}\n</think>\n\n4"},
            "finish_reason": "stop",
        },
        {"role": "user", "content": "🤔?"},
        {"role": "assistant", "reasoning": thoughts[2], "content": "4"},
        {"role": "assistant", "reasoning": "", "content": "4"},
    ]
    record = record_of(entry(items=items))
    assert reasoning_of(record) == list(thoughts)
    assert record.metadata["reasoning"] == sum(map(len, thoughts))


@pytest.mark.parametrize("content", ["Paris", "", None, "<think></think>Paris", "<think>\n\n</think>\n\nParis"])
def test_no_reasoning_is_no_part_of_the_document(entry, content):
    items = [{"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]
    record = record_of(entry(items=items))
    assert (record.reasoning, record.metadata.get("reasoning")) == ((), None)


def test_metadata_is_what_is_known_and_what_fits_of_the_row(entry):
    assert record_of(entry(step=None), job="01ab").metadata == {
        "collection": "capitals",
        "generation": 2,
        "group": "capitals:2/0",
        "model": "lab/practice",
        "job": "01ab",
        "finish_reason": "stop",
        "turns": 1,
        "tokens": 2,
        "time": 1769860800.0,
        "row.country": "France",
        "row.rank": 1,
        "row.names": ["a", "b"],
    }


def test_rewards_say_where_a_member_stands_in_its_group():
    members = [
        RewardChange("a", 1.0, {"right": 1.0}, "function"),
        RewardChange("b", 0.0, {}, "hand"),
        RewardChange("c", None, {}, None),
    ]
    assert rewards_of(members) == {
        "a": {"reward": 1.0, "source": "function", "advantage_sign": 1, "reward.right": 1.0},
        "b": {"reward": 0.0, "source": "hand", "advantage_sign": -1},
    }


def test_equal_rewards_have_no_advantage():
    members = [RewardChange(name, 0.1, {}, "function") for name in "abc"]
    assert {each["advantage_sign"] for each in rewards_of(members).values()} == {0}
