"""Kinds of messages that a chat template does not know: given as the nearest that it writes, or refused by name."""

import copy
import json
import re
from dataclasses import replace

import pytest

from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.api.wire.training import CreateTrainingJob
from rolloutlab.errors import RefusedError
from rolloutlab.policy.rendering import Renderer
from rolloutlab.session import Session
from rolloutlab.settings import Settings

STRICT = (
    "<s>{% for m in messages %}{% if m.role == 'system' %}[ask]system {{ m.content }}"
    "{% elif m.role == 'user' %}[ask]user {{ m.content }}"
    "{% elif m.role == 'tool' %}[ask]tool {{ m.content }}"
    "{% elif m.role == 'assistant' %}[tell]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}</s>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}[tell]{% endif %}"
)
"""Knows four roles and leaves every other message out without a word, as most templates do."""
BARE = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}[ask]{{ m.content }}"
    "{% elif m.role == 'assistant' %}[tell]{{ m.content }}</s>{% endif %}{% endfor %}[tell]"
)
"""Knows two."""
RAISES = (
    "<s>{% for m in messages %}{% if m.role not in ['user', 'assistant', 'system'] %}"
    "{{ raise_exception('roles are user, assistant and system') }}{% endif %}[ask]{{ m.role }} {{ m.content }}"
    "{% endfor %}[tell]"
)
EITHER = (
    "<s>{% for m in messages %}{% if m.role == 'assistant' %}[tell]{% if m.tool_calls %}"
    "{{ m.tool_calls[0].function | tojson }}{% else %}{{ m.content }}{% endif %}</s>"
    "{% else %}[ask]{{ m.role }} {{ m.content }}{% endif %}{% endfor %}[tell]"
)
"""Writes the first call of an answer or its content, never both, as templates of well-known models do."""
WITH_TOOLS = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}[ask]{{ m.content }}{% else %}[tell]{{ m.content }}"
    "{% if tools %}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endif %}</s>"
    "{% endif %}{% endfor %}[tell]"
)
"""Writes calls only where there are tools."""
IDS = (
    "<s>{% for m in messages if m.role != 'function' %}[ask]{{ m.role }} {{ m.content }}"
    "{% if m.role == 'tool' %}{{ m.tool_call_id }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ c.id }} {{ c.function | tojson }}{% endfor %}{% endfor %}[tell]"
)
"""Writes which call a result is of."""
NATIVE = "<s>{% for m in messages %}[ask]{{ m.role }} {{ m.content }}{% endfor %}[tell]"

USER = {"role": "user", "content": "a question"}
ASKS = {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"a": 1}'}}
CALLS = {"id": "call00001", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


CUSTOM = {"id": "c9", "type": "custom", "custom": {"name": "grep", "input": "a"}}


def called(*functions, **more):
    """An assistant's message with calls of these functions, by name."""
    calls = [{**CALLS, "id": f"c{i}", "function": {"name": f, "arguments": "{}"}} for i, f in enumerate(functions)]
    return {"role": "assistant", "tool_calls": calls, **more}


IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}


@pytest.fixture
def with_template(policy, start):
    def make(template):
        tokenizer = copy.deepcopy(policy.tokenizer)
        tokenizer.chat_template = template
        return start(replace(policy, tokenizer=tokenizer))

    return make


def prompt_tokens(service, *messages):
    return service.chat(messages=list(messages), max_tokens=1).usage.prompt_tokens


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ([{"role": "developer", "content": "be quick"}, USER], [{"role": "system", "content": "be quick"}, USER]),
        (
            [USER, ASKS, {"role": "function", "name": "add", "content": "three"}],
            [
                USER,
                {"role": "assistant", "content": "", "tool_calls": [CALLS]},
                {"role": "tool", "tool_call_id": "call00001", "content": "three"},
            ],
        ),
        (
            [USER, {"role": "assistant", "content": None, "refusal": "I will not"}, USER],
            [USER, {"role": "assistant", "content": "I will not"}, USER],
        ),
        (
            [USER, {"role": "assistant", "audio": {"id": "1", "transcript": "spoken words"}}, USER],
            [USER, {"role": "assistant", "content": "spoken words"}, USER],
        ),
    ],
    ids=["developer", "function", "refusal", "audio"],
)
def test_a_kind_that_the_template_leaves_out_is_read_as_its_equal(with_template, sent, read):
    service = with_template(STRICT)
    assert prompt_tokens(service, *sent) == prompt_tokens(service, *read)


