"""Chat templates in the shape of some families: sampled and trained alike on every turn, or refused in words."""

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.api.wire.chat import ChatRequest, FunctionTool
from rolloutlab.api.wire.trajectories import History
from rolloutlab.errors import RefusedError, RenderingError
from rolloutlab.policy.harmony import parse
from rolloutlab.policy.parsing import HarmonyStream
from tests.conftest import TOKEN, make_service
from tests.long_talks import LONG, learned_alike
from tests.playing import CALL, TOOL, Player, Sampled, Written
from tests.policies import policy_with

# drops the reasoning of turns before the last question, and writes an empty one into the last answer
DROPS = r"""
{%- set ns = namespace(last=-1) -%}
{%- for m in messages if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endfor -%}
{%- set questions = ns.last -%}{%- set ns.last = -1 -%}
{%- if tools %}<|turn|>system tools {{ tools | tojson }}<|over|>{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' %}{% set ns.last = ns.last + 1 %}{% endif -%}
{%- if m.role in ('system', 'user', 'tool') %}<|turn|>{{ m.role + '\n' + m.content }}<|over|>
{%- elif m.role == 'assistant' %}{{ '<|turn|>assistant\n' }}
{%- if ns.last == questions and (m.reasoning_content or loop.last) -%}
{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}
{%- endif -%}
{{- m.content -}}
{%- for c in m.tool_calls or [] -%}
{%- set f = c.function -%}
{{ '<tool_call>\n{"name": "' + f.name + '", "arguments": ' + f.arguments | tojson + '}\n</tool_call>' }}
{%- endfor %}<|over|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|turn|>assistant\n' }}{% endif -%}
"""
# opens the reasoning in the generation prompt, drops all of it later, and reads arguments as a text
OPENS = r"""
{%- for m in messages if m.role == 'system' %}{{ m.content }}{% endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' %}<|User|>{{ m.content }}
{%- elif m.role == 'tool' %}<|Result|>{{ m.content }}
{%- elif m.role == 'assistant' %}<|Assistant|>
{%- if 'tool_calls' in m -%}
{%- for c in m.tool_calls %}<|Call|>{{ c.function.name + ' ' + c.function.arguments }}{% endfor -%}
{%- else %}{{ m.content.split('</think>')[-1] }}
{%- endif -%}<|over|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif -%}
"""
HARMONY = """
{%- if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' and 'tool_calls' in m -%}
{%- if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif -%}
<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>
{{- m.tool_calls[0].function.arguments | tojson }}<|call|>
{%- elif m.role == 'assistant' -%}
<|start|>assistant<|channel|>final<|message|>{{ m.content }}
{%- if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}
{%- elif m.role == 'tool' %}<|start|>functions.f to=assistant<|message|>{{ m.content | tojson }}<|end|>
{%- elif m.role in ('system', 'user') %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|start|>assistant{% endif -%}
"""
# writes either the calls of a turn or its content, and takes a result only after a call, as Mistral
LISTS = r"""
{%- set ns = namespace(called=false) -%}
{%- if tools %}<|Tools|>{{ tools | tojson }}{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if not ns.called %}{{ raise_exception('a result without a call') }}{% endif %}<|Result|>{{ m.content }}
{%- elif m.tool_calls is defined -%}
{%- set ns.called = true -%}
<|Assistant|><|Calls|>[{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}]<|over|>
{%- elif m.role == 'assistant' %}<|Assistant|>{{ m.content }}<|over|>
{%- else %}<|User|>{{ m.content }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|Assistant|>' }}{% endif -%}
"""
# writes calls in XML, with the values as Python writes them, as Qwen3.5
XML = r"""
{%- if tools %}<|turn|>system tools {{ tools | tojson }}<|over|>{% endif -%}
{%- for m in messages %}<|turn|>{{ m.role + '
' + m.content }}
{%- for c in m.tool_calls or [] -%}
{{ '<tool_call>
<function=' + c.function.name + '>
' }}
{%- for k, v in c.function.arguments | items %}{{ '<parameter=' + k + '>
' + v | string + '
</parameter>
' }}
{%- endfor %}{{ '</function>
</tool_call>' }}
{%- endfor %}<|over|>
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|turn|>assistant
' }}{% endif -%}
"""
# writes calls in Python between special tokens, as LFM2
PYTHON = r"""
{%- if tools %}<|turn|>system tools {{ tools | tojson }}<|over|>{% endif -%}
{%- for m in messages %}<|turn|>{{ m.role + '
' + m.content }}
{%- if m.tool_calls %}<|tool_call_start|>[
{%- for c in m.tool_calls %}{{ c.function.name }}(
{%- for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %})
{%- endfor %}]<|tool_call_end|>{% endif %}<|over|>
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|turn|>assistant
' }}{% endif -%}
"""
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"
COMMENTARY = "<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>"
THOUGHT = {
    "drops": "<think>\nhm\n</think>\n\nmarkyes<|over|>",
    "opens": "hm\n</think>\n\nmarkyes<|over|>",
    "harmony": f"{ANALYSIS}hm<|end|>{FINAL}markyes<|return|>",
}
CALLED = {
    "drops": '<think>\nhm\n</think>\n\n<tool_call>\n{"arguments": {"a": 1}, "name": "add"}\n</tool_call><|over|>',
    "harmony": f'{ANALYSIS}hm<|end|>{COMMENTARY}{{"a": 1}}<|call|>',
}
PREAMBLE = "<|start|>assistant<|channel|>commentary<|message|>"
BESIDE = {
    "lists": 'markwell <|Calls|>[{"arguments": {"a":1}, "name": "add"}]<|over|>',
    "harmony": f'{ANALYSIS}hm<|end|>{PREAMBLE}markwell<|end|>{COMMENTARY}{{"a":1}}<|call|>',
    "xml": "markwell\n<tool_call>\n<function=add>\n<parameter=a> 1 </parameter>\n</function>\n</tool_call><|over|>",
    "python": "markwell <|tool_call_start|>[add(a = 1)]<|tool_call_end|><|over|>",
}
"""Text beside a call in another form than the template writes it."""
TEMPLATES = {
    "drops": (DROPS.strip(), ("<|over|>",)),
    "opens": (OPENS.strip(), ("<|over|>",)),
    "harmony": (HARMONY.strip(), ("<|return|>", "<|call|>")),
    "lists": (LISTS.strip(), ("<|over|>",)),
    "xml": (XML.strip(), ("<|over|>",)),
    "python": (PYTHON.strip(), ("<|over|>",)),
}


