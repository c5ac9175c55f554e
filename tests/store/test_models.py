"""What the lab remembers, read as a conversation and sent as the wire's trajectory."""

import dataclasses

import pytest

from rolloutlab.api.wire import trajectories as wire
from rolloutlab.api.wire.chat import AssistantMessage, SystemMessage, ToolMessage, UserMessage
from rolloutlab.store.models import CollectionSummary

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "map"}'}}


def user(content) -> UserMessage:
    return UserMessage.model_validate({"role": "user", "content": content})


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


@pytest.fixture
def with_a_tool(trajectory, choice):
    """A conversation in which the policy called a tool before it answered."""
    called = choice(None, finish_reason="tool_calls", message={"role": "assistant", "tool_calls": [CALL]})
    result = ToolMessage(role="tool", tool_call_id="c1", content="Paris is on it")
    return trajectory(SystemMessage(role="system", content="Look."), user("Where?"), called, result, choice("Paris"))


def test_the_answer_is_the_last_thing_that_the_policy_said(trajectory, choice):
    again = user("Are you sure?")
    assert trajectory(user("Where?"), choice("Lyon"), again, choice("Paris")).answer == "Paris"


def test_what_was_given_as_context_is_no_answer(trajectory, choice):
    context = AssistantMessage(role="assistant", content="context")
    assert trajectory(user("a"), choice("Paris"), context).answer == "Paris"
    assert trajectory(user("a"), context).answer == ""
    assert trajectory(user("a"), context).finish_reason is None


def test_an_answer_without_content_is_empty(trajectory, choice):
    call = choice(None, finish_reason="tool_calls", message={"role": "assistant", "tool_calls": [CALL]})
    assert trajectory(user("a"), call).answer == ""
    assert trajectory(user("a"), call).finish_reason == "tool_calls"


def test_the_prompt_is_the_last_user_message(trajectory, choice):
    items = (user("first"), choice("a"), user("second"), choice("b"))
    assert trajectory(*items).prompt == "second"


def test_the_prompt_of_parts_is_their_text(trajectory, choice):
    assert trajectory(user([text("What "), IMAGE, text("is it?")]), choice()).prompt == "What is it?"


def test_without_a_user_message_there_is_no_prompt(trajectory, choice):
    assert trajectory(SystemMessage(role="system", content="a"), choice()).prompt == ""


def test_the_messages_are_the_whole_conversation_as_plain_values(with_a_tool):
    assert with_a_tool.messages == [
        {"role": "system", "content": "Look."},
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "Paris is on it"},
        {"role": "assistant", "content": "Paris"},
    ]


def test_the_parts_of_a_message_and_what_nobody_specified_are_kept(trajectory, choice):
    parts = [{**text("What?"), "cache": {"ttl": 5}}, IMAGE]
    message = UserMessage.model_validate({"role": "user", "content": parts, "name": "ada", "x_flag": None})
    assert trajectory(message, choice()).messages[0] == {
        "role": "user",
        "content": parts,
        "name": "ada",
        "x_flag": None,
    }


def test_the_tokens_are_those_that_carry_logprobs(trajectory, choice):
    refusal = {"refusal": [{"token": "no", "logprob": -0.5, "top_logprobs": []}]}
    assert trajectory(user("a"), choice(), choice(logprobs=refusal), choice(logprobs=None)).tokens == 3
    assert trajectory(user("a")).tokens == 0


def test_the_wires_trajectory_says_all_there_is_to_say(trajectory, choice):
    scored = trajectory(reward=0.75, components={"right": 0.5, "short": 0.25}, source="function")
    assert scored.to_wire().to_wire() == {
        "messages_and_choices": [user("Capital of France?").to_wire(), choice().to_wire()],
        "reward": 0.75,
        "metrics": {"right": 0.5, "short": 0.25},
        "metadata": {
            "country": "France",
            "temperature": 1.0,
            "top_p": 1.0,
            "seed": 7,
            "name": "capitals/0/3",
            "model": "lab/practice",
        },
        "start_time": "2026-01-31T12:00:00.123456+00:00",
        "initial_policy_version": 2,
        "final_policy_version": 2,
    }


