"""Chat templates as they are published: conversations with them are sampled and trained alike, or refused in words.

The templates are files of packages in .venvs/templates, of which nothing is run. The policies are tiny and untrained;
the service is the ordinary one.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from rolloutlab.errors import RolloutlabError
from tests.playing import CALL, TOOL, Player, Sampled, Written
from tests.templates import policy_with

ROOT = Path(__file__).parents[2]
TRL, AXOLOTL = "trl/chat_templates", "axolotl/utils/chat_templates/templates"
QWEN, DEEPSEEK = (
    ("<|im_end|>", "<|endoftext|>"),
    ("<\N{FULLWIDTH VERTICAL LINE}end▁of▁sentence\N{FULLWIDTH VERTICAL LINE}>",),
)
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@dataclass(frozen=True)
class Family:
    """A template, and what a completion looks like.

    ends: the tokens that end a turn, the tokenizer's own first. call: a call as the model writes it, None where its
    form is not read. thinks: a completion of a reasoning and an answer.
    """

    name: str
    path: str
    ends: tuple[str, ...]
    call: str | None = None
    thinks: str = "<think>\n{}\n</think>\n\n{}"

    @property
    def end(self) -> str:
        """The end of an answer."""
        return "<|end|>" if "<|end|>" in self.ends else self.ends[0]


FAMILIES = [
    Family("Qwen2.5", f"{TRL}/qwen2_5.jinja", QWEN, HERMES),
    Family("Qwen3", f"{TRL}/qwen3.jinja", QWEN, HERMES),
    Family("Qwen3-Instruct-2507", f"{TRL}/qwen3_instruct_2507.jinja", QWEN, HERMES),
    Family("Qwen3.5", f"{TRL}/qwen3_5_think.jinja", QWEN, thinks="{}\n</think>\n\n{}"),
    Family("Llama 3", f"{TRL}/llama3.jinja", ("<|eot_id|>",)),
    Family("Llama 3.1", f"{TRL}/llama3_1.jinja", ("<|eot_id|>",), '{"name": "add", "parameters": {"a": 1}}'),
    Family("Gemma", f"{TRL}/gemma.jinja", ("<end_of_turn>",)),
    Family("Gemma 3", f"{TRL}/gemma3.jinja", ("<end_of_turn>",)),
    Family("Mistral v1", f"{AXOLOTL}/mistral_v1.jinja", ("</s>",)),
    Family(
        "Mistral v3",
        f"{AXOLOTL}/mistral_v2v3.jinja",
        ("</s>",),
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]',
    ),
    Family("Mistral v7", f"{AXOLOTL}/mistral_v7_tekken.jinja", ("</s>",)),
    Family(
        "gpt-oss",
        f"{TRL}/gptoss.jinja",
        ("<|return|>", "<|call|>"),
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.add "
        '<|constrain|>json<|message|>{"a": 1}<|call|>',
        "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>{}",
    ),
    Family("DeepSeek-V3", f"{TRL}/deepseekv3.jinja", DEEPSEEK, thinks="{}\n</think>\n\n{}"),
    Family("DeepSeek-R1", f"{TRL}/deepseek_r1_distill.jinja", DEEPSEEK, thinks="{}\n</think>\n\n{}"),
    Family("Phi-3.5", f"{TRL}/phi3_5.jinja", ("<|endoftext|>", "<|end|>")),
    Family("Phi-4", f"{AXOLOTL}/phi_4.jinja", ("<|im_end|>",)),
    Family("SmolLM (ChatML)", f"{AXOLOTL}/chatml.jinja", ("<|im_end|>",)),
    Family("GLM-4", f"{TRL}/glm4moe.jinja", ("<|endoftext|>", "<|user|>", "<|observation|>")),
    Family("LFM2", f"{TRL}/lfm2_v2.jinja", ("<|im_end|>",)),
]


def user(text):
    return {"role": "user", "content": text}


def told(role, text, **more):
    return {"role": role, "content": text, **more}


RESULT = told("tool", "marktool", tool_call_id=CALL["id"])
CASES = {
    "one turn": [user("markone"), Sampled()],
    "five turns": [each for i in range(5) for each in (user(f"mark{i}"), Sampled())],
    "system": [told("system", "marksystem"), user("markone"), Sampled(), user("marktwo"), Sampled()],
    "developer": [told("developer", "markdeveloper"), user("markone"), Sampled(), user("marktwo"), Sampled()],
    "refusal": [user("markone"), {"role": "assistant", "refusal": "markno"}, user("marktwo"), Sampled()],
    "reasoning": [user("markone"), told("assistant", "markyes", reasoning_content="hm"), user("marktwo"), Sampled()],
    "earlier call": [user("markone"), {"role": "assistant", "tool_calls": [CALL]}, RESULT, Sampled()],
    "calls": [user("markone"), {"role": "assistant", "tool_calls": [CALL]}, RESULT, Sampled(), user("two"), Sampled()],
}
NO_TOOLS, OTHER_FORM = "does not render tools", "the policy's format of tool calls is not supported"
NO_CALLS = "does not render messages of the kind tool_calls"
NOT_ALTERNATING = "the chat template refuses this conversation: .*roles must alternate"
WITHOUT_TOOLS = ["Llama 3", "Gemma", "Gemma 3", "Mistral v1", "Mistral v7", "Phi-3.5", "Phi-4", "SmolLM (ChatML)"]
REFUSED = {
    **{(name, "calls"): NO_TOOLS for name in (*WITHOUT_TOOLS, "DeepSeek-V3", "DeepSeek-R1")},
    **{(name, "calls"): OTHER_FORM for name in ("Qwen3.5", "GLM-4", "LFM2")},
    **{(name, "earlier call"): NO_CALLS for name in WITHOUT_TOOLS},
    **{(name, "earlier call"): NOT_ALTERNATING for name in ("Gemma", "Gemma 3", "Mistral v1")},
    ("DeepSeek-R1", "earlier call"): NO_CALLS,
    ("Mistral v7", "earlier call"): "Only user, system and assistant roles are supported",
    **{("Gemma", role): "System role not supported" for role in ("system", "developer")},
}
"""What is refused, by family and case, and the words."""


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def player(family, tmp_path_factory):
    [packages] = (ROOT / ".venvs" / "templates" / "lib").glob("python3*/site-packages") or [Path()]
    template = packages / family.path
    if not template.is_file():
        pytest.skip(f"{family.path} is not installed: make .venvs/templates/.ready")
    from tests.conftest import _service

    policy = policy_with(template.read_text(), tmp_path_factory.mktemp("policies") / "tiny", family.ends)
    service = _service(policy, tmp_path_factory.mktemp("lab") / "service")
    yield Player(service, policy)
    service.stop()


def is_sampled_and_trained_alike(player, script, tools=()):
    histories = [player.play(script, tools, seed=seed) for seed in (1, 100)]
    steps = player.first_step(histories, tools)
    assert steps
    for step in steps:
        assert step["ratio_mean"] == pytest.approx(1, abs=1e-3)
        assert step["ratio_max"] == pytest.approx(1, abs=1e-3)
    for text, messages in player.prompts:
        for mark in re.findall(r"mark\w+", str([{**m, "reasoning_content": ""} for m in messages])):
            assert mark in text
    player.prompts.clear()
    return histories


@pytest.mark.parametrize("case", CASES)
def test_a_conversation_is_sampled_and_trained_alike_or_refused_in_words(player, family, case):
    if words := REFUSED.get((family.name, case)):
        with pytest.raises(RolloutlabError, match=words):
            player.play(CASES[case], [TOOL] if case == "calls" else ())
    else:
        is_sampled_and_trained_alike(player, CASES[case], [TOOL] if case == "calls" else ())


def test_reasoning_and_answer_of_a_turn_are_apart_and_train_as_sampled(player, family):
    turns = [Written(family.thinks.format("hm", answer) + family.end) for answer in ("markyes", "markno")]
    script = [user("markone"), turns[0], user("marktwo"), turns[1], user("markthree"), Sampled()]
    [history, _] = is_sampled_and_trained_alike(player, script)
    assert [item["message"].get("reasoning_content") for item in (history[1], history[3])] == ["hm", "hm"]
    assert [item["message"]["content"] for item in (history[1], history[3])] == ["markyes", "markno"]


def test_a_sampled_call_is_read_and_trains_as_sampled(player, family):
    if family.call is None:
        pytest.skip("no form of calls that is read")
    end = "" if family.call.endswith(family.ends) else family.end
    script = [user("markone"), Written(family.call + end), told("tool", "marktool", tool_call_id=f"call_{0:024}")]
    [history, _] = is_sampled_and_trained_alike(player, [*script, Sampled(), user("marktwo"), Sampled()], [TOOL])
    [call] = history[1]["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