@pytest.fixture(scope="module")
def player_of(tmp_path_factory):
    """Makes the player of a family, once."""
    players = {}

    def make(name, special=()):
        if (name, special) not in players:
            template, ends = TEMPLATES[name]
            policy = policy_with(template, tmp_path_factory.mktemp("policies") / "tiny", ends, special)
            players[name, special] = Player(make_service(policy, tmp_path_factory.mktemp("lab") / "service"), policy)
        return players[name, special]

    yield make
    for player in players.values():
        player.service.stop()


@pytest.fixture(params=THOUGHT)
def family(request):
    return request.param


def user(text):
    return {"role": "user", "content": text}


def ratios(player, script, tools=()):
    histories = [player.play(script, tools, seed=seed) for seed in (1, 100)]
    steps = player.first_step(histories, tools)
    return histories[0], [step[name] for step in steps for name in ("ratio_mean", "ratio_max")]


def one(values):
    return values == pytest.approx([1] * len(values), abs=1e-3) and len(values) >= 2


@pytest.mark.parametrize("role", ["system", "developer"])
def test_five_turns_are_trained_as_they_were_sampled(player_of, family, role):
    script = [{"role": role, "content": "brief"}]
    for i in range(5):
        script += [user(f"question {i}"), Sampled()]
    assert one(ratios(player_of(family), script)[1])


def test_reasoning_is_read_apart_and_its_turn_trained_as_sampled(player_of, family):
    player = player_of(family)
    script = [user("a"), Written(THOUGHT[family]), user("b"), Written(THOUGHT[family]), user("c"), Sampled()]
    history, found = ratios(player, script)
    assert one(found)
    message = history[1]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "markyes")
    assert "markyes" in player.prompts[-1][0]
    assert "hm" not in player.prompts[-1][0]