def test_a_kind_that_the_template_writes_itself_is_left_as_it_is(with_template):
    service = with_template(NATIVE)
    asked = {"role": "system", "content": "be quick"}
    assert prompt_tokens(service, {**asked, "role": "developer"}, USER) != prompt_tokens(service, asked, USER)


def test_a_role_that_the_template_refuses_is_read_as_its_equal_too(with_template):
    service = with_template(RAISES)
    asked = {"role": "system", "content": "be quick"}
    assert prompt_tokens(service, {**asked, "role": "developer"}, USER) == prompt_tokens(service, asked, USER)


@pytest.mark.parametrize(
    ("place", "kind", "messages"),
    [
        (0, "developer", [{"role": "developer", "content": "be quick"}, USER]),
        (0, "system", [{"role": "system", "content": "be quick"}, USER]),
        (1, "function", [USER, {"role": "function", "name": "add", "content": "3"}]),
        (1, "function_call", [USER, ASKS, USER]),
        (1, "tool", [USER, {"role": "tool", "tool_call_id": "1", "content": "3"}]),
        (1, "tool_calls", [USER, called("add"), USER]),
        (1, "tool_calls", [USER, called("add", content="I count"), USER]),
        (1, "custom", [USER, {**ASKS, "function_call": None, "tool_calls": [CUSTOM]}, USER]),
    ],
)
def test_a_kind_that_would_be_dropped_is_a_400_that_names_it(with_template, place, kind, messages):
    with pytest.raises(RefusedError, match=rf"400 messages\.{place}: .* does not render messages of the kind {kind}$"):
        with_template(BARE).chat(messages=messages)


def test_calls_of_a_user_are_properties_of_the_client_and_not_calls(with_template):
    for template in (STRICT, BARE):
        service = with_template(template)
        for extra in ({"tool_calls": [{"x": 1}]}, {"tool_calls": "none"}, {"function_call": {"name": 5}}):
            assert prompt_tokens(service, {**USER, **extra}) == prompt_tokens(service, USER)


def test_an_audio_whose_transcript_is_no_text_is_a_400(with_template):
    spoken = {"role": "assistant", "audio": {"id": "a", "transcript": 5}, "tool_calls": [CALLS]}
    with pytest.raises(RefusedError, match=r"400 messages\.1"):
        with_template(STRICT).chat(messages=[USER, spoken, USER])


def test_a_custom_call_beside_one_that_the_template_writes_is_not_dropped_in_silence(with_template):
    both = {"role": "assistant", "tool_calls": [CALLS, CUSTOM]}
    functions_alone = STRICT.replace("or [] %}", "or [] if c.function %}")
    with pytest.raises(RefusedError, match=r"400 messages\.1: .* does not render messages of the kind custom$"):
        with_template(functions_alone).chat(messages=[USER, both, USER])


def test_content_that_the_template_leaves_out_beside_calls_is_not_read_and_of_several_calls_all_are_refused(
    with_template,
):
    service = with_template(EITHER)
    assert service.chat(messages=[USER, called("add", content=" \n"), USER]).choices  # a blank is no content
    alone = prompt_tokens(service, USER, called("add"), USER)
    assert prompt_tokens(service, USER, called("add", content="I count"), USER) == alone
    with pytest.raises(RefusedError, match=r"400 messages\.2\.tool_calls: .* renders only one call per message \("):
        service.chat(messages=[USER, called("add"), called("add", "add", "add"), USER])


