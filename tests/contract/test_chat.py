"""Chat completions, as a client sees them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rolloutlab.errors import NotFoundError, RefusedError, SignInError
from rolloutlab.policy.decode import Decoder


def test_eight_samples_of_a_prompt_are_one_request(service):
    completion = service.chat(n=8)
    assert [choice.index for choice in completion.choices] == list(range(8))
    assert completion.object == "chat.completion"
    counts = completion.usage
    assert counts.completion_tokens == sum(len(choice.sampled_tokens()) for choice in completion.choices)
    assert counts.total_tokens == counts.prompt_tokens + counts.completion_tokens


def test_every_token_comes_with_its_logprob_and_id_by_default(service):
    [choice] = service.chat(seed=1).choices
    tokens = choice.sampled_tokens()
    assert tokens
    assert all(token.logprob <= 0 and token.token_id is not None and token.top_logprobs == [] for token in tokens)
    said = b"".join(bytes(token.bytes) for token in tokens if token.token != "</s>")
    assert said.decode(errors="replace") == choice.message.content


def test_logprobs_can_be_left_out(service):
    [choice] = service.chat(logprobs=False).choices
    assert choice.logprobs is None


def test_the_same_seed_gives_the_same_answers(service):
    def answers(seed):
        return [choice.message.content for choice in service.chat(n=4, seed=seed).choices]

    assert answers(1) == answers(1)
    assert answers(1) != answers(2)


def test_temperature_zero_gives_one_answer(service):
    answers = {choice.message.content for choice in service.chat(n=4, temperature=0).choices}
    assert len(answers) == 1


def test_a_completion_says_which_checkpoint_it_is_from(service):
    service.register()
    completion = service.chat(model="lab/first")
    assert completion.model == "lab/first@0"
    assert completion.choices[0].model_extra["policy_version"] == 0


@pytest.mark.parametrize(
    "name", ["lab/first", "lab/first@0", "wandb-artifact:///local/lab/first:step0", "wandb-artifact://local/lab/first"]
)
def test_a_model_is_known_by_every_form_of_its_name(service, name):
    service.register()
    assert service.chat(model=name).model == "lab/first@0"


@pytest.mark.parametrize("name", ["nobody", "lab/nobody", "lab/first@7", "lab/first@x"])
def test_an_unknown_model_is_not_found(service, name):
    service.register()
    with pytest.raises(NotFoundError, match=r"there is no model|has no checkpoint"):
        service.chat(model=name)


def test_a_wrong_token_is_refused_in_the_form_openai_clients_read(service):
    with pytest.raises(SignInError, match="401 a valid bearer token is required"):
        service.call("GET", "/v1/models", token="wrong")


def test_what_is_not_offered_is_refused_and_not_ignored(service):
    with pytest.raises(RefusedError, match="400 logit_bias is not offered"):
        service.chat(logit_bias={"1": 5})


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(service):
    with pytest.raises(RefusedError, match=r"the prompt has \d+ tokens and the policy's context 128"):
        service.chat("word " * 200)


def test_a_setting_out_of_range_is_refused_by_name(service):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "temperature": -1}
    with pytest.raises(RefusedError, match="400 temperature"):
        service.call("POST", "/v1/chat/completions", json=body)


def test_a_message_with_an_unknown_role_is_refused_at_its_place(service):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]}
    with pytest.raises(RefusedError, match=r"400 messages\.1\.role: role must be one of"):
        service.call("POST", "/v1/chat/completions", json=body)


def test_a_chat_without_messages_is_refused(service):
    with pytest.raises(RefusedError, match="400 messages: List should have at least 1 item"):
        service.call("POST", "/v1/chat/completions", json={"model": "tiny", "messages": []})


@pytest.mark.parametrize("body", ['{"model": "tiny", ', '{"model": "\\ud83d", "messages": []}', "[" * 100_000, "NaN"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/preview/models", "/v1/preview/training-jobs"])
def test_a_body_that_is_no_json_of_whole_characters_is_refused(service, path, body):
    with pytest.raises(RefusedError, match=r"answered 4(00|22) "):
        service.call("POST", path, content=body)


def test_the_models_that_can_be_sampled_are_listed(service):
    service.register()
    listed = service.call("GET", "/v1/models")
    assert [card["id"] for card in listed["data"]] == ["tiny", "lab/first"]


def test_health_needs_no_token(service):
    assert service.call("GET", "/v1/health", token=None)["status"] == "ok"


def test_another_host_in_the_header_is_refused(service):
    with pytest.raises(RefusedError, match="400"):
        service.call("GET", "/v1/health", headers={"Host": "evil.example"})


@pytest.mark.parametrize("as_list", [False, True])
def test_a_stop_string_ends_the_answer_before_it(service, as_list):
    whole = service.chat(seed=3, max_tokens=40).choices[0].message.content
    stop = whole[6:8]
    [choice] = service.chat(seed=3, max_tokens=40, stop=[stop, "never said"] if as_list else stop).choices
    assert choice.message.content == whole[: whole.index(stop)]
    assert choice.finish_reason == "stop"
    assert len(choice.sampled_tokens()) < 40


def test_the_most_likely_tokens_come_with_each_sampled_one(service):
    [choice] = service.chat(top_logprobs=3, temperature=0).choices
    for token in choice.sampled_tokens():
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob)
        assert sorted((top.logprob for top in token.top_logprobs), reverse=True) == [
            top.logprob for top in token.top_logprobs
        ]


def test_a_token_that_cannot_come_is_not_among_the_most_likely(service, monkeypatch):
    logprobs = Decoder._logprobs

    def of_three(decoder):
        return (
            logprobs(decoder)
            .index_fill(1, torch.arange(23, 290), -torch.inf)
            .index_fill(1, torch.arange(20), -torch.inf)
        )

    monkeypatch.setattr(Decoder, "_logprobs", of_three)
    [choice] = service.chat(top_logprobs=20).choices
    assert all(0 < len(token.top_logprobs) < 20 for token in choice.sampled_tokens())


def test_several_checkpoints_answer_at_the_same_time(service):
    service.register("first")
    service.register("second")
    with ThreadPoolExecutor() as pool:
        names = ["lab/first", "lab/second", "tiny"] * 4
        answers = list(pool.map(lambda name: service.chat(model=name, seed=1, max_tokens=60), names))
    assert [answer.model.partition("@")[0] for answer in answers] == names
    assert len({answer.choices[0].message.content for answer in answers}) == 1  # checkpoint 0 is the base


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "1"}},
    ],
)
def test_a_part_that_the_policy_cannot_read_is_refused_at_its_place(service, part):
    content = [{"type": "text", "text": "what is this?"}, part]
    with pytest.raises(RefusedError, match=rf"400 messages\.1\.content\.1: this policy reads text, not {part['type']}"):
        service.chat(messages=[{"role": "system", "content": "a"}, {"role": "user", "content": content}])


@pytest.mark.parametrize(
    "message",
    [
        {"role": "developer", "content": "a"},
        {"role": "system", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "a"}], "name": "b"},
        {"role": "tool", "content": "a", "tool_call_id": "1"},
        {"role": "function", "content": None, "name": "a"},
    ],
)
def test_messages_of_every_kind_are_read(service, message):
    asked = [{"role": "user", "content": "a"}, message, {"role": "user", "content": "b"}]
    assert service.chat(messages=asked).choices


def test_a_call_that_the_template_does_not_write_is_refused_by_its_kind(service):
    said = {"role": "assistant", "function_call": {"name": "a", "arguments": "{}"}}
    with pytest.raises(RefusedError, match=r"400 messages\.1: .* does not render messages of the kind function_call"):
        service.chat(messages=[{"role": "user", "content": "a"}, said, {"role": "user", "content": "b"}])


def test_the_last_of_the_two_limits_counts(service):
    [choice] = service.chat(max_tokens=20, max_completion_tokens=3, seed=3).choices
    assert len(choice.sampled_tokens()) == 3


@pytest.mark.parametrize("header", ["Vendor-Project", "OpenAI-Project"])
def test_tokens_are_counted_by_project(start, header):
    service = start()
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "seed": 1}
    counts = [
        service.call("POST", "/v1/chat/completions", json=body, headers={header: "team/project"})["usage"]
        for _ in range(2)
    ]
    service.chat()
    without, with_project = service.call("GET", "/v1/preview/usage")["data"]
    assert (without["project"], without["requests"]) == ("", 1)
    assert with_project == {
        "project": "team/project",
        "model": "tiny",
        "requests": 2,
        "prompt_tokens": sum(count["prompt_tokens"] for count in counts),
        "completion_tokens": sum(count["completion_tokens"] for count in counts),
    }


def test_a_text_of_megabytes_is_refused_without_being_tokenised(service):
    with pytest.raises(RefusedError, match=r"400 [\d,]+ characters do not fit into the policy's context of 128 tokens"):
        service.chat("ab " * 1_000_000)


def test_a_body_without_bounds_is_refused(service):
    with pytest.raises(RefusedError, match=r"413 the body is larger than 64,000,000 bytes"):
        service.call("POST", "/v1/chat/completions", content='{"model": "' + "a" * 65_000_000 + '"}')


@pytest.mark.parametrize("option", [{"modalities": ["audio"]}, {"prediction": {"type": "content"}}, {"audio": {}}])
def test_an_option_that_would_be_ignored_is_refused(service, option):
    options = {name: value or {"voice": "x"} for name, value in option.items()}
    with pytest.raises(RefusedError, match=r"400 \w+ is not offered"):
        service.chat(**options)


def test_the_smallest_top_p_takes_the_most_likely_token(service):
    [choice] = service.chat(top_p=1e-300, seed=1).choices
    assert choice.message.content == service.chat(temperature=0).choices[0].message.content
