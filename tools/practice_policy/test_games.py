"""The practice policy that plays can be made again from its seed, and the committed one is what its page says."""

from pathlib import Path
from random import Random

import pytest
import torch
from practice_policy import evaluate
from practice_policy.exchanges import Exchange, chat_prompt, text_of
from practice_policy.games import HEEDED_SHARE, NUMBERS, SYSTEM, TURNS, game, make
from practice_policy.make import Recipe
from practice_policy.make import make as make_base
from transformers import AutoModelForCausalLM

from rolloutlab.policy.practice import FOLDERS

TINY = Recipe(
    steps=5, batch_tokens=512, vocabulary=400, tokenizer_chats=300, hidden=32, layers=1, heads=2, feed_forward=64
)
FOLDER = FOLDERS["practice-games"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy that another learns from, made in a second or two."""
    folder = tmp_path_factory.mktemp("base")
    make_base(folder, seed=7, recipe=TINY)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def guesses(exchange: Exchange) -> list[int]:
    return [int(text_of(message)) for message in exchange.messages if message["role"] == "assistant"]


def hints(exchange: Exchange) -> list[str]:
    return [text_of(message) for message in exchange.messages if message["role"] == "user"][1:]


def test_the_same_seed_makes_the_same_files_and_another_seed_other_weights(base: Path, tmp_path: Path) -> None:
    for name, seed in (("one", 7), ("again", 7), ("other", 8)):
        make(tmp_path / name, base=base, seed=seed, recipe=TINY)

    assert files(tmp_path / "again") == files(tmp_path / "one")
    assert files(tmp_path / "other")["model.safetensors"] != files(tmp_path / "one")["model.safetensors"]


def test_the_committed_files_are_at_most_three_megabytes_and_use_the_first_policys_tokenizer() -> None:
    committed, others = files(FOLDER), files(FOLDERS["practice"])

    assert committed.keys() == others.keys()
    assert sum(map(len, committed.values())) <= 3_000_000
    assert all(committed[name] == others[name] for name in ("tokenizer.json", "chat_template.jinja", "config.json"))
    assert AutoModelForCausalLM.from_pretrained(FOLDER).dtype == torch.bfloat16


def test_a_game_gives_true_hints_and_ends_when_the_number_is_guessed_or_after_ten_turns() -> None:
    for exchange in (game(Random(seed), 0.5) for seed in range(200)):
        target = int(exchange.key.split()[1])
        *earlier, last = guesses(exchange)
        assert hints(exchange) == ["higher" if guess < target else "lower" for guess in earlier]
        assert target not in earlier
        assert last == target or len(earlier) == TURNS - 1


def test_a_player_who_heeds_every_hint_guesses_what_is_left_and_a_careless_one_also_the_rest() -> None:
    attentive = [game(Random(seed), 1.0) for seed in range(100)]
    careless = [game(Random(seed), HEEDED_SHARE) for seed in range(100)]

    assert all(each.check(each.answer) for each in attentive)
    assert max(len(guesses(each)) for each in attentive) < TURNS
    assert 0 < sum(not each.check(each.answer) for each in careless) < 100


def test_the_committed_policy_answers_with_a_number_of_the_range() -> None:
    torch.manual_seed(0)
    model, tokenizer = evaluate.load(FOLDER)
    first = [10 * tens for tens in range(1, 10)] * 4
    asked = [
        Exchange("guess", chat_prompt(f"Guess a number from {low} to {low + NUMBERS - 1}.", SYSTEM), {}, bool, "")
        for low in first
    ]

    answers = [text_of(each) for each in evaluate.answers(model, tokenizer, asked, sampled=True)]

    allowed = [{str(low + i) for i in range(NUMBERS)} for low in first]
    assert sum(answer in each for answer, each in zip(answers, allowed, strict=True)) / len(first) > 0.9
