"""The practice policy that reasons can be made again from its seed, and the committed one is what its page says."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from practice_policy import evaluate
from practice_policy.exchanges import Exchange, Message, chat_prompt
from practice_policy.make import UNTRAINED, Recipe, encode, render
from practice_policy.make import make as make_base
from practice_policy.reasoning import REASONING_TEMPLATE, TURNS, adding, make, reasoning_exchanges
from transformers import AutoModelForCausalLM, AutoTokenizer

from rolloutlab.api.wire.reasoning import split_reasoning
from rolloutlab.policy.practice import FOLDERS

TINY = Recipe(
    steps=5, batch_tokens=512, vocabulary=400, tokenizer_chats=300, hidden=32, layers=1, heads=2, feed_forward=64
)
FOLDER = FOLDERS["practice-reasoning"]
CHATS = [adding(Random(seed)) for seed in range(100)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy that another learns from, made in a second or two."""
    folder = tmp_path_factory.mktemp("base")
    make_base(folder, seed=7, recipe=TINY)
    return folder


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def played(chats: Sequence[Sequence[Exchange]]) -> list[tuple[str, str]]:
    """Reasoning and answer of the last turn of each chat, whose other turns the committed policy has answered too."""
    model, tokenizer = evaluate.load(FOLDER)
    talks: list[list[Message]] = [[] for _ in chats]
    for turn in range(TURNS):
        for talk, chat in zip(talks, chats, strict=True):
            talk.append(chat[turn].prompt[-1])
        asked = [replace(chat[turn], prompt=talk) for talk, chat in zip(talks, chats, strict=True)]
        for talk, answer in zip(talks, evaluate.answers(model, tokenizer, asked, sampled=True), strict=True):
            thought, said = split_reasoning(answer["content"])
            talk.append({"role": "assistant", "content": said, "reasoning_content": thought})
    return [(talk[-1]["reasoning_content"], talk[-1]["content"]) for talk in talks]


def test_the_same_seed_makes_the_same_files_and_another_seed_other_weights(base: Path, tmp_path: Path) -> None:
    for name, seed in (("one", 7), ("again", 7), ("other", 8)):
        make(tmp_path / name, base=base, seed=seed, recipe=TINY)

    assert files(tmp_path / "again") == files(tmp_path / "one")
    assert files(tmp_path / "other")["model.safetensors"] != files(tmp_path / "one")["model.safetensors"]


def test_the_committed_files_are_at_most_three_megabytes_and_use_the_template_of_this_code() -> None:
    committed = files(FOLDER)

    assert committed.keys() == files(FOLDERS["practice"]).keys()
    assert sum(map(len, committed.values())) <= 3_000_000
    assert committed["chat_template.jinja"].decode() == REASONING_TEMPLATE
    assert AutoModelForCausalLM.from_pretrained(FOLDER).dtype == torch.bfloat16


def test_the_template_keeps_reasoning_since_the_last_question_and_drops_it_before(tokenizer: Any) -> None:
    chat = adding(Random(1), forgotten=0)
    first, second = chat[0].answer, chat[1].answer

    text = render(tokenizer, chat[1].messages, [])

    assert f"<|im_start|>assistant\n{first['content']}<|im_end|>" in text
    assert text.endswith(f"<think>\n{second['reasoning_content']}\n</think>\n\n{second['content']}<|im_end|>\n")
    asked_again = render(tokenizer, [*chat[1].messages, *chat_prompt("Add ?")], [], prompt=True)
    assert "<think>" not in asked_again
    assert asked_again.endswith("<|im_start|>assistant\n")


def test_only_the_last_answer_is_trained_with_its_reasoning(tokenizer: Any) -> None:
    [sequence] = encode(tokenizer, [CHATS[0][2]], last_only=True)

    trained = tokenizer.decode([token for token in sequence.labels if token != UNTRAINED])
    answer = CHATS[0][2].answer
    assert trained == f"<think>\n{answer['reasoning_content']}\n</think>\n\n{answer['content']}<|im_end|>"


def test_an_answer_is_the_sum_of_its_reasoning_which_is_right_unless_a_carry_is_forgotten() -> None:
    for exchange in (exchange for chat in CHATS for exchange in chat):
        left, right, answer = map(int, re.findall(r"\d+", exchange.answer["reasoning_content"]))
        assert exchange.answer["content"] == str(answer)
        assert answer in {left + right, left + right - 10}
    assert all(each.check(each.answer) for seed in range(50) for each in adding(Random(seed), forgotten=0))
    assert 0.1 < sum(chat[-1].check(chat[-1].answer) for chat in CHATS) / len(CHATS) < 0.6


def test_training_never_shows_what_is_held_out() -> None:
    exchanges = reasoning_exchanges(Random(1))

    assert not any(next(exchanges).held_out for _ in range(2000))


def test_the_committed_policy_reasons_and_is_right_after_five_turns_now_and_then() -> None:
    torch.manual_seed(0)
    ended = played(CHATS)

    assert sum(bool(thought) for thought, _ in ended) / len(ended) > 0.9
    right = [chat[-1].check({"content": said}) for chat, (_, said) in zip(CHATS, ended, strict=True)]
    assert 0.05 < sum(right) / len(right) < 0.6