@pytest.mark.parametrize("family", CALLED)
def test_a_call_is_read_and_its_turn_trained_as_sampled(player_of, family):
    player = player_of(family)
    result = {"role": "tool", "tool_call_id": f"call_{0:024}", "content": "markresult"}
    history, found = ratios(
        player, [user("a"), Written(CALLED[family]), result, Sampled(), user("b"), Sampled()], [TOOL]
    )
    assert one(found)
    [call] = history[1]["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1})
    assert history[1]["message"]["reasoning_content"] == "hm"
    assert "markresult" in player.prompts[-1][0]


def test_a_turn_with_text_on_both_sides_of_its_call_is_read_by_its_tokens(player_of):
    player = player_of("drops")
    around = 'well <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call> then<|over|>'
    result = {"role": "tool", "tool_call_id": f"call_{0:024}", "content": "3"}
    history, found = ratios(player, [user("a"), Written(around), result, Sampled()], [TOOL])
    assert history[1]["message"]["content"].split() == ["well", "then"]
    assert one(found)


def test_reasoning_is_read_apart_where_its_marks_are_special_tokens(player_of):
    player = player_of("drops", ("<think>", "</think>"))
    history, found = ratios(player, [user("a"), Written(THOUGHT["drops"]), user("b"), Sampled()])
    assert one(found)
    assert (history[1]["message"]["reasoning_content"], history[1]["message"]["content"]) == ("hm", "markyes")


def test_an_answer_is_scored_after_the_reasoning_that_the_prompt_opens(player_of):
    player = player_of("opens")
    for thought in ({}, {"reasoning_content": "hm"}):
        messages = [user("a"), {"role": "assistant", "content": "yes", **thought}]
        request = ChatRequest.model_validate({"model": "m", "messages": messages})
        ids = player.renderer.answer(request.messages)
        text = player.policy.tokenizer.decode(ids, skip_special_tokens=False)
        assert text == f"{thought.get('reasoning_content', '')}\n</think>\n\nyes<|over|>"


def test_arguments_are_a_text_where_the_template_reads_a_text(player_of):
    messages = [user("a"), {"role": "assistant", "tool_calls": [CALL]}]
    messages += [{"role": "tool", "tool_call_id": CALL["id"], "content": "3"}]
    player = player_of("opens")
    ids = player.renderer.prompt(ChatRequest.model_validate({"model": "m", "messages": messages}).messages)
    text = player.policy.tokenizer.decode(ids, skip_special_tokens=False)
    assert text == '<|User|>a<|Assistant|><|Call|>add {"a": 1, "b": "ü"}<|over|><|Result|>3<|Assistant|><think>\n'


def test_the_reasoning_of_a_call_is_where_the_template_reads_it(player_of):
    call = {"role": "assistant", "tool_calls": [CALL], "reasoning_content": "hm"}
    result = {"role": "tool", "tool_call_id": CALL["id"], "content": "3"}
    player = player_of("harmony")
    ids = player.renderer.prompt(
        ChatRequest.model_validate({"model": "m", "messages": [user("a"), call, result]}).messages
    )
    assert f"{ANALYSIS}hm<|end|>" in player.policy.tokenizer.decode(ids, skip_special_tokens=False)


def test_a_required_call_begins_after_the_reasoning(player_of):
    player = player_of("drops")
    [choice] = player.service.chat("a", tools=[TOOL], tool_choice="required", max_tokens=40).choices
    tokens = [token for token in choice.sampled_tokens() if token.forced]
    text = player.policy.tokenizer.decode([token.token_id for token in tokens], skip_special_tokens=False)
    assert text.startswith('<think>\n\n</think>\n\n<tool_call>\n{"name":')


def test_what_a_template_does_not_render_is_refused_in_words(player_of):
    called = [user("a"), {"role": "assistant", "tool_calls": [CALL, CALL]}, user("b"), Sampled()]
    with pytest.raises(RefusedError, match="renders only one call per message"):
        player_of("harmony").play(called)
    with pytest.raises(RefusedError, match="does not render tools"):
        player_of("opens").play([user("a"), Sampled()], [TOOL])
    both = {"role": "assistant", "content": "well", "tool_calls": [CALL]}
    learned = ChatRequest.model_validate({"model": "m", "messages": [user("a"), both]}).messages
    with pytest.raises(RenderingError, match="drops the content of messages of the kind tool_calls"):
        player_of("lists").renderer.answer(learned)


RESULT = {"role": "tool", "tool_call_id": f"call_{0:024}", "content": "markresult"}


@pytest.mark.parametrize("family", BESIDE)
def test_text_beside_a_call_is_read_as_sampled_by_the_next_turn_and_trains(player_of, family):
    player = player_of(family)
    history, values = ratios(player, [user("a"), Written(BESIDE[family]), RESULT, Sampled()], [TOOL])
    assert one(values)
    assert BESIDE[family] in player.prompts[-1][0]
    assert "markresult" in player.prompts[-1][0]
    assert history[3]["continues"] is True
    message = history[1]["message"]
    assert (message["content"].strip(), message.get("reasoning_content")) == (
        "markwell",
        "hm" if family == "harmony" else None,
    )
    [call] = message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1})


