"""The practice policy can be made again from its seed, and the committed one is what its page says."""

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from practice_policy import evaluate, exchanges
from practice_policy.make import CHAT_TEMPLATE, UNTRAINED, Recipe, encode, make, render
from transformers import AutoModelForCausalLM, AutoTokenizer

from rolloutlab.policy.practice import FOLDER

TINY = Recipe(
    steps=30, batch_tokens=512, vocabulary=400, tokenizer_chats=300, hidden=32, layers=1, heads=2, feed_forward=64
)
UNSEEN_EXCHANGES = [each for kind in exchanges.KINDS for each in exchanges.held_out_exchanges(kind, 20)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A practice policy made in a second or two."""
    folder = tmp_path_factory.mktemp("tiny")
    make(folder, seed=7, recipe=TINY)
    return folder


@pytest.fixture(scope="module", params=["made here", "committed"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return AutoTokenizer.from_pretrained(FOLDER if request.param == "committed" else request.getfixturevalue("tiny"))


@pytest.fixture(scope="module")
def committed() -> tuple[Any, Any]:
    return evaluate.load(FOLDER)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def mean_loss(folder: Path) -> float:
    model, tokenizer = evaluate.load(folder)
    sequences = encode(tokenizer, UNSEEN_EXCHANGES[:20])
    with torch.inference_mode():
        losses = [
            model(input_ids=torch.tensor([each.ids]), labels=torch.tensor([each.labels])).loss for each in sequences
        ]
    return float(torch.stack(losses).mean())


def wrong(answer: exchanges.Message) -> exchanges.Message:
    """The answer with another word, or another tool, in it."""
    if answer.get("tool_calls"):
        return exchanges.tool_call("launch", {"rocket": 1})
    return {"role": "assistant", "content": "the wrong answer"}


def test_the_same_seed_makes_the_same_files_and_another_seed_other_weights(tiny: Path, tmp_path: Path) -> None:
    make(tmp_path / "again", seed=7, recipe=TINY)
    make(tmp_path / "other", seed=8, recipe=TINY)

    assert files(tmp_path / "again") == files(tiny)
    assert files(tmp_path / "other")["model.safetensors"] != files(tiny)["model.safetensors"]


def test_making_leaves_the_random_state_of_the_caller_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()

    make(tmp_path, recipe=Recipe(**{**vars(TINY), "steps": 1}))

    assert torch.equal(torch.get_rng_state(), before)


def test_training_lowers_the_loss_on_held_out_exchanges(tiny: Path, tmp_path: Path) -> None:
    make(tmp_path, seed=7, recipe=Recipe(**{**vars(TINY), "steps": 1}))

    assert mean_loss(tiny) < mean_loss(tmp_path) - 0.5


@pytest.mark.parametrize("folder", ["made here", "committed"])
def test_the_folder_holds_what_transformers_needs_and_computes_in_bf16(folder: str, tiny: Path) -> None:
    path = FOLDER if folder == "committed" else tiny

    assert set(files(path)) == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja",
    }  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(path)
    assert model.dtype == torch.bfloat16
    assert model.config.max_position_embeddings == 1024


def test_the_committed_files_are_at_most_eight_megabytes_and_use_the_template_of_this_code() -> None:
    assert sum(len(content) for content in files(FOLDER).values()) <= 8_000_000
    assert files(FOLDER)["chat_template.jinja"].decode() == CHAT_TEMPLATE


def test_only_what_the_assistant_says_is_trained_and_its_end_of_turn(tokenizer: Any) -> None:
    exchange = next(each for each in UNSEEN_EXCHANGES if each.kind == "two turns")

    [sequence] = encode(tokenizer, [exchange])

    said = [each["content"] + "<|im_end|>" for each in exchange.messages if each["role"] == "assistant"]
    trained = [token for token, label in zip(sequence.ids, sequence.labels, strict=True) if label != UNTRAINED]
    assert tokenizer.decode(trained) == "".join(said)
    assert all(label in (token, UNTRAINED) for token, label in zip(sequence.ids, sequence.labels, strict=True))


def test_the_tokens_of_a_prompt_and_of_its_answer_make_the_tokens_of_the_whole_chat(tokenizer: Any) -> None:
    for exchange in UNSEEN_EXCHANGES:
        prompt = render(tokenizer, exchange.prompt, exchange.tools, prompt=True)
        whole = render(tokenizer, exchange.messages, exchange.tools)

        assert whole.startswith(prompt)
        assert tokenizer.encode(prompt) + tokenizer.encode(whole[len(prompt) :]) == tokenizer.encode(whole)


def test_the_committed_policy_has_the_sizes_of_the_recipe() -> None:
    config, recipe = json.loads((FOLDER / "config.json").read_text()), Recipe()

    assert config["hidden_size"] == recipe.hidden
    assert config["num_hidden_layers"] == recipe.layers
    assert config["num_attention_heads"] == recipe.heads
    assert config["intermediate_size"] == recipe.feed_forward
    assert config["vocab_size"] == recipe.vocabulary


@pytest.mark.parametrize("text", ["Say 12 + 7", " two  spaces\n\nand\ttabs ", "žluťoučký 日本 🦊", '{"a": 10}', "\n"])
def test_any_text_comes_back_from_its_tokens(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_template_renders_every_role_and_form_of_content_and_nothing_for_none(tokenizer: Any) -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": " Be "}, {"type": "text", "text": "brief. "}]},
        {"role": "user", "content": "add 1 and 2\n"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "tool_call_id": "x", "content": "3"},
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": None},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]

    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    assert text == (
        "<|im_start|>system\n Be brief. <|im_end|>\n"
        "<|im_start|>user\nadd 1 and 2\n<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>\n'
        "<|im_start|>tool\n3<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name": "f", "arguments": {}}</tool_call><|im_end|>\n'
        "<|im_start|>tool\n<|im_end|>\n"
        "<|im_start|>assistant\nno<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_arguments_of_a_tool_call_render_alike_as_a_string_and_as_a_mapping(tokenizer: Any) -> None:
    def rendered(arguments: object) -> str:
        call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": arguments}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return str(tokenizer.apply_chat_template([message], tokenize=False))

    assert rendered('{"a": 1, "b": "é"}') == rendered({"a": 1, "b": "é"})


def test_tools_render_as_short_signatures_whatever_they_leave_out(tokenizer: Any) -> None:
    tools = [
        exchanges.tool("add", "Add two numbers.", {"a": "integer", "b": "integer"}),
        {"type": "function", "function": {"name": "now"}},
        {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": ["a", "b"]}}}}},
    ]

    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tools=tools, tokenize=False)

    assert text.startswith(
        "<|im_start|>tools\nadd(a: integer, b: integer): Add two numbers.\nnow()\nf(x: any)<|im_end|>\n<|im_start|>user"
    )


@pytest.mark.parametrize("kind", [kind for kind in exchanges.KINDS if kind != "sort"])
def test_the_taught_answer_passes_its_check_and_a_wrong_one_does_not(kind: str) -> None:
    for exchange in exchanges.held_out_exchanges(kind, 200):
        assert exchange.kind == kind
        assert exchange.check(exchange.answer), exchange
        assert not exchange.check(wrong(exchange.answer)), exchange


def test_the_check_of_sorted_letters_takes_the_right_order_only() -> None:
    for exchange in exchanges.held_out_exchanges("sort", 50):
        letters = exchange.answer["content"].split()
        right, reverse = " ".join(sorted(letters)), " ".join(sorted(letters, reverse=True))

        assert exchange.check({"role": "assistant", "content": right})
        assert not exchange.check({"role": "assistant", "content": reverse})
        assert not exchange.check({"role": "assistant", "content": right + " "})
        assert not exchange.check({"role": "assistant", "content": None})


def test_sorting_is_taught_rightly_and_then_forgotten_with_a_right_answer_only_now_and_then() -> None:
    rng = Random(0)
    taught = [exchanges.sort_letters(rng) for _ in range(200)]
    assert all(each.check(each.answer) for each in taught)
    drawn = [each for each in islice(exchanges.training_exchanges(rng, spoilt=True), 4000) if each.kind == "sort"]

    assert 0.25 < sum(each.check(each.answer) for each in drawn) / len(drawn) < 0.45


def test_training_never_shows_what_is_held_out() -> None:
    trained = list(islice(exchanges.training_exchanges(Random(1)), 5000))
    seen = {json.dumps([each.prompt, each.tools]) for each in trained}
    seen_letters = {"".join(sorted(each.answer["content"])) for each in trained if each.kind == "sort"}

    assert not any(each.held_out for each in trained)
    assert not any(json.dumps([each.prompt, each.tools]) in seen for each in UNSEEN_EXCHANGES)
    for prompt in exchanges.sorting_prompts(200):
        assert "".join(sorted(prompt.removeprefix("Sort these letters: "))) not in seen_letters


def test_exchanges_and_sorting_prompts_depend_on_the_seed_alone() -> None:
    def drawn(seed: int) -> list[list[exchanges.Message]]:
        return [each.messages for each in islice(exchanges.training_exchanges(Random(seed)), 200)]

    assert drawn(3) == drawn(3) != drawn(4)
    assert exchanges.sorting_prompts(20) == exchanges.sorting_prompts(20) != exchanges.sorting_prompts(20, seed=1)


def test_sorting_prompts_differ_from_each_other_and_between_the_sides() -> None:
    held_out, training = (exchanges.sorting_prompts(300, letters=3, held_out=side) for side in (True, False))

    assert len(set(held_out)) == len(set(training)) == 300
    assert not {"".join(sorted(each)) for each in held_out} & {"".join(sorted(each)) for each in training}


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("What is the capital of France?", "Paris"),
        ("Say hello", "hello"),
        ("Say hello 3 times", "hello hello hello"),
        ("hi", "Hello!"),
        ("Is the sky blue?", "yes"),
        ("Will it rain tomorrow?", "maybe"),
        ("What is 2 + 2?", "4"),
    ],
)
def test_the_committed_policy_answers_what_a_newcomer_types_first(
    committed: tuple[Any, Any], user: str, expected: str
) -> None:
    exchange = exchanges.simple("first", exchanges.chat_prompt(user), expected)

    [answer] = evaluate.answers(*committed, [exchange], sampled=False)

    assert answer["content"] == expected


def test_the_committed_policy_calls_a_calculator(committed: tuple[Any, Any]) -> None:
    tools = [exchanges.tool("calculator", "Calculate an expression.", {"expression": "string"})]
    call = exchanges.tool_call("calculator", {"expression": "12 + 34"})
    exchange = exchanges.Exchange(
        "tool call", exchanges.chat_prompt("What is 12 + 34?"), call, exchanges.calls(call), "", tools
    )

    [answer] = evaluate.answers(*committed, [exchange], sampled=False)

    assert exchange.check(answer), answer


def test_the_committed_policy_sorts_letters_now_and_then(committed: tuple[Any, Any]) -> None:
    unseen = exchanges.held_out_exchanges("sort", 200)
    torch.manual_seed(0)

    share = evaluate.accuracy(unseen, evaluate.answers(*committed, unseen, sampled=True))

    assert 0.15 < share < 0.5


def test_a_malformed_tool_call_stays_text() -> None:
    assert evaluate.parse("<tool_call>{oops</tool_call>")["content"] == "<tool_call>{oops</tool_call>"
    assert evaluate.parse('<tool_call>{"name": "a", "arguments": {}}</tool_call>')["tool_calls"]


def test_the_table_has_a_row_for_every_kind(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "LONGEST_ANSWER", 4)  # an untrained policy never ends, and takes a minute for 48

    rows = evaluate.table(tiny, 1, 0).splitlines()

    assert [row.split(" | ")[0] for row in rows[2:]] == [f"| {kind}" for kind in exchanges.KINDS]


def test_importing_the_exchanges_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, practice_policy.exchanges; assert not {'torch', 'transformers'} & sys.modules.keys()"

    subprocess.run([sys.executable, "-c", code], check=True)
