"""The whole loop with policies that have nothing in common: architecture, tokenizer, template, vocabulary."""

import json

import pytest

from rolloutlab.api.wire.training import CreateTrainingJob
from rolloutlab.errors import RefusedError
from rolloutlab.policy.model import load_policy

TOOL = {"type": "function", "function": {"name": "fox", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(params=["tiny_policy", "worded_policy", "practice", "practice-reasoning", "practice-games"])
def any_service(request, start):
    name = request.param if request.param.startswith("practice") else str(request.getfixturevalue(request.param))
    return start(load_policy(name))


@pytest.fixture
def worded_service(worded_policy, start):
    return start(load_policy(str(worded_policy)))


def test_a_policy_is_sampled_trained_and_sampled_again(any_service):
    model = any_service.register()
    asked = {"role": "user", "content": "the quick brown fox"}
    choices = any_service.chat(messages=[asked], model="lab/first", n=4, seed=2, max_tokens=12).choices
    trajectories = [
        {"messages_and_choices": [asked, choice.to_wire()], "reward": float(i)} for i, choice in enumerate(choices)
    ]
    job = CreateTrainingJob.model_validate(
        {"model_id": str(model.id), "trajectory_groups": [{"trajectories": trajectories}]}
    )
    events = any_service.ended(any_service.train(job))
    step = next(event.data for event in events if event.type == "gradient_step")
    assert step["ratio_max"] == pytest.approx(1, abs=1e-3)
    assert step["row_tokens"] == sum(len(choice.sampled_tokens()) for choice in choices)
    assert any_service.chat(model="lab/first").model == "lab/first@1"


def test_a_stream_is_the_whole_completion_whatever_the_tokenizer(any_service):
    for seed in range(3):
        whole = any_service.chat(seed=seed, max_tokens=30).choices[0]
        chunks = any_service.stream(seed=seed, max_tokens=30)
        assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == whole.message.content


def test_several_turns_train_as_they_were_sampled(any_service):
    model = any_service.register()
    asked = {"role": "user", "content": "the lazy dog"}
    first = any_service.chat(messages=[asked], seed=1, max_tokens=6).choices[0]
    second = any_service.chat(messages=[asked, first.message.to_wire(), asked], seed=2, max_tokens=6).choices[0]
    items = [asked, first.to_wire(), asked, second.to_wire()]
    trajectories = [{"messages_and_choices": items, "reward": float(i)} for i in range(2)]
    job = CreateTrainingJob.model_validate(
        {"model_id": str(model.id), "trajectory_groups": [{"trajectories": trajectories}]}
    )
    events = any_service.ended(any_service.train(job))
    steps = [event.data for event in events if event.type == "gradient_step"]
    if steps:  # the second turn read the text of the first, which may be written with other tokens than were sampled
        assert steps[0]["ratio_max"] == pytest.approx(1, abs=0.05)
    else:
        report = next(event.data for event in events if event.type == "preflight")
        assert "rewrites earlier turns" in "".join(report["unreadable"])


def test_tokens_outside_the_tokenizers_vocabulary_are_never_sampled_into_nonsense(worded_service):
    for choice in worded_service.chat(n=16, seed=1, max_tokens=40, temperature=2.0).choices:
        assert isinstance(choice.message.content, str)
        assert all(token.token_id is not None for token in choice.sampled_tokens())


def test_a_forced_call_begins_as_this_policys_template_begins_one(worded_service):
    tool_choice = {"type": "function", "function": {"name": "fox"}}
    [choice] = worded_service.chat(tools=[TOOL], tool_choice=tool_choice, max_tokens=40).choices
    said = "".join(token.token for token in choice.sampled_tokens())
    assert said.replace(" ", "").startswith('[TOOL_CALLS][{"name":"fox","arguments":')


def test_a_call_of_this_policys_form_is_rendered_and_read(worded_service):
    call = {"id": "1", "type": "function", "function": {"name": "fox", "arguments": json.dumps({"a": 1})}}
    asked = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    with pytest.raises(RefusedError, match="400 model"):
        worded_service.call("POST", "/v1/chat/completions", json={"messages": asked})
    assert worded_service.chat(messages=[*asked, {"role": "tool", "content": "2", "tool_call_id": "1"}]).choices