@pytest.mark.parametrize("family", ["lists", "harmony"])
def test_a_call_whose_tokens_were_not_sent_trains_after_the_text_that_was_read(player_of, family):
    player = player_of(family)
    first = player.play([user("a"), Written(BESIDE[family])], [TOOL])
    asked = [user("a"), first[1]["message"], RESULT]
    choices = [
        player.service.chat(messages=asked, tools=[TOOL], max_tokens=8, seed=seed).choices[0].to_wire()
        for seed in (1, 2)
    ]
    assert not any("continues" in choice for choice in choices)
    steps = player.first_step([[asked[0], first[1], RESULT, choice] for choice in choices], [TOOL])
    assert one([step[name] for step in steps for name in ("ratio_mean", "ratio_max")])


@pytest.mark.parametrize("family", BESIDE)
def test_a_call_that_was_changed_is_read_as_changed_and_not_as_its_tokens(player_of, family):
    player = player_of(family)
    [asked, choice] = player.play([user("a"), Written(BESIDE[family])], [TOOL])
    ids = [token["token_id"] for token in choice["logprobs"]["content"]]
    for function in ({"name": "subtract", "arguments": '{"a": 1}'}, {"name": "add", "arguments": '{"a": 75}'}):
        call = {**choice["message"]["tool_calls"][0], "function": function}
        messages = [asked, {**choice["message"], "tool_calls": [call], "token_ids": ids}, RESULT]
        request = ChatRequest.model_validate({"model": "m", "messages": messages, "tools": [TOOL]})
        prompt = player._text(player.renderer.prompt(request.messages, request.tools))
        assert BESIDE[family] not in prompt
        assert (function["name"] if "75" not in function["arguments"] else "75") in prompt


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_long_conversation_is_learned_the_same_rendered_once_or_turn_by_turn(player_of, family):
    once = learned_alike(player_of(family).policy)
    assert once == {name: family in {"lists", "xml", "python"} for name in LONG}


@pytest.mark.parametrize("family", BESIDE)
@pytest.mark.parametrize("place", ["before the calls", "after the calls"])
def test_token_ids_with_text_that_is_not_in_a_message_with_calls_are_refused(player_of, family, place):
    player = player_of(family)
    [asked, choice] = player.play([user("a"), Written(BESIDE[family])], [TOOL])
    sampled = [token["token_id"] for token in choice["logprobs"]["content"]]
    ended = sampled[-1] in player.policy.end_ids
    ids, end = (sampled[:-1], sampled[-1:]) if ended else (sampled, [])
    more = player.policy.tokenizer("and more", add_special_tokens=False)["input_ids"]
    ids = [*more, *ids, *end] if place == "before the calls" else [*ids, *more, *end]
    messages = [asked, {**choice["message"], "token_ids": ids}, RESULT]
    request = ChatRequest.model_validate({"model": "m", "messages": messages, "tools": [TOOL]})
    with pytest.raises(RenderingError, match="these are not the tokens of the message"):
        player.renderer.prompt(request.messages, request.tools)


def headers(service, body):
    """The headers of a chat completion."""

    async def post():
        client = httpx.AsyncClient(transport=service.http._transport)
        url, bearer = f"{service.address.base_url}/v1/chat/completions", {"Authorization": f"Bearer {TOKEN}"}
        async with client:
            return (await client.post(url, json=body, headers=bearer)).headers

    return service.http.run(post())


def test_content_that_the_template_drops_is_named_in_the_response(player_of):
    player = player_of("lists")
    both = {"role": "assistant", "content": "well", "tool_calls": [CALL]}
    messages = [user("a"), both, {**RESULT, "tool_call_id": CALL["id"]}]
    request = ChatRequest.model_validate({"model": "m", "messages": messages})
    assert player.renderer.find_unread(request.messages) == [1]
    asked = {"model": player.policy.name, "messages": messages, "max_tokens": 1}
    assert headers(player.service, asked)["x-rolloutlab-ignored"] == "messages.1.content"


@pytest.mark.parametrize("family", ["lists", "xml", "python", "harmony"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_required_call_begins_as_the_template_begins_one(player_of, family, choice):
    player = player_of(family)
    [answer] = player.service.chat("a", tools=[TOOL], tool_choice=choice, max_tokens=60).choices
    tokens = [token.token_id for token in answer.sampled_tokens() if token.forced]
    text = player.policy.tokenizer.decode(tokens, skip_special_tokens=False)
    opening = {
        "lists": '<|Calls|>[{"name": "',
        "xml": "<tool_call>\n<function=",
        "python": "<|tool_call_start|>[",
        "harmony": " to=functions.",
    }[family]
    assert opening.startswith(text) or text.startswith(opening)
    assert len(text) >= len(opening) - 4
    assert ("add" in text) == (choice != "required")


def harmony(player, text, tools=(TOOL,)):
    ids = player.policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    return player.parser.message(ids, (), (), [FunctionTool.model_validate(tool) for tool in tools])


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        (f"{ANALYSIS}hm", "hm", ""),
        ("<|channel|>final<|message|>yes<|return|>", "", "yes"),
        (f"{ANALYSIS}a<|end|><|start|>assistant{ANALYSIS}b<|end|>{FINAL}yes", "a\nb", "yes"),
        ("<|channel|>commentary<|message|>well<|end|>" + FINAL + "yes", "", "wellyes"),
        ("plain", "", "plain"),
        ("", "", ""),
    ],
)
def test_the_channels_of_harmony_are_reasoning_and_content(player_of, text, reasoning, content):
    assert harmony(player_of("harmony"), text) == (reasoning, content, [])