def test_an_empty_list_of_calls_is_none_for_a_template_that_looks_for_the_field(with_template):
    by_field = STRICT.replace("[tell]{{ m.content }}", "[tell]{% if 'tool_calls' not in m %}{{ m.content }}{% endif %}")
    service, answered = with_template(by_field), {"role": "assistant", "content": "nothing to add up"}
    plain = prompt_tokens(service, USER, answered, USER)
    assert prompt_tokens(service, USER, {**answered, "tool_calls": []}, USER) == plain


def test_a_template_that_writes_calls_only_beside_tools_is_tried_with_the_tools(with_template, trajectory):
    service = with_template(WITH_TOOLS)
    offered = [{**told(trajectory, float(i), USER, called("add")), "tools": [TOOL]} for i in range(2)]
    report = preflight_of(service, job_of(service, *offered, told(trajectory, 0.5, USER, called("add"))))
    assert report["trainable_trajectories"] == 2
    [[why, names]] = report["unreadable"].items()
    assert why.endswith(".1: this policy's chat template does not render messages of the kind tool_calls")
    assert names == ["group 0, trajectory 2"]


@pytest.mark.parametrize("other", [CALLS["function"], {"name": "sub", "arguments": "{}"}])
def test_a_function_call_beside_tool_calls_is_one_more_call_or_the_same_one(with_template, other):
    service = with_template(STRICT)
    both = {"role": "assistant", "tool_calls": [CALLS], "function_call": other}
    written = {
        "role": "assistant",
        "tool_calls": [CALLS] if other == CALLS["function"] else [CALLS, {**CALLS, "function": other}],
    }
    assert prompt_tokens(service, USER, both) == prompt_tokens(service, USER, written)


def test_the_result_of_a_function_gets_the_id_of_the_call_that_it_answers(policy):
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.chat_template = IDS

    def asks(name):
        return {"role": "assistant", "function_call": {"name": name, "arguments": "{}"}}

    def result(name):
        return {"role": "function", "name": name, "content": "3"}

    old = [USER, asks("add"), asks("sub"), result("add"), result("sub"), asks("add"), result("add"), result("mul")]
    sent = ChatRequest.model_validate({"model": "m", "messages": old})
    text = tokenizer.decode(Renderer(tokenizer, policy.end_ids).prompt(sent.messages))
    made, answered = re.findall(r"assistant (call\d{5}) ", text), re.findall(r"tool 3(call\d{5})", text)
    assert len(set(made)) == 3
    assert answered[:3] == made
    assert answered[3] not in made  # it answers no call


def test_an_audio_without_its_words_is_a_400_that_names_it(with_template):
    with pytest.raises(RefusedError, match=r"400 messages\.1\.audio: this policy reads text"):
        with_template(STRICT).chat(messages=[USER, {"role": "assistant", "content": "a", "audio": {"id": "1"}}, USER])


def job_of(service, *trajectories):
    model = service.register()
    return {"model_id": str(model.id), "trajectory_groups": [{"trajectories": list(trajectories)}]}


def preflight_of(service, job):
    """What a job reports before it trains; it ends well."""
    events = service.ended(service.train(CreateTrainingJob.model_validate(job)))
    assert events[-1].type == "training_ended", events[-1].data
    return next(event.data for event in events if event.type == "preflight")


def told(trajectory, reward, *before):
    """A trajectory that trains, with other messages before its own."""
    made = trajectory(reward)
    return {**made, "messages_and_choices": [*before, *made["messages_and_choices"]]}


def foreign(trajectory, **entry):
    made = json.loads(json.dumps(trajectory(0.5)))
    made["messages_and_choices"][-1]["logprobs"]["content"][2] = {
        "token": "unheard-of", "logprob": -1.0, "top_logprobs": [], **entry
    }  # fmt: skip
    return made


