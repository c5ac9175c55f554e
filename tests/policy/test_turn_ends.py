"""Where a chat template ends an assistant's turn: sampling stops there, and fine-tuning and logprobs have the end."""

import pytest

from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.api.wire.fine_tuning import Conversation
from rolloutlab.errors import PolicyError, RenderingError
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.fine_tuning import read_conversations
from rolloutlab.policy.model import base_of
from rolloutlab.policy.rendering import Renderer
from tests.decoding import decode
from tests.long_talks import learned_alike
from tests.policies import policy_with

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TURNS = (  # the next role's mark ends a turn
    "{% for m in messages %}{{ '<|observation|>' if m.role == 'tool' else '<|' + m.role + '|>' }}"
    "{{ MARK }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' + MARK }}{% endif %}{# <|user|><|observation|> #}"
)
CHANNELS = (
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.role == 'assistant' and m.tool_calls %}"
    " to={{ m.tool_calls[0].function.name }}<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}<|message|>{{ m.content }}"
    "{% if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}"
    "{% else %}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
BETWEEN = (
    "{% for m in messages %}<|role|>{{ m.role + '\n' + m.content }}{% if not loop.last %}<|sep|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|sep|><|role|>{{ 'assistant\n' }}{% endif %}"
)
CLOSED = (  # the content has marks of its own (ERNIE, Command A)
    "{% for m in messages %}<|turn|>{{ m.role }}{% if m.role == 'assistant' and m.tool_calls %}<|action|>"
    "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}<|/action|>"
    "{% elif m.role == 'assistant' %}{{ '<|response|>\n' + m.content + '\n<|/response|>\n' }}"
    "{% else %}{{ '<|text|>' + m.content }}{% endif %}<|over|>{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant{% endif %}{# <|eos|> #}"
)
TEMPLATES = {
    "a base model with a ChatML template": CHATML,
    "a base model whose talks end with its own mark": CHATML + "{% if not add_generation_prompt %}<|eos|>{% endif %}",
    "turns that end by the next role's mark": TURNS.replace("MARK", "'\n'"),
    "turns that end by the next role's mark on its own line": TURNS.replace("<|' + m.role", "\n<|' + m.role")
    .replace("'<|observation|>'", "'\n<|observation|>'")
    .replace("'<|assistant|>' + MARK", "'\n<|assistant|>'")
    .replace("{{ MARK }}", ""),
    "harmony whose configuration names no end of a turn": CHANNELS,
    "a separator between turns": BETWEEN,
    "content that has a closing mark": CLOSED,
    "content that has a closing mark before that of the talk": CLOSED.replace(
        "{# <|eos|> #}", "{% if not add_generation_prompt %}<|eos|>{% endif %}"
    ),
    "content that has a closing mark where each talk ends with the next role's mark": CLOSED.replace(
        "{% if add_generation_prompt %}<|turn|>assistant{% endif %}", "<|turn|>assistant"
    ),
    "content that has a closing mark and another in the last turn": CLOSED.replace(
        "<|over|>", "{% if loop.last and not add_generation_prompt %}<|last|>{% else %}<|over|>{% endif %}"
    ),
    "content that has a closing mark, after a user's turn that ends with none": CLOSED.replace(
        "{% else %}{{ '<|text|>' + m.content }}{% endif %}<|over|>", "<|over|>{% else %}{{ m.content }}{% endif %}"
    ),
    "content that has a closing mark and a separator": CLOSED.replace(
        "<|over|>", "{% if not loop.last or add_generation_prompt %}<|over|>{% endif %}"
    ),
}
ANSWERS = {
    "a base model with a ChatML template": "jumps<|im_end|>",
    "a base model whose talks end with its own mark": "jumps<|im_end|>",
    "turns that end by the next role's mark": "jumps<|user|>",
    "turns that end by the next role's mark on its own line": "jumps\n<|user|>",
    "harmony whose configuration names no end of a turn": "<|message|>jumps<|return|>",
    "a separator between turns": "jumps<|sep|>",
    "content that has a closing mark": "<|response|>\njumps\n<|/response|>\n<|over|>",
    "content that has a closing mark before that of the talk": "<|response|>\njumps\n<|/response|>\n<|over|>",
    "content that has a closing mark where each talk ends with the next role's mark": (
        "<|response|>\njumps\n<|/response|>\n<|over|>"
    ),
    "content that has a closing mark and another in the last turn": "<|response|>\njumps\n<|/response|>\n<|last|>",
    "content that has a closing mark, after a user's turn that ends with none": (
        "<|response|>\njumps\n<|/response|>\n<|over|>"
    ),
    "content that has a closing mark and a separator": "<|response|>\njumps\n<|/response|>\n<|over|>",
}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CALLING = [{"role": "user", "content": "what"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}]


