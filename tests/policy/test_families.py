"""Chat templates in the shape of three families: sampled and trained alike on every turn, or refused in words."""

import json

import pytest

from rolloutlab.api.wire.chat import ChatRequest, FunctionTool
from rolloutlab.errors import RefusedError
from tests.conftest import _service
from tests.playing import CALL, TOOL, Player, Sampled, Written
from tests.templates import policy_with

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
TEMPLATES = {
    "drops": (DROPS.strip(), ("<|over|>",)),
    "opens": (OPENS.strip(), ("<|over|>",)),
    "harmony": (HARMONY.strip(), ("<|return|>", "<|call|>")),
}


@pytest.fixture(scope="module")
def player_of(tmp_path_factory):
    """Makes the player of a family, once."""
    players = {}

    def make(name, special=()):
        if (name, special) not in players:
            template, ends = TEMPLATES[name]
            policy = policy_with(template, tmp_path_factory.mktemp("policies") / "tiny", ends, special)
            players[name, special] = Player(_service(policy, tmp_path_factory.mktemp("lab") / "service"), policy)
        return players[name, special]

    yield make
    for player in players.values():
        player.service.stop()


@pytest.fixture(params=TEMPLATES)
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
    with pytest.raises(RefusedError, match="drops the content of messages of the kind tool_calls"):
        player_of("opens").play([user("a"), both, user("b"), Sampled()])


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


def test_a_stream_of_harmony_ends_in_the_same_message(player_of):
    player = player_of("harmony")
    options = {"seed": 3, "max_tokens": 24}
    [choice] = player.service.chat("a", **options).choices
    streamed = "".join(
        each.choices[0].delta.content or "" for each in player.service.stream("a", **options) if each.choices
    )
    assert streamed == choice.message.content