def test_what_cannot_be_read_is_left_out_by_its_place_and_the_rest_of_the_job_trains(with_template, trajectory):
    service = with_template(BARE)
    further = {"messages_and_choices": [{"role": "system", "content": "b"}, *trajectory(0)["messages_and_choices"]]}
    report = preflight_of(
        service,
        job_of(
            service,
            trajectory(0.0),
            trajectory(1.0),
            told(trajectory, 0.5, {"role": "developer", "content": "b"}),
            told(trajectory, 0.5, IMAGE),
            told(trajectory, 0.5, {"role": "assistant", "audio": {"id": "1"}}),
            foreign(trajectory),
            foreign(trajectory, bytes=[255, 254, 300]),
            foreign(trajectory, token_id=100_000),
            trajectory(0.5, additional_histories=[further]),
            told(trajectory, 0.5, USER, called("add", content="I count")),
        ),
    )
    items = "messages_and_choices"
    assert report["reasons"] == {"unreadable": 8}
    assert report["trainable_trajectories"] == 2
    assert report["unreadable"] == {
        f"{items}.0: this policy's chat template does not render messages of the kind developer": [
            "group 0, trajectory 2"
        ],
        f"{items}.0.content.0: this policy reads text, not image_url": ["group 0, trajectory 3"],
        f"{items}.0.audio: this policy reads text, and this audio has no transcript": ["group 0, trajectory 4"],
        f"{items}.1: the token 2, 'unheard-of', is not in the policy's vocabulary": [
            f"group 0, trajectory {i}" for i in (5, 6, 7)
        ],
        f"additional_histories.0.{items}.0: this policy's chat template does not render messages of the kind system": [
            "group 0, trajectory 8"
        ],
        f"{items}.1: this policy's chat template does not render messages of the kind tool_calls": [
            "group 0, trajectory 9"
        ],
    }


@pytest.mark.parametrize("broken", [b"\\ud83d", b"\\ude00\\ud83d", b"\xff", b"\xc3(", b"\xed\xa0\x80"])
def test_bytes_that_are_no_text_leave_out_their_trajectory_alone(service, trajectory, broken):
    job = job_of(
        service, trajectory(0.0), trajectory(1.0), told(trajectory, 0.5, {"role": "user", "content": "%HERE%"})
    )
    job["trajectory_groups"][0]["trajectories"][0]["logs"] = ["whole \U0001f600 and \\ud83d in words"]
    text = json.dumps(job).encode().replace(b"%HERE%", b"so " + broken)
    job_id = service.call("POST", "/v1/preview/training-jobs", content=text)["id"]
    events = service.ended(job_id)
    report = next(event.data for event in events if event.type == "preflight")
    assert report["trainable_trajectories"] == 2
    assert report["unreadable"] == {
        "messages_and_choices.0.content: its bytes are not valid text": ["group 0, trajectory 2"]
    }
    assert events[-1].type == "training_ended"


def test_a_notebook_is_told_by_the_embedded_services_check_what_it_cannot_read(tmp_path, trajectory):
    lines = [told(trajectory, float(i * i), *([IMAGE] if i == 2 else [])) for i in range(3)]
    (tmp_path / "groups.jsonl").write_text(json.dumps({"trajectories": lines}) + "\n")
    session = Session(Settings(home=tmp_path))
    session.files.import_(str(tmp_path / "groups.jsonl"), "seen", format="art")
    report = str(session.check("seen"))
    assert "2 of 3 trajectories will train" in report
    assert "1 left out: a part that the policy cannot read, messages_and_choices.0.content.0" in report
    session.close()


def test_a_notebook_warns_where_the_policy_of_a_service_is_not_known(session, tmp_path, trajectory):
    lines = [told(trajectory, float(i), IMAGE) for i in range(2)]
    (tmp_path / "groups.jsonl").write_text(json.dumps({"trajectories": lines}) + "\n")
    session.files.import_(str(tmp_path / "groups.jsonl"), "seen", format="art")
    report = str(session.check("seen"))
    assert "2 trajectories with parts other than text" in report
    shown = session.train("seen", {}, say=lambda _: None)
    assert "2 did not train: a part that the policy cannot read, messages_and_choices.0.content.0" in str(shown)