@pytest.fixture(scope="module")
def policy_of(tmp_path_factory):
    """Makes the policy of a template once; its tokenizer and configuration name `<|eos|>` as the end alone."""
    policies = {}

    def make(template):
        if template not in policies:
            folder = tmp_path_factory.mktemp("policies") / "tiny"
            policies[template] = policy_with(template, folder, ("<|eos|>",), special=("<|user|>", "<|observation|>"))
        return policies[template]

    return make


@pytest.fixture(params=TEMPLATES)
def case(request):
    return request.param


def text(policy, ids):
    return policy.tokenizer.decode(list(ids), skip_special_tokens=False)


def learned(policy, *messages):
    """The texts that are learned of a conversation, and what cannot be read."""
    conversation = Conversation.model_validate({"messages": list(messages)})
    read = read_conversations([("line 1", conversation)], base_of(policy))
    runs = []
    for sequence in [each for sequences in read.sequences for each in sequences]:
        before = 0
        for token_id, trained in zip(sequence.ids, sequence.trained, strict=True):
            if trained and not before:
                runs.append([])
            if trained:
                runs[-1].append(token_id)
            before = trained
    return [text(policy, run) for run in runs], read.unreadable


def test_answers_are_learned_with_the_end_that_the_template_gives_them(policy_of, case):
    asked, told = {"role": "user", "content": "what"}, {"role": "assistant", "content": "jumps"}
    policy = policy_of(TEMPLATES[case])
    assert learned(policy, asked, told) == ([ANSWERS[case]], {})
    assert learned(policy, asked, told, asked, told) == ([ANSWERS[case]] * 2, {})


def test_a_learned_turn_is_read_once_with_one_end(policy_of, case):
    policy = policy_of(TEMPLATES[case])
    talk = [{"role": role, "content": word} for role, word in zip(["user", "assistant"] * 2, "abcd", strict=True)]
    read = read_conversations([("a", Conversation.model_validate({"messages": talk}))], base_of(policy))
    whole = text(policy, read.sequences[0][-1].ids)
    for mark in ("<|im_end|>", "<|user|>", "<|return|>", "<|sep|>", "<|over|>"):
        assert 2 * mark not in "".join(whole.split())
    template = policy.tokenizer.apply_chat_template(talk[:3], tokenize=False, add_generation_prompt=True)
    assert whole.replace("<|return|>", "<|end|>").startswith(template.replace("<|return|>", "<|end|>"))


def test_sampling_stops_at_the_end_that_the_template_gives_answers(policy_of, case):
    policy = policy_of(TEMPLATES[case])
    tokens = policy.tokenizer(ANSWERS[case], add_special_tokens=False)["input_ids"]
    request = CompletionRequest((1, 2), max_tokens=40, forced=(*tokens, *tokens))
    [completion] = decode(policy.base, [request], policy.end_ids)
    assert (completion.tokens, completion.finish) == (tokens, "stop")


def test_a_turn_with_calls_ends_as_the_template_ends_it_before_a_result(policy_of):
    ends = {
        "a base model with a ChatML template": "</tool_call><|im_end|>",
        "turns that end by the next role's mark": "</tool_call><|observation|>",
        "harmony whose configuration names no end of a turn": '{"a": 1}<|call|>',
        "content that has a closing mark": "<|/action|><|over|>",
    }
    for case, end in ends.items():
        policy = policy_of(TEMPLATES[case])
        [run], _ = learned(policy, *CALLING)
        assert run.endswith(end)
        assert policy.end_ids >= set(policy.tokenizer(end, add_special_tokens=False)["input_ids"][-1:])
        marks = policy.tokenizer("</tool_call><|end|><|/response|><|/action|>", add_special_tokens=False)["input_ids"]
        assert not policy.end_ids & set(marks), case


