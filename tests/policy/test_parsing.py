"""What was sampled becomes text and calls: by the form of the template, or as the tokenizer itself says."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.api.wire.chat import AssistantMessage, Choice, FunctionTool, UserMessage
from rolloutlab.api.wire.reasoning import split_reasoning
from rolloutlab.policy.parsing import CompletionParser, ReasoningStream
from rolloutlab.policy.rendering import Renderer
from rolloutlab.policy.tool_calls import Call

TOOL = FunctionTool.model_validate({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}})
USER = UserMessage(role="user", content="a")
RESPONSES = {
    "version": 1,
    "start_anchor": "[tell]",
    "defaults": {"role": "assistant"},
    "fields": {
        "content": {"content": "text"},
        "tool_calls": {
            "open": "<call>",
            "close": "</call>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
    },
}
TEMPLATE = (
    "<s>{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}[tell]"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}</s>"
    "{% else %}[ask]{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}[tell]{% endif %}"
)


@pytest.fixture
def reader(policy):
    """Makes the reader of a tokenizer with another template; with `responses` it says how its answers are parsed."""

    def make(responses=None, template=TEMPLATE, special=()):
        tokenizer = copy.deepcopy(policy.tokenizer)
        tokenizer.chat_template = template
        tokenizer.response_template = responses
        tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
        renderer = Renderer(tokenizer, policy.end_ids, policy.vocabulary)
        return tokenizer, CompletionParser(tokenizer, renderer, policy.end_ids)

    return make


def read(made, text, stops=(), tools=(TOOL,)):
    """What is read of a text, and what a stream shows of it while it comes."""
    tokenizer, reader = made
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    stream = reader.stream(stops, tools)
    shown = "".join(stream.feed(token_id) for token_id in ids)
    prompt = tokenizer("<s>[ask]a[tell]", add_special_tokens=False)["input_ids"]
    parsed = reader.message(ids, stops, prompt, tools)
    return parsed.content, parsed.calls, shown


CALL = '<call>{"name": "add", "arguments": {"a": 1}}</call>'
BOTH = pytest.mark.parametrize("responses", [None, RESPONSES], ids=["learned", "told"])


@BOTH
def test_a_call_is_read(reader, responses):
    made = reader(responses)
    made[1].check([TOOL])
    said, [call], shown = read(made, CALL)
    assert (said, shown, call.name, json.loads(call.arguments)) == ("", "", "add", {"a": 1})


@BOTH
def test_text_and_several_calls_are_told_apart(reader, responses):
    said, calls, shown = read(reader(responses), "Well. " + CALL + CALL)
    assert said.strip() == "Well."
    assert [call.name for call in calls] == ["add", "add"]
    assert said.startswith(shown)


@BOTH
@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "",
        "<call>",
        "<call>{",
        "<call>5</call>",
        "<call>[]</call>",
        '<call>"add"</call>',
        '<call>{"name": 1, "arguments": {}}</call>',
        '<call>{"arguments": {}}</call>',
        '<call>{"name": "add", "arguments": [1]}</call>',
        '<call>{"name": "add", "arguments": {"a": NaN}}</call>',
        '<call>{"name": "add", "arguments": {"a": 1e999}}</call>',
        '<call>{"name": "add", "arguments": {"a": "\\ud800"}}</call>',
        '<call>{"name": "\\ud800", "arguments": {}}</call>',
        '<call>{"name": "add", "arguments": {"a": ' + "1" * 5000 + "}}</call>",
        "<call>" + "[" * 3000,
        "\x01\x02<call>{}</call>",
    ],
)
def test_what_is_no_call_stays_text(reader, responses, text):
    said, calls, shown = read(reader(responses), text)
    assert (said, calls) == (text, [])
    assert said.startswith(shown)


@BOTH
def test_a_stop_string_inside_of_a_call_leaves_text(reader, responses):
    said, calls, shown = read(reader(responses), "Well. " + CALL, stops=["arguments"])
    assert (said, calls) == ('Well. <call>{"name": "add", "', [])
    assert said.startswith(shown)


@BOTH
def test_without_tools_a_call_is_text(reader, responses):
    assert read(reader(responses), CALL, tools=()) == (CALL, [], CALL)


def test_nothing_of_a_call_is_shown_where_its_marker_is_no_text(reader):
    made = reader(special=["<call>", "</call>"])
    said, [call], shown = read(made, CALL)
    assert (said, shown, call) == ("", "", Call("add", '{"a": 1}'))


@given(st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "\n", " ", "a", "<"])), st.booleans())
def test_a_stream_splits_reasoning_as_the_whole_text_does(pieces, begun):
    stream = ReasoningStream(begun)
    parts = [stream.feed(piece) for piece in pieces]
    reasoning, answer = split_reasoning("".join(pieces), begun)
    # what may still become a mark, and white space at the end of the reasoning, come with the end of the completion
    assert reasoning.startswith("".join(part[0] for part in parts))
    assert answer.startswith("".join(part[1] for part in parts))


def test_a_stream_shows_reasoning_and_answer_as_they_come():
    stream = ReasoningStream(begun=False)
    pieces = ["<thi", "nk>\n", "so ", "far</", "think>", "\n\n", "yes", "!"]
    assert [stream.feed(piece) for piece in pieces] == [
        ("", ""),
        ("", ""),
        ("so", ""),
        (" far", ""),
        ("", ""),
        ("", ""),
        ("", "yes"),
        ("", "!"),
    ]


THINKS = TEMPLATE.replace("%}[tell]{% endif %}", "%}[tell]<think>\n{% endif %}")
THOUGHT = RESPONSES | {
    "fields": RESPONSES["fields"] | {"thinking": {"open": "<think>", "close": "</think>", "content": "text"}}
}


def parsed(made, text, prompt, tools=()):
    tokenizer, reader = made
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    return reader.message(encode(text), (), encode(prompt), tools)


@BOTH
def test_reasoning_is_read_apart_from_the_answer_and_its_calls(reader, responses):
    made = reader(THOUGHT if responses else None)
    assert parsed(made, "<think>hm</think>yes", "[tell]")[:2] == ("hm", "yes")
    reasoning, content, [call] = parsed(made, f"<think>{CALL}</think>{CALL}", "[tell]", [TOOL])
    assert (reasoning, content, call.name) == (CALL, "", "add")


def test_reasoning_that_the_prompt_has_begun_is_read_apart(reader):
    assert parsed(reader(template=THINKS), "hm</think>yes", "[ask]a[tell]<think>\n")[:2] == ("hm", "yes")
    assert parsed(reader(template=THINKS), "hm", "[ask]a[tell]<think>\n")[:2] == ("hm", "")


PIECES = st.sampled_from(["<think>", "</think>", "\n", "\n\n", " ", "the", "he", "a", "1", "é", "fox", "</s>"])


@given(
    st.lists(PIECES, min_size=1, max_size=8), st.lists(st.sampled_from(["a", "he", "\n", " ", "1", "</"]), max_size=2)
)
def test_whatever_is_sampled_and_cut_is_of_the_message_that_is_parsed_from_it(policy, pieces, stops):
    renderer = Renderer(policy.tokenizer, policy.end_ids, policy.vocabulary)
    parser = CompletionParser(policy.tokenizer, renderer, policy.end_ids)
    encode = lambda text: policy.tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    stream, ids = parser.stream(stops, ()), []
    for token_id in encode("".join(pieces)):
        ids.append(token_id)
        stream.feed(token_id)
        if stream.stopped or token_id in policy.end_ids:
            break
    prompt = encode("<s>[ask]a[tell]")
    reasoning, content, _ = parser.message(ids, stops, prompt, ())
    message = {"role": "assistant", "content": content, **({"reasoning_content": reasoning} if reasoning else {})}
    asked = [USER, AssistantMessage.model_validate({**message, "token_ids": ids}), USER]
    assert renderer.continues(renderer.prompt(asked), asked) is not None
    entries = [
        {"token": renderer.token(each)[0], "token_id": each, "logprob": -1.0, "top_logprobs": []} for each in ids
    ]
    choice = {"finish_reason": "stop", "index": 0, "message": message, "logprobs": {"content": entries}}
    assert renderer.has_own_tokens(Choice.model_validate(choice))