@pytest.mark.parametrize("body", ['{"a": ', "[1]", '{"a": NaN}', "5"])
def test_a_call_in_harmony_that_is_none_stays_text(player_of, body):
    parsed = harmony(player_of("harmony"), f"{ANALYSIS}hm<|end|>{COMMENTARY}{body}")
    assert parsed.calls == []
    assert body in parsed.content


@pytest.mark.parametrize("extra", [{}, {"tools": [TOOL], "tool_choice": "required"}], ids=["answer", "call"])
def test_a_stream_of_harmony_ends_in_the_same_message(player_of, extra):
    player = player_of("harmony")
    options = {"seed": 3, "max_tokens": 24, **extra}
    [choice] = player.service.chat("a", **options).choices
    streamed = "".join(
        each.choices[0].delta.content or "" for each in player.service.stream("a", **options) if each.choices
    )
    assert streamed == choice.message.content


PIECES = ["<|channel|>", "analysis", "final", "commentary", "<|message|>", "<|end|>", "<|call|>", "<|start|>assistant"]
PIECES += [" to=functions.add", "<|en", "d|>", "<", "hm", " ", '{"a": 1}', ANALYSIS, FINAL, COMMENTARY]


@given(st.lists(st.sampled_from(PIECES), max_size=14), st.booleans())
def test_a_stream_of_harmony_is_the_beginning_of_its_message(pieces, tools):
    stream = HarmonyStream(tools)
    parts = [stream.feed(piece) for piece in pieces]
    reasoning, content, _ = parse("".join(pieces), tools) or ("", "", [])
    assert reasoning.startswith("".join(part[0] for part in parts))
    assert content.startswith("".join(part[1] for part in parts))


def test_a_stream_of_harmony_shows_reasoning_and_content_as_they_come():
    stream = HarmonyStream(tools=True)
    pieces = [ANALYSIS, "so ", "far<", "|end|>", "<|start|>assistant", "<|channel|>final<|message|>", "yes", "!"]
    expected = [("", ""), ("so ", ""), ("far", ""), ("", ""), ("", ""), ("", ""), ("", "yes"), ("", "!")]
    assert [stream.feed(piece) for piece in pieces] == expected
    assert HarmonyStream(tools=True).feed(f"{ANALYSIS}hm<|end|>{COMMENTARY}") == ("hm", "")


def test_after_reasoning_what_is_not_harmony_is_content(player_of):
    parsed = harmony(player_of("harmony"), f"{ANALYSIS}hm<|end|><|start|>assistant<|channel|>song<|message|>la")
    assert parsed == ("hm", "assistantsongla", [])
    calls = harmony(player_of("harmony"), f'{ANALYSIS}hm<|end|>{COMMENTARY}{{"a": 1}}', tools=())
    assert (calls.reasoning, calls.calls) == ("hm", [])
    assert '{"a": 1}' in calls.content


@pytest.mark.parametrize(("opening", "closing"), [('{"name": "add", "arguments": ', "}")])
def test_arguments_keep_the_order_of_keys_in_which_they_were_sampled(player_of, opening, closing):
    player = player_of("drops")
    arguments = '{"b": {"y": 1, "x": 2}, "a": 3}'
    written = f"<think>\nhm\n</think>\n\n<tool_call>\n{opening}{arguments}{closing}\n</tool_call><|over|>"
    _, choice = player.play([user("a"), Written(written)], [TOOL])
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["arguments"] == arguments
    request = ChatRequest.model_validate({"model": "m", "messages": [user("a"), choice["message"], RESULT]})
    assert arguments in player._text(player.renderer.prompt(request.messages))
    # without its tokens either: the rendered text is that of the tokens, so that they train as one sequence
    items = [user("a"), choice, RESULT, {**choice, "message": {"role": "assistant", "content": "yes"}}]
    [sequence] = player.renderer.sequences(History.model_validate({"messages_and_choices": items, "tools": [TOOL]}))
    assert sequence.trainable == 2 * len(choice["logprobs"]["content"])
