"""Chat completions, as a client sees them."""

import pytest

from rolloutlab.errors import NotFoundError, RefusedError, SignInError


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
    with pytest.raises(RefusedError, match="400 stream is not offered"):
        service.chat(stream=True)


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(service):
    with pytest.raises(RefusedError, match=r"the prompt has \d+ tokens and the policy's context 128"):
        service.chat("word " * 200)


def test_a_setting_out_of_range_is_refused_by_name(service):
    body = {"model": "tiny", "messages": [], "temperature": -1}
    with pytest.raises(RefusedError, match="400 temperature"):
        service.call("POST", "/v1/chat/completions", json=body)


def test_a_message_with_an_unknown_role_is_refused_at_its_place(service):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]}
    with pytest.raises(RefusedError, match=r"400 messages\.1\.role: role must be one of"):
        service.call("POST", "/v1/chat/completions", json=body)


def test_a_chat_without_messages_is_refused(service):
    with pytest.raises(RefusedError, match="400 messages is empty"):
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