def test_the_wires_trajectory_survives_its_json(with_a_tool):
    sent = dataclasses.replace(with_a_tool, reward=1.0).to_wire()
    assert wire.Trajectory.model_validate_json(sent.to_json()).to_wire() == sent.to_wire()


def test_a_checkpoint_that_is_not_known_is_not_sent(trajectory):
    sent = trajectory(reward=1.0, step=None).to_wire().to_wire()
    assert not {"initial_policy_version", "final_policy_version"} & sent.keys()


def test_of_a_row_only_what_metadata_can_hold_is_sent(trajectory):
    row = {"n": 1, "x": 0.5, "yes": True, "none": None, "many": [1, 2], "deep": {"a": 1}}
    metadata = trajectory(reward=1.0, row=row).to_wire().metadata
    assert {name: value for name, value in metadata.items() if name in row} == {
        "n": 1,
        "x": 0.5,
        "yes": True,
        "none": None,
    }


def test_how_it_was_sampled_is_never_hidden_by_a_column_of_the_same_name(trajectory):
    row = {"temperature": 25.0, "model": "T", "name": "Ford", "top_p": 3}
    metadata = trajectory(reward=1.0, row=row).to_wire().metadata
    assert (metadata["temperature"], metadata["top_p"]) == (1.0, 1.0)
    assert (metadata["model"], metadata["name"]) == ("lab/practice", "capitals/0/3")


def test_what_a_trajectory_from_elsewhere_says_of_itself_goes_before_what_the_lab_knows(trajectory):
    tool = {"type": "function", "function": {"name": "add"}}
    extra = {
        "tools": [tool],
        "additional_histories": [{"messages_and_choices": [{"role": "user", "content": "and?"}]}],
        "metrics": {"turns": 3, "right": 0.0},
        "metadata": {"model": "gpt"},
        "final_policy_version": 9,
        "vendor": {"x": 1},
    }
    sent = trajectory(reward=1.0, components={"right": 1.0}, extra=extra).to_wire().to_wire()
    assert (sent["tools"], sent["additional_histories"]) == (extra["tools"], extra["additional_histories"])
    assert sent["metrics"] == {"turns": 3, "right": 1.0}
    assert (sent["metadata"]["model"], sent["metadata"]["name"]) == ("gpt", "capitals/0/3")
    assert (sent["initial_policy_version"], sent["final_policy_version"], sent["vendor"]) == (2, 9, {"x": 1})


def test_the_tokens_of_further_conversations_are_counted_beside_the_first(trajectory, choice):
    further = {"messages_and_choices": [{"role": "user", "content": "and?"}, choice().to_wire()]}
    found = trajectory(extra={"additional_histories": [further, {"messages_and_choices": []}]})
    assert found.history_tokens == (2, 2, 0)
    assert trajectory().history_tokens == (2,)


def test_the_answer_of_a_conversation_from_elsewhere_is_what_comes_after_the_prompt(trajectory):
    said = AssistantMessage.model_validate({"role": "assistant", "content": [{"type": "text", "text": "Paris"}]})
    assert trajectory(user("a"), said, given=1).answer == "Paris"
    assert trajectory(user("a"), said, given=2).answer == ""


def test_the_newest_generation_is_called_by_its_name_and_an_older_one_by_its_number():
    counted = {"groups": 0, "trajectories": 0, "scored": 0, "mean_reward": None, "plan": {}, "prompt_tokens": 0}
    summary = CollectionSummary(id=1, name="a", generation=2, bare=True, created_at="", completion_tokens=0, **counted)
    assert summary.label == "a"
    assert dataclasses.replace(summary, bare=False).label == "a:2"
