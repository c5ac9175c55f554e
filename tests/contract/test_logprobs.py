"""What a checkpoint thinks of conversations that exist already."""

import pytest

from rolloutlab.api.wire.training import CreateTrainingJob
from rolloutlab.errors import NotFoundError, RefusedError

ASKED = {"role": "user", "content": "What is the capital of France?"}


def score(service, *histories, model=None):
    body = {"model": model or service.policy, "histories": [{"messages_and_choices": items} for items in histories]}
    return service.call("POST", "/v1/preview/logprobs", json=body)


def values(turn):
    return [entry["logprob"] for entry in turn["logprobs"]["content"]]


def test_a_sampled_turn_has_the_logprobs_it_was_sampled_with(practice_service):
    choices = practice_service.chat(messages=[ASKED], n=4, seed=1).choices
    found = score(practice_service, *[[ASKED, choice.to_wire()] for choice in choices])
    for choice, history in zip(choices, found["data"], strict=True):
        [turn] = history["turns"]
        assert turn["index"] == 1
        assert [e["token_id"] for e in turn["logprobs"]["content"]] == [t.token_id for t in choice.sampled_tokens()]
        assert values(turn) == pytest.approx([token.logprob for token in choice.sampled_tokens()], abs=1e-4)


def test_a_written_turn_gets_the_tokens_of_the_template_and_its_end(practice_service):
    [choice] = practice_service.chat(messages=[ASKED], temperature=0).choices
    written = {"role": "assistant", "content": choice.message.content}
    [history] = score(practice_service, [ASKED, written])["data"]
    assert values(history["turns"][0]) == pytest.approx([t.logprob for t in choice.sampled_tokens()], abs=1e-4)


def test_every_turn_of_a_conversation_is_scored(practice_service):
    written = {"role": "assistant", "content": [{"type": "text", "text": "Par"}, {"type": "text", "text": "is."}]}
    [choice] = practice_service.chat(messages=[ASKED, written, ASKED], seed=1).choices
    [history] = score(practice_service, [ASKED, written, ASKED, choice.to_wire()])["data"]
    assert [turn["index"] for turn in history["turns"]] == [1, 3]
    assert values(history["turns"][1]) == pytest.approx([t.logprob for t in choice.sampled_tokens()], abs=1e-4)


def test_imported_conversations_can_train_once_they_have_logprobs(practice_service):
    model = practice_service.register()
    histories = [[ASKED, {"role": "assistant", "content": text}] for text in ("Paris.", "London.")]
    found = score(practice_service, *histories, model="lab/first")
    assert found["model"] == "lab/first@0"
    trajectories = []
    for i, (items, history) in enumerate(zip(histories, found["data"], strict=True)):
        choice = {"finish_reason": "stop", "index": 0, "message": items[1], "logprobs": history["turns"][0]["logprobs"]}
        trajectories.append({"messages_and_choices": [items[0], choice], "reward": float(i)})
    job = {"model_id": str(model.id), "trajectory_groups": [{"trajectories": trajectories}]}
    events = practice_service.ended(practice_service.train(CreateTrainingJob.model_validate(job)))
    step = next(event.data for event in events if event.type == "gradient_step")
    assert step["ratio_max"] == pytest.approx(1, abs=1e-3)
    after = score(practice_service, *histories, model="lab/first@1")["data"]
    better, worse = (sum(values(after[i]["turns"][0])) - sum(values(found["data"][i]["turns"][0])) for i in (1, 0))
    assert better > 0 > worse


def test_what_a_template_does_not_read_of_a_message_does_not_matter(practice_service):
    odd = {"audio": {"id": "1"}, "name": "x", "annotations": 7}
    plain, written = score(
        practice_service,
        [ASKED, {"role": "assistant", "content": "Paris."}],
        [ASKED, {"role": "assistant", "content": "Paris.", **odd}],
    )["data"]
    assert values(plain["turns"][0]) == pytest.approx(values(written["turns"][0]), abs=1e-4)


def test_a_conversation_without_an_answer_has_no_turns(practice_service):
    assert score(practice_service, [ASKED], [])["data"] == [{"turns": []}, {"turns": []}]


def test_what_cannot_be_scored_is_refused_by_its_place(practice_service):
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(RefusedError, match=r"422 body: histories\.1: .*reads text, not image_url"):
        score(practice_service, [ASKED], [image, {"role": "assistant", "content": "a"}])
    with pytest.raises(RefusedError, match=r"422 .*longer than the policy's context"):
        score(practice_service, [ASKED, {"role": "assistant", "content": "word " * 5000}])
    with pytest.raises(NotFoundError, match="there is no model 'nobody'"):
        score(practice_service, [ASKED], model="nobody")


def test_tools_that_the_template_does_not_render_are_refused(service):
    function = {"name": "add", "parameters": {"type": "object", "properties": {}}}
    history = {"messages_and_choices": [ASKED, {"role": "assistant", "content": "Paris."}]}
    body = {"model": service.policy, "histories": [{**history, "tools": [{"type": "function", "function": function}]}]}
    with pytest.raises(RefusedError, match="the policy's chat template does not render tools"):
        service.call("POST", "/v1/preview/logprobs", json=body)
    assert service.call("POST", "/v1/preview/logprobs", json={**body, "histories": [history]})["data"]


def test_an_answer_that_was_cut_off_gets_no_end_that_was_not_sampled(practice_service):
    cut = {"finish_reason": "length", "index": 0, "message": {"role": "assistant", "content": "Par"}}
    for items in ([ASKED, cut], [ASKED, cut["message"] | {"finish_reason": "max_tokens"}]):
        with pytest.raises(RefusedError, match=r"histories\.0: messages_and_choices\.1: the answer was cut off"):
            score(practice_service, items)
