"""Chat templates as they are published: conversations with them are sampled and trained alike, or refused in words.

The templates are files of packages in .venvs/templates, of which nothing is run. The policies are tiny and untrained;
the service is the ordinary one.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.errors import RenderingError, RolloutlabError
from tests.long_talks import learned_alike
from tests.playing import CALL, TOOL, Player, Sampled, Written
from tests.policies import policy_with

ROOT = Path(__file__).parents[2]
TRL, AXOLOTL = "trl/chat_templates", "axolotl/utils/chat_templates/templates"
QWEN, DEEPSEEK = (
    ("<|im_end|>", "<|endoftext|>"),
    ("<\N{FULLWIDTH VERTICAL LINE}end▁of▁sentence\N{FULLWIDTH VERTICAL LINE}>",),
)
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
LISTED = '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]'
XML = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
TAGS = "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call><|observation|>"
PYTHON = "<|tool_call_start|>[add(a=1)]<|tool_call_end|>"
COMMENTARY = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'
ANALYSIS, PREAMBLE = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant", "<|channel|>commentary<|message|>{}"
PREAMBLE += "<|end|><|start|>assistant"


@dataclass(frozen=True)
class Family:
    """A template, and what a completion looks like.

    ends: the tokens that end a turn, the tokenizer's own first. call: a call as the model writes it, None where the
    template has none. thinks: a completion of a reasoning and an answer. beside: text before a call; None where the
    form of calls has no place for it.
    """

    name: str
    path: str
    ends: tuple[str, ...]
    call: str | None = None
    thinks: str = "<think>\n{}\n</think>\n\n{}"
    beside: str | None = "{}\n"

    @property
    def end(self) -> str:
        """The end of an answer."""
        return "<|end|>" if "<|end|>" in self.ends else self.ends[0]


FAMILIES = [
    Family("Qwen2.5", f"{TRL}/qwen2_5.jinja", QWEN, HERMES),
    Family("Qwen3", f"{TRL}/qwen3.jinja", QWEN, HERMES),
    Family("Qwen3-Instruct-2507", f"{TRL}/qwen3_instruct_2507.jinja", QWEN, HERMES),
    Family("Qwen3.5", f"{TRL}/qwen3_5_think.jinja", QWEN, f"hm\n</think>\n\n{XML}", "{}\n</think>\n\n{}"),
    Family("Llama 3", f"{TRL}/llama3.jinja", ("<|eot_id|>",)),
    Family(
        "Llama 3.1",
        f"{TRL}/llama3_1.jinja",
        ("<|eot_id|>",),
        '{"name": "add", "parameters": {"a": 1}}',
        beside=None,
    ),
    Family(
        "Llama 3.2",
        f"{TRL}/llama3_2.jinja",
        ("<|eot_id|>",),
        '{"name": "add", "parameters": {"a": 1}}',
        beside=None,
    ),
    Family("Gemma", f"{TRL}/gemma.jinja", ("<end_of_turn>",)),
    Family("Gemma 3", f"{TRL}/gemma3.jinja", ("<end_of_turn>",)),
    Family("Mistral v1", f"{AXOLOTL}/mistral_v1.jinja", ("</s>",)),
    Family("Mistral v3", f"{AXOLOTL}/mistral_v2v3.jinja", ("</s>",), LISTED),
    Family("Mistral v7", f"{AXOLOTL}/mistral_v7_tekken.jinja", ("</s>",)),
    Family(
        "gpt-oss",
        f"{TRL}/gptoss.jinja",
        ("<|return|>", "<|call|>"),
        ANALYSIS.format("hm") + COMMENTARY,
        ANALYSIS + "<|channel|>final<|message|>{}",
        PREAMBLE,
    ),
    Family("DeepSeek-V3", f"{TRL}/deepseekv3.jinja", DEEPSEEK, thinks="{}\n</think>\n\n{}"),
    Family("DeepSeek-R1", f"{TRL}/deepseek_r1_distill.jinja", DEEPSEEK, thinks="{}\n</think>\n\n{}"),
    Family("Phi-3.5", f"{TRL}/phi3_5.jinja", ("<|endoftext|>", "<|end|>")),
    Family("Phi-4", f"{AXOLOTL}/phi_4.jinja", ("<|im_end|>",)),
    Family("SmolLM (ChatML)", f"{AXOLOTL}/chatml.jinja", ("<|im_end|>",)),
    Family(
        "GLM-4",
        f"{TRL}/glm4moe.jinja",
        ("<|endoftext|>", "<|user|>", "<|observation|>"),
        f"\n<think>hm</think>\n{TAGS}",
    ),
    Family("LFM2", f"{TRL}/lfm2_v2.jinja", ("<|im_end|>",), PYTHON),
]


def user(text):
    return {"role": "user", "content": text}


def told(role, text, **more):
    return {"role": role, "content": text, **more}


RESULT = told("tool", "marktool", tool_call_id=CALL["id"])
BESIDE = {"role": "assistant", "content": "markbeside", "tool_calls": [CALL]}
EARLIER_CALLS = ["earlier call", "text beside an earlier call"]
CASES = {
    "one turn": [user("markone"), Sampled()],
    "five turns": [each for i in range(5) for each in (user(f"mark{i}"), Sampled())],
    "system": [told("system", "marksystem"), user("markone"), Sampled(), user("marktwo"), Sampled()],
    "developer": [told("developer", "markdeveloper"), user("markone"), Sampled(), user("marktwo"), Sampled()],
    "refusal": [user("markone"), {"role": "assistant", "refusal": "markno"}, user("marktwo"), Sampled()],
    "reasoning": [user("markone"), told("assistant", "markyes", reasoning_content="hm"), user("marktwo"), Sampled()],
    "earlier call": [user("markone"), {"role": "assistant", "tool_calls": [CALL]}, RESULT, Sampled()],
    "text beside an earlier call": [user("markone"), BESIDE, RESULT, Sampled(), user("marktwo"), Sampled()],
    "calls": [user("markone"), {"role": "assistant", "tool_calls": [CALL]}, RESULT, Sampled(), user("two"), Sampled()],
}
NO_TOOLS = "does not render tools"
NO_CALLS = "does not render messages of the kind tool_calls"
NOT_ALTERNATING = "the chat template refuses this conversation: .*roles must alternate"
WITHOUT_TOOLS = ["Llama 3", "Gemma", "Gemma 3", "Mistral v1", "Mistral v7", "Phi-3.5", "Phi-4", "SmolLM (ChatML)"]
REFUSED = {
    **{(name, "calls"): NO_TOOLS for name in (*WITHOUT_TOOLS, "DeepSeek-V3", "DeepSeek-R1")},
    **{(name, case): NO_CALLS for name in (*WITHOUT_TOOLS, "DeepSeek-R1") for case in EARLIER_CALLS},
    **{(name, case): NOT_ALTERNATING for name in ("Gemma", "Gemma 3", "Mistral v1") for case in EARLIER_CALLS},
    **{("Mistral v7", case): "Only user, system and assistant roles are supported" for case in EARLIER_CALLS},
    **{("Gemma", role): "System role not supported" for role in ("system", "developer")},
}
"""What is refused, by family and case, and the words."""
UNREAD = {"Llama 3.1", "Llama 3.2", "Mistral v3", "gpt-oss", "DeepSeek-V3"}
"""Families whose template drops text beside a call, so that it is read only as it was sampled."""


TURN_ENDS = {
    "trl/qwen2_5": ("<|im_end|>", "<|im_end|>"),
    "trl/qwen3": ("<|im_end|>", "<|im_end|>"),
    "trl/qwen3_5_think": ("<|im_end|>", "<|im_end|>"),
    "trl/qwen3_6": ("<|im_end|>", "<|im_end|>"),
    "trl/llama3": ("<|eot_id|>", None),
    "trl/llama3_1": ("<|eot_id|>", "<|eot_id|>"),
    "axolotl/llama4": ("<|eot|>", "<|eot|>"),
    "trl/gemma": ("<end_of_turn>", None),
    "trl/gemma3": ("<end_of_turn>", None),
    "trl/gemma4_v5": ("<turn|>", "<|tool_response>"),
    "axolotl/mistral_v1": ("<|base|>", None),
    "axolotl/mistral_v2v3": ("<|base|>", "<|base|>"),
    "trl/gptoss": ("<|return|>", "<|call|>"),
    "trl/deepseekv3": (DEEPSEEK[0], DEEPSEEK[0]),
    "trl/deepseek_r1_distill": (DEEPSEEK[0], None),
    "trl/phi3": ("<|end|>", None),
    "trl/phi3_5": ("<|end|>", None),
    "axolotl/phi_4": ("<|im_end|>", None),
    "axolotl/chatml": ("<|im_end|>", None),
    "axolotl/alpaca": ("<|base|>", None),
    "axolotl/cohere": ("<|END_OF_TURN_TOKEN|>", None),
    "trl/glm4moe": ("<|user|>", "<|observation|>"),
    "trl/lfm2_v2": ("<|im_end|>", "<|im_end|>"),
    "trl/nemotron_3_nano": ("<|im_end|>", "<|im_end|>"),
    "axolotl/jamba": ("<|eom|>", "<|eom|>"),
}
"""The tokens that end an answer and a turn with calls, by template; None where it has no calls."""


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def family(request):
    return request.param


def published(path):
    """The text of a template."""
    [packages] = (ROOT / ".venvs" / "templates" / "lib").glob("python3*/site-packages") or [Path()]
    if not (packages / path).is_file():
        pytest.skip(f"{path} is not installed: make .venvs/templates/.ready")
    return (packages / path).read_text()


@pytest.fixture(scope="module")
def player(family, tmp_path_factory):
    template = published(family.path)
    from tests.conftest import make_service

    policy = policy_with(template, tmp_path_factory.mktemp("policies") / "tiny", family.ends)
    service = make_service(policy, tmp_path_factory.mktemp("lab") / "service")
    yield Player(service, policy)
    service.stop()


def is_sampled_and_trained_alike(player, script, tools=(), unread=()):
    histories = [player.play(script, tools, seed=seed) for seed in (1, 100)]
    steps = player.first_step(histories, tools)
    assert steps
    for step in steps:
        assert step["ratio_mean"] == pytest.approx(1, abs=1e-3)
        assert step["ratio_max"] == pytest.approx(1, abs=1e-3)
    for text, messages in player.prompts:
        for mark in re.findall(r"mark\w+", str([{**m, "reasoning_content": ""} for m in messages])):
            assert mark in text or mark in unread
    player.prompts.clear()
    return histories


@pytest.mark.parametrize("case", CASES)
def test_a_conversation_is_sampled_and_trained_alike_or_refused_in_words(player, family, case):
    if words := REFUSED.get((family.name, case)):
        with pytest.raises(RolloutlabError, match=words):
            player.play(CASES[case], [TOOL] if case == "calls" else ())
    else:
        unread = ["markbeside"] if family.name in UNREAD else []
        is_sampled_and_trained_alike(player, CASES[case], [TOOL] if case == "calls" else (), unread)


def test_a_long_conversation_is_learned_the_same_rendered_once_or_turn_by_turn(player, family):
    once = learned_alike(player.policy)
    assert once == dict.fromkeys(once, True) or family.name not in {"Llama 3", "Phi-4", "SmolLM (ChatML)"}


def test_reasoning_and_answer_of_a_turn_are_apart_and_train_as_sampled(player, family):
    turns = [Written(family.thinks.format("hm", answer) + family.end) for answer in ("markyes", "markno")]
    script = [user("markone"), turns[0], user("marktwo"), turns[1], user("markthree"), Sampled()]
    [history, _] = is_sampled_and_trained_alike(player, script)
    assert [item["message"].get("reasoning_content") for item in (history[1], history[3])] == ["hm", "hm"]
    assert [item["message"]["content"] for item in (history[1], history[3])] == ["markyes", "markno"]


RESULT_OF_FIRST = told("tool", "marktool", tool_call_id=f"call_{0:024}")


def test_a_sampled_call_is_read_and_trains_as_sampled(player, family):
    if family.call is None:
        pytest.skip("no calls")
    end = "" if family.call.endswith(family.ends) else family.end
    script = [user("markone"), Written(family.call + end), RESULT_OF_FIRST, Sampled(), user("marktwo"), Sampled()]
    [history, _] = is_sampled_and_trained_alike(player, script, [TOOL])
    [call] = history[1]["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert history[3]["continues"]


def test_text_beside_a_sampled_call_is_kept_and_read_by_the_next_turn(player, family):
    if family.call is None or family.beside is None:
        pytest.skip("no calls with text beside them")
    call = next(each for each in (HERMES, XML, TAGS, PYTHON, LISTED, COMMENTARY) if family.call.endswith(each))
    before = family.call.removesuffix(call)
    end = "" if call.endswith(family.ends) else family.end
    turn = Written(f"{before}{family.beside.format('markbeside')}{call}{end}")
    [history, _] = is_sampled_and_trained_alike(player, [user("markone"), turn, RESULT_OF_FIRST, Sampled()], [TOOL])
    assert history[1]["message"]["content"].strip() == "markbeside"
    assert [each["function"]["name"] for each in history[1]["message"]["tool_calls"]] == ["add"]
    assert history[3]["continues"]


@pytest.mark.parametrize("name", TURN_ENDS)
def test_turns_of_a_base_model_are_learned_and_sampled_to_the_end_that_the_template_has(name, tmp_path):
    from rolloutlab.policy.model import base_of

    package, _, template = name.partition("/")
    policy = policy_with(published(f"{TRL if package == 'trl' else AXOLOTL}/{template}.jinja"), tmp_path, ("<|base|>",))
    turns = {"content": "jumps"}, {"content": "", "tool_calls": [CALL]}
    for turn, end in zip(turns, TURN_ENDS[name], strict=True):
        messages = [user("what"), {"role": "assistant", **turn}]
        request = ChatRequest.model_validate({"model": "m", "messages": messages})
        if end is not None:
            ids = base_of(policy).renderer().answer(request.messages)
            learned = policy.tokenizer.decode(ids, skip_special_tokens=False)
            assert learned.endswith(f"jumps{end}" if "jumps" in learned else end)
            assert policy.end_ids.intersection(ids) == {ids[-1]}


REASONING = {
    "trl/deepseek_r1_distill": f"because\n</think>\n\n42{DEEPSEEK[0]}",
    "trl/qwen2_5": "<think>\nbecause\n</think>\n\n42<|im_end|>",
    "trl/qwen3": "<think>\nbecause\n</think>\n\n42<|im_end|>",
    "axolotl/qwen3": "because\n</think>\n\n42<|im_end|>",
    "trl/qwen3_6": "because\n</think>\n\n42<|im_end|>",
    "trl/glm4moe": "\n<think>because</think>\n42<|user|>",
    "trl/lfm2_2_5": "<think>because</think>42<|im_end|>",
    "trl/nemotron_3_nano": "because\n</think>\n42<|im_end|>",
    "trl/gemma4_v5": "<|channel>thought\nbecause\n<channel|>42<turn|>",
    "trl/muse_glimmer": " to=self<|message|>because<|eom|><|start|>assistant to=user<|message|>42<|eot|>",
    "trl/gptoss": f"{ANALYSIS.format('because')}<|channel|>final<|message|>42<|return|>",
}


def test_reasoning_after_a_prompt_that_closes_the_thought_is_named_and_an_answer_without_is_learned(tmp_path):
    from rolloutlab.policy.model import base_of

    policy = policy_with(published(f"{AXOLOTL}/exaone4.jinja"), tmp_path, ("[|endofturn|]",))
    renderer = base_of(policy).renderer()
    for answer in told("assistant", "42", reasoning_content="because"), told("assistant", "<think>because</think>42"):
        request = ChatRequest.model_validate({"model": "m", "messages": [user("why"), answer]})
        with pytest.raises(RenderingError, match="the chat template drops the reasoning of the answer"):
            renderer.answer(request.messages)
    request = ChatRequest.model_validate({"model": "m", "messages": [user("why"), told("assistant", "42")]})
    ids = renderer.answer(request.messages)
    assert policy.tokenizer.decode(ids, skip_special_tokens=False) == "42[|endofturn|]"


@pytest.mark.parametrize("name", REASONING)
def test_reasoning_in_the_content_is_learned_as_that_in_a_field(name, tmp_path):
    from rolloutlab.policy.model import base_of

    package, _, template = name.partition("/")
    policy = policy_with(published(f"{TRL if package == 'trl' else AXOLOTL}/{template}.jinja"), tmp_path, ("<|base|>",))
    inline = told("assistant", "<think>\nbecause\n</think>\n\n42")
    for answer in (told("assistant", "42", reasoning_content="because"), inline):
        request = ChatRequest.model_validate({"model": "m", "messages": [user("why"), answer]})
        ids = base_of(policy).renderer().answer(request.messages)
        assert policy.tokenizer.decode(ids, skip_special_tokens=False) == REASONING[name]
