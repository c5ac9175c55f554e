"""Reasoning that is written in the content of an answer is learned as that in a field of its own."""

import pytest

from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.api.wire.fine_tuning import Conversation
from rolloutlab.errors import RenderingError
from rolloutlab.policy.fine_tuning import read_conversations
from rolloutlab.policy.model import base_of
from rolloutlab.training.fine_tuning import as_line
from tests.policies import policy_with
from tests.policy.test_families import DROPS, HARMONY, OPENS

TURN = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|A|>ANSWER<|over|>{% else %}<|U|>{{ m.content }}{% endif %}"
)
CUTS = TURN.replace("ANSWER", "{{ m.content.split('</think>')[-1] }}")
CUTS += "{% endfor %}{% if add_generation_prompt %}<|A|>{% endif %}"
SPACED = TURN.replace("ANSWER", "<think>{{ m.reasoning_content or '' }}</think>{{ m.content }}")
SPACED += "{% endfor %}{% if add_generation_prompt %}<|A|>{{ '<think>\n' }}{% endif %}"
TEXT = TURN.replace("ANSWER", "{{ m.content }}") + "{% endfor %}{% if add_generation_prompt %}<|A|>{% endif %}"
FAMILIES = {
    "a field": (DROPS.strip(), "<|over|>", "<think>\nbecause\n</think>\n\n42<|over|>"),
    "a prompt that opens it, and cut (R1)": (OPENS.strip(), "<|over|>", "because\n</think>\n\n42<|over|>"),
    "cut": (CUTS, "<|over|>", "<think>\nbecause\n</think>\n\n42<|over|>"),
    "a channel": (
        HARMONY.strip().replace(
            "<|start|>assistant<|channel|>final",
            "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
            "<|start|>assistant<|channel|>final",
        ),
        "<|return|>",
        "<|channel|>analysis<|message|>because<|end|><|start|>assistant<|channel|>final<|message|>42<|return|>",
    ),
    "a prompt with other white space": (SPACED, "<|over|>", "because</think>42<|over|>"),
    "text": (TEXT, "<|over|>", "<think>\nbecause\n</think>\n\n42<|over|>"),
}
INLINE = "<think>\nbecause\n</think>\n\n42"
ASKED = {"role": "user", "content": "why"}
SHAPES = {
    "messages": {"messages": [ASKED, {"role": "assistant", "content": INLINE}]},
    "content parts": {"messages": [ASKED, {"role": "assistant", "content": [{"type": "text", "text": INLINE}]}]},
    "ShareGPT": {"conversations": [{"from": "human", "value": "why"}, {"from": "gpt", "value": INLINE}]},
    "prompt and completion": {"prompt": "why", "completion": INLINE},
    "TRL's messages": {"prompt": [ASKED], "completion": [{"role": "assistant", "content": INLINE}]},
    "a field": {"messages": [ASKED, {"role": "assistant", "content": "42", "reasoning_content": "because"}]},
    "another field": {"messages": [ASKED, {"role": "assistant", "content": "42", "thinking": "because"}]},
    "a Choice": {
        "messages_and_choices": [
            ASKED,
            {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": INLINE}},
        ]
    },
}


@pytest.fixture(scope="module")
def policy_of(tmp_path_factory):
    """Makes the policy of a family once."""
    policies = {}

    def make(family):
        template, end, _ = FAMILIES[family]
        if family not in policies:
            policies[family] = policy_with(template, tmp_path_factory.mktemp("policies") / "tiny", (end,))
        return policies[family]

    return make


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def read(policy, line):
    """The last text that is learned of a line, and what cannot be read."""
    found = read_conversations([("line 1", Conversation.model_validate(as_line(line, "line 1")))], base_of(policy))
    if not found.sequences:
        return None, found.unreadable
    sequence = found.sequences[0][-1]
    begin = bytes(sequence.trained).rindex(b"\0") + 1
    return policy.tokenizer.decode(list(sequence.ids[begin:]), skip_special_tokens=False), found.unreadable


def answer(policy, *messages):
    """The text of the last message, as its logprobs are computed."""
    request = ChatRequest.model_validate({"model": "m", "messages": list(messages)})
    ids = base_of(policy).renderer().answer(request.messages)
    return policy.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("shape", SHAPES)
def test_reasoning_in_the_content_is_learned_as_that_in_a_field(policy_of, family, shape):
    assert read(policy_of(family), SHAPES[shape]) == (FAMILIES[family][2], {})


def test_logprobs_are_those_of_the_same_tokens(policy_of, family):
    inline = {"role": "assistant", "content": INLINE}
    field = {"role": "assistant", "content": "42", "reasoning_content": "because"}
    assert answer(policy_of(family), ASKED, inline) == answer(policy_of(family), ASKED, field) == FAMILIES[family][2]


@pytest.mark.parametrize("content", ["<think>because</think>42", "because\n</think>\n\n42"])
def test_reasoning_in_other_white_space_or_opened_by_the_prompt_is_learned_alike(policy_of, family, content):
    learned = answer(policy_of(family), ASKED, {"role": "assistant", "content": content})
    assert learned == (f"{content}<|over|>" if family == "text" else FAMILIES[family][2])


def test_reasoning_in_the_content_of_an_earlier_turn_is_read_as_that_in_a_field(policy_of, family):
    def prompt(**told):
        messages = [ASKED, {"role": "assistant", **told}, {"role": "user", "content": "and"}]
        request = ChatRequest.model_validate({"model": "m", "messages": messages})
        return base_of(policy_of(family)).renderer().prompt(request.messages)

    assert prompt(content=INLINE) == prompt(content="42", reasoning_content="because")


def test_an_answer_after_empty_reasoning_is_learned_as_without(policy_of, family):
    empty = {"role": "assistant", "content": "<think>\n\n</think>\n\n42"}
    plain = {"role": "assistant", "content": "42"}
    if family == "text":
        assert answer(policy_of(family), ASKED, empty) == "<think>\n\n</think>\n\n42<|over|>"
    else:
        assert answer(policy_of(family), ASKED, empty) == answer(policy_of(family), ASKED, plain)


def test_reasoning_without_an_end_is_named_in_the_report_and_not_learned_as_an_answer(policy_of, family):
    line = {"prompt": "why", "completion": "<think>\nbecause"}
    if family == "text":
        assert read(policy_of(family), line) == ("<think>\nbecause<|over|>", {})
    else:
        error = "messages.1: the reasoning of the answer has no </think>"
        assert read(policy_of(family), line) == (None, {error: ["line 1"]})


@pytest.mark.parametrize("content", ["Well. <think>\na\n</think>\nb", "<think>a</think>b<think>c</think>d"])
def test_text_that_a_template_cuts_off_is_named_in_the_report(policy_of, content):
    for family in ("a prompt that opens it, and cut (R1)", "cut"):
        error = "messages.1: the chat template drops a part of the answer"
        assert read(policy_of(family), {"prompt": "why", "completion": content}) == (None, {error: ["line 1"]})


def test_reasoning_that_a_template_drops_from_an_answer_is_named_in_the_report(tmp_path):
    only_calls = TURN.replace(
        "ANSWER", "{% if m.tool_calls %}{{ m.reasoning }}{{ m.tool_calls[0].function.name }}{% endif %}{{ m.content }}"
    )
    policy = policy_with(
        only_calls + "{% endfor %}{% if add_generation_prompt %}<|A|>{% endif %}", tmp_path, ("<|over|>",)
    )
    error = "messages.1: the chat template drops the reasoning of the answer"
    for shape in ("messages", "a field"):
        assert read(policy, SHAPES[shape]) == (None, {error: ["line 1"]})
    with pytest.raises(RenderingError) as raised:
        answer(policy, ASKED, {"role": "assistant", "content": INLINE})
    assert raised.value.hint == "leave it out of the message"


CLOSED = {  # the generation prompt ends with a thought that is over
    "cut, and the end alone (DeepSeek-V3.1)": CUTS.replace("<|A|>", "<|A|></think>"),
    "text after an empty thought (SmolLM3)": TEXT.replace("<|A|>", "<|A|>{{ '<think>\n\n</think>\n' }}"),
    "left out of answers (Nemotron-H)": CUTS.replace("%}<|A|>{% endif", "%}<|A|><think></think>{% endif"),
    "a channel left out of answers (Gemma 4)": TURN.replace(
        "ANSWER", "{% if m.thinking %}<|channel>thought\n{{ m.thinking }}<channel|>{% endif %}{{ m.content }}"
    )
    + "{% endfor %}{% if add_generation_prompt %}<|A|>{{ '<|channel>thought\n<channel|>' }}{% endif %}",
    "rendered where there is one (Qwen3.5)": TURN.replace(
        "ANSWER", "{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' + m.content }}"
    )
    + "{% endfor %}{% if add_generation_prompt %}<|A|>{{ '<think>\n\n</think>\n\n' }}{% endif %}",
    "in other white space": SPACED.replace("{{ '<think>\n' }}", "{{ '<think>\n\n</think>\n\n' }}"),
}


@pytest.fixture(params=CLOSED)
def closing(request, tmp_path):
    """A policy whose generation prompt closes the thought."""
    return policy_with(CLOSED[request.param], tmp_path / "tiny", ("<|over|>",))


def test_an_answer_after_a_prompt_that_closes_the_thought_is_learned_without_one(closing):
    empty = "<think>\n\n</think>\n\n42"
    for content in ("42", empty):
        assert read(closing, {"prompt": "why", "completion": content}) == ("42<|over|>", {})
        assert answer(closing, ASKED, {"role": "assistant", "content": content}) == "42<|over|>"


def test_reasoning_after_a_prompt_that_closes_the_thought_is_named_and_not_learned_as_a_second(closing):
    error = "messages.1: the chat template drops the reasoning of the answer"
    for shape in ("messages", "a field", "prompt and completion", "a Choice"):
        assert read(closing, SHAPES[shape]) == (None, {error: ["line 1"]})
    runs, [unended] = read(closing, {"prompt": "why", "completion": "<think>\nbecause"})
    assert (runs, "reasoning" in unended) == (None, True)


def test_reasoning_that_a_template_cuts_from_answers_and_keeps_beside_calls_is_learned_once(tmp_path):
    calls = "{% if m.tool_calls %}{{ m.content }}{{ m.tool_calls[0].function.name }}{% else %}CUT{% endif %}"
    template = TURN.replace("ANSWER", calls.replace("CUT", "{{ m.content.split('</think>')[-1] }}"))
    template += "{% endfor %}{% if add_generation_prompt %}<|A|>{{ '<think>\n' }}{% endif %}"
    policy = policy_with(template, tmp_path, ("<|over|>",))
    for shape in SHAPES.values():
        assert read(policy, shape) == ("because\n</think>\n\n42<|over|>", {})
    error = "messages.1: the reasoning of the answer has no </think>"
    assert read(policy, {"prompt": "why", "completion": "<think>\nbecause"}) == (None, {error: ["line 1"]})