def test_calls_are_parsed_where_a_turn_ends_by_another_token_than_the_tokenizers(policy_of):
    renderer = base_of(policy_of(CHATML)).renderer()
    written = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    content, [call] = renderer.call_form.parse(f"well {written}")
    assert (content.strip(), call.name, call.arguments) == ("well", "add", '{"a": 1}')


@pytest.mark.parametrize(
    ("after", "what"),
    [("", "there is nothing after it"), ("\n\n", r"'\\n\\n' has none"), ("[over]", r"'\[over\]' has none")],
)
def test_a_policy_whose_template_ends_turns_with_no_token_is_refused_at_start(policy_of, after, what):
    template = "{% for m in messages %}{{ m.content }}" + after + "{% endfor %}"
    with pytest.raises(PolicyError, match=f"no token ends an assistant's turn in the chat template of .*: {what}") as e:
        policy_of(template)
    assert e.value.hint == "end the assistant's messages with {{ eos_token }} in its chat_template"


def test_an_answer_whose_end_cannot_be_found_is_named_in_the_report(policy_of):
    template = "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}"
    template += "{% if not m.tool_calls %}<|eos|>{% endif %}{% for c in m.tool_calls or [] %}call {{ c.function }}"
    template += "{% endfor %}{% else %}ask {{ m.content }}{% endif %}{% endfor %}"
    policy = policy_of(template)
    runs, unreadable = learned(policy, *CALLING)
    assert (runs, unreadable) == ([], {"no token ends this answer in the chat template": ["line 1"]})
    request = ChatRequest.model_validate({"model": "m", "messages": CALLING})
    with pytest.raises(RenderingError, match="no token ends this answer"):
        Renderer(policy.tokenizer, policy.end_ids).answer(request.messages)


def test_a_template_that_wants_a_system_message_first_ends_answers_as_without(policy_of):
    template = "{% if messages[0].role != 'system' %}{{ raise_exception('a system message first') }}{% endif %}"
    policy = policy_of(template + CHATML)
    assert policy.end_ids == set(policy.tokenizer("<|im_end|><|eos|>", add_special_tokens=False)["input_ids"])
    told = [{"role": role, "content": "jumps"} for role in ("system", "user", "assistant")]
    assert learned(policy, *told) == (["jumps<|im_end|>"], {})


def test_a_template_that_takes_no_talk_of_markers_keeps_the_ends_of_the_configuration(policy_of):
    policy = policy_of("{{ raise_exception('not this') }}" + CHATML)
    assert text(policy, policy.end_ids) == "<|eos|>"


def test_a_mark_of_the_configuration_that_begins_the_next_turn_is_not_the_end_of_one(policy_of):
    begins = "{% for m in messages %}{% if m.role == 'user' %}<|eos|>{% endif %}<|im_start|>"
    policy = policy_of(CHATML.replace("{% for m in messages %}<|im_start|>", begins))
    asked, told = {"role": "user", "content": "what"}, {"role": "assistant", "content": "jumps"}
    assert learned(policy, asked, told) == (["jumps<|im_end|>"], {})
    assert learned(policy, asked, told, asked, told) == (["jumps<|im_end|>"] * 2, {})
    tokens = policy.tokenizer("jumps<|im_end|>", add_special_tokens=False)["input_ids"]
    [completion] = decode(
        policy.base, [CompletionRequest((1, 2), max_tokens=40, forced=(*tokens, *tokens))], policy.end_ids
    )
    assert (completion.tokens, completion.finish) == (tokens, "stop")


def test_a_long_talk_of_turns_that_end_by_the_next_mark_is_learned_alike(policy_of, case):
    at_once = all(learned_alike(policy_of(TEMPLATES[case])).values())
    assert at_once == (not case.endswith("its own line") and not case.startswith(("harmony", "content")))
