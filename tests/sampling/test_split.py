"""A split of rows: what stays where it is, what stays together, and who is told of a prompt in both parts."""

import json
import random
import re
from datetime import date
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.errors import InputError
from rolloutlab.sampling.dataset import rows_of
from rolloutlab.sampling.near import find_near_duplicates, words_of
from rolloutlab.sampling.plan import plan_new
from rolloutlab.sampling.prompt import fill_text
from rolloutlab.sampling.split import HELD_OUT, TRAIN, normalize, positions_in, ranges_of, split_rows
from rolloutlab.sampling.tools import Tools

ROWS = [{"question": f"What is {i} + {i}?", "topic": f"topic {i % 20}", "answer": 2 * i} for i in range(400)]


def quiet(_line: str) -> None: ...


def test_a_row_is_in_the_same_part_whatever_other_rows_there_are():
    train, held_out = split_rows(ROWS, 0.2, say=quiet)
    more = split_rows([{"question": "new", "topic": "a", "answer": 0}, *ROWS[::-1]], 0.2, say=quiet)
    assert {row["answer"] for row in held_out} == {row["answer"] for row in more.held_out} - {0}
    assert len(train) + len(held_out) == 400
    assert 40 < len(held_out) < 120
    assert repr(train) == f"train: {len(train)} rows"


def test_another_seed_is_another_split_and_the_same_seed_is_the_same():
    one, again, other = (split_rows(ROWS, seed=seed, say=quiet).held_out for seed in (1, 1, 2))
    assert one == again != other


def test_a_part_is_split_again_by_a_hash_of_its_own_and_both_parts_together_as_before():
    rows = [{"n": n} for n in range(4000)]
    first = split_rows(rows, 0.1, say=quiet)
    assert [row["n"] for row in first.held_out[:5]] == [8, 10, 24, 29, 45]
    again = split_rows(first.train, 0.1, say=quiet)
    assert 240 < len(again.held_out) < 480  # 360, and 18 is the standard deviation
    third = split_rows(again.train[:2000], 0.5, say=quiet)
    assert 880 < len(third.held_out) < 1120
    assert 100 < len(split_rows(first.held_out, 0.5, say=quiet).held_out) < 300
    for both in ([*third.train, *first.held_out], [*again.held_out, *rows]):
        held_out = {row["n"] for row in split_rows(both, 0.1, say=quiet).held_out}
        assert held_out == {row["n"] for row in first.held_out}
    both = [*again.train, *again.held_out]
    assert split_rows(both, 0.1, say=quiet).held_out == again.held_out


def test_rows_that_share_a_value_stay_together():
    train, held_out = split_rows(pd.DataFrame(ROWS), 0.3, by="topic", say=quiet)
    assert not {row["topic"] for row in train} & {row["topic"] for row in held_out}
    texts = [{"question": text, "n": n} for n, text in enumerate(["A  b", "a b", "\uff21 B\n"] * 10)]
    with pytest.raises(InputError, match="no row is in"):
        split_rows(texts, 0.5, by=["question"], say=quiet)


def test_prompts_of_both_parts_are_told_with_what_keeps_them_together():
    lines: list[str] = []
    rows = [*ROWS, *({**row, "question": row["question"].upper() + " ", "answer": 0} for row in ROWS)]
    train, held_out = split_rows(rows, 0.3, say=lines.append)
    assert lines[0] == f"train: {len(train)} rows, held_out: {len(held_out)} rows"
    assert lines[1].endswith("-> lab.split(..., by='question')")
    assert len(lines) == 2  # a topic is in both parts, and that is no duplicate
    lines.clear()
    split_rows(rows, 0.3, by="question", say=lines.append)
    assert len(lines) == 1


def test_the_comparison_of_many_prompts_is_announced_after_the_sizes():
    lines: list[str] = []
    split_rows([{"question": f"What is {i} + {i}?", "n": i} for i in range(5000)], say=lines.append)
    assert lines[0].startswith("train: ")
    assert lines[1:] == ["comparing 5,000 texts of question ..."]


def test_conversations_are_compared_by_what_was_asked():
    def chat(text: str, answer: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]

    lines: list[str] = []
    rows = [{"messages": chat(f"Question {i // 2}", str(i))} for i in range(200)]
    split_rows(rows, 0.5, say=lines.append)
    assert "messages that train has too: 'question" in lines[1]


def told(rows: list[dict[str, object]], **options: object) -> list[str]:
    """The lines about duplicates."""
    lines: list[str] = []
    split_rows(rows, options.pop("held_out", 0.3), say=lines.append, **options)
    return lines[1:]


@pytest.mark.parametrize(
    "prompt",
    [
        lambda i: {"question": f"What is {i} + {i}?"},
        lambda i: {"anything": f"What is the capital of country {i}?"},
        lambda i: {"problem": f"{i}+{i}"},
        lambda i: {"prompt": [{"role": "user", "content": f"{i}"}]},
        lambda i: {"prompt": json.dumps([{"role": "user", "content": f"{i}"}])},
        lambda i: {"input": {"text": f"t{i}", "context": ["a", i]}},
        lambda i: {"input": ["a", {"n": i}]},
    ],
)
def test_prompts_that_many_rows_have_are_told_too_and_topics_are_not(prompt):
    rows = [{**prompt(i % 20), "n": i, "topic": f"topic {i % 20}", "system": "You are brief."} for i in range(400)]
    (line,) = told(rows)
    (column,) = prompt(0)
    assert f"rows of held_out with a {column} that train has too: " in line
    assert line.endswith(f"-> lab.split(..., by={column!r})")
    assert told(rows, by=column) == []


def test_questions_about_other_images_are_other_questions():
    def content(i: int) -> list[dict[str, object]]:
        return [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": f"data:,{i}"}}]

    def rows(each: int) -> list[dict[str, object]]:
        return [{"messages": [{"role": "user", "content": content(i // each)}], "n": i} for i in range(100)]

    assert told(rows(1)) == []
    assert len(told(rows(2))) == 1


NAMES = ["Ann", "Bob", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hal", "Ida", "Jo", "Kit", "Lou"]


def story(i: int) -> str:
    name, other = NAMES[i % 12], NAMES[(i // 12) % 12]
    return (
        f"{name} bakes {i} loaves of rye bread for {other}, who sells {i + 3} of them at the market. How many are left"
    )


def test_prompts_that_differ_in_punctuation_or_a_word_are_told_as_near():
    rows = [{"question": story(i)} for i in range(100)]
    assert told(rows) == []  # they differ in their numbers
    lines = told([*rows, *({"question": f"{story(i).replace('rye ', '')} ...?"} for i in range(100))])
    assert len(lines) == 1
    assert "of held_out with a question nearly as in train: '" in lines[0]
    assert "loaves of bread for" in lines[0]
    assert "loaves of rye bread for" in lines[0]


def test_a_long_instruction_that_all_rows_have_makes_no_near_duplicates():
    rule = "Translate the sentence after the colon to French. Answer with the sentence alone, without quotes"
    rows = [{"prompt": f"{rule}: the {one} sees a {other}"} for one in NAMES for other in NAMES]
    assert told(rows) == []


def near_by_definition(ones: list[str], others: list[str]) -> dict[int, int]:
    """As `find_near_duplicates`: each text with each."""

    def parts(text: str) -> tuple[set[str], list[str]]:
        words = words_of(text)
        runs = {" ".join(words[i : i + 3]) for i in range(len(words)) if i == 0 or i + 3 <= len(words)}
        return runs, sorted(word for word in words if re.search(r"\d", word))

    made = [parts(text) for text in ones]
    every = [run for runs, _ in made for run in runs]
    template = {run for run in every if len(ones) >= 30 and every.count(run) > len(ones) / 5}
    near: dict[int, int] = {}
    for i, (runs, numbers) in enumerate(made):
        for j, text in enumerate(others):
            other, others_numbers = parts(text)
            one, two = runs - template, other - template
            if one & two and numbers == others_numbers and Fraction(len(one & two), len(one | two)) >= Fraction(7, 10):
                near[i] = j
                break
    return near


WORDS = st.lists(st.sampled_from(["a", "b", "c", "1", "2", "+", "東"]), min_size=1, max_size=8).map(" ".join)
TEXTS = st.lists(WORDS, max_size=8)


@given(TEXTS, TEXTS)
def test_near_duplicates_are_those_of_the_definition(ones, others):
    ones = list(dict.fromkeys(ones))
    assert find_near_duplicates(ones, others) == near_by_definition(ones, others)


def test_near_duplicates_of_many_texts_are_those_of_the_definition():
    draw = random.Random(0)

    def text() -> str:
        start = draw.randrange(6)
        return " ".join(["solve", "this", "now", *(f"w{start}{k}" for k in range(12) if draw.random() > 0.06)])

    ones, others = list(dict.fromkeys(text() for _ in range(60))), [text() for _ in range(200)]
    near = find_near_duplicates(ones, others)
    assert near == near_by_definition(ones, others)
    assert 10 < len(near) <= len(ones)


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        ("what is the capital of france", "what is the capital of france?!", True),
        ("3 + 4", "3 - 4", False),
        ("3 + 4 =", "3 + 5 =", False),
        ("\u6771\u4eac\u306f\u4f55\u3067\u3059\u304b", "\u6771\u4eac\u306f\u4f55\u3067\u3059\u304b\u3002", True),
        ("yes", "no", False),
        ("?", "!", False),
    ],
)
def test_of_punctuation_only_operators_make_another_text(one, other, near):
    assert bool(find_near_duplicates([one], [other])) is near


@pytest.mark.parametrize("share", [0, 1, 1.5, -0.1, 20, "0.1", float("nan")])
def test_a_share_is_between_nothing_and_everything(share):
    with pytest.raises(InputError, match="held_out must be between 0 and 1"):
        split_rows(ROWS, share, say=quiet)


def test_a_column_that_a_row_lacks_is_named_with_the_row():
    with pytest.raises(InputError, match="row 1 has no column 'topic'"):
        split_rows([{"topic": 1}, {"question": "?"}], by="topic", say=quiet)


@given(st.lists(st.booleans(), max_size=40))
def test_ranges_are_the_positions_of_the_rows_of_a_part(held_out):
    rows = rows_of([{"n": i} for i in range(max(1, len(held_out)))])
    for row, held in zip(rows, held_out, strict=False):
        row.part = HELD_OUT if held else TRAIN
    plan = {"parts": ranges_of(rows)}
    assert positions_in(plan, HELD_OUT) == {i for i, held in enumerate(held_out) if held}
    assert positions_in(plan, TRAIN) == {i for i, held in enumerate(held_out) if not held}


@pytest.mark.parametrize(
    "select",
    [lambda part: part, lambda part: part[:5], lambda part: [row for row in part if row["answer"] % 4], reversed],
)
def test_what_is_selected_of_a_part_is_still_of_it_and_no_template_sees_that(select):
    held_out = split_rows(ROWS, say=quiet).held_out
    rows = list(select(held_out))
    work = plan_new("x", "{{question}}", rows, None, {}, {"model": "lab/a"}, Tools(()))
    assert work.plan.parts == {HELD_OUT: [(0, len(rows) - 1)]}
    assert all(set(group.row) == {"question", "topic", "answer"} for group in work.groups)
    with pytest.raises(InputError, match="neither a column nor a variable"):
        plan_new("x", "{{part}}", rows, None, {}, {"model": "lab/a"}, Tools(()))


def test_a_row_of_a_part_that_was_changed_is_made_plain_again():
    held_out = split_rows([{"n": n, "day": date(2026, 1, 1 + n % 30)} for n in range(200)], say=quiet).held_out
    held_out[0]["at"] = pd.Timestamp("2026-01-31")
    held_out[0]["day"] = 3
    held_out[1]["more"] = np.arange(2)
    rows = rows_of(held_out)
    assert (rows[0]["at"], rows[0]["day"], rows[1]["more"]) == ("2026-01-31T00:00:00", 3, [0, 1])
    assert [row.kinds for row in rows[:2]] == [{"at": "datetime"}, {"day": "date"}]
    assert {row.part for row in rows} == {HELD_OUT}
    held_out[0]["n"] = object()
    assert "n" not in rows_of(held_out)[0]
    with pytest.raises(InputError, match="column 'n': a object cannot be kept as JSON"):
        fill_text("{{n}}", rows_of(held_out)[0])


def test_texts_are_normalized_as_a_person_compares_them():
    assert normalize("  What\tIS\n\uff11+1 ?") == normalize("what is 1+1 ?")


def test_training_on_what_is_held_out_is_noticed_and_so_is_comparing_on_what_is_trained(session):
    train, held_out = session.split(ROWS[:40], 0.4, say=quiet)
    session.chat("sums", "{{question}}", over=held_out, n=2, max_tokens=2)
    session.reward("sums", lambda trajectory, answer, messages, row: float(len(answer)), say=quiet)
    report = repr(session.check("sums"))
    assert f"{len(held_out)} prompts of sums held out by a split" in report
    session.continue_chat("sums", "And?", max_tokens=2)
    assert positions_in(session.collection("sums").stored.plan, HELD_OUT) == set(range(len(held_out)))
    session.chat("sums", "{{question}}", over=train[:4], n=2, max_tokens=2)
    session.reward("sums", lambda trajectory, answer, messages, row: float(len(answer)), say=quiet)
    assert "held out" not in repr(session.check("sums"))
    compared = session.compare("sums", after=0)
    assert "4 of these prompts are of the part train of a split -> --over split.held_out" in compared.words()
    compared = session.compare("sums", after=0, over=iter(held_out))
    assert not any("of the part train" in line for line in compared.words())


def test_a_loop_refuses_to_train_on_what_is_held_out_that_a_function_gives(session):
    train, held_out = session.split(ROWS[:40], 0.4, say=quiet)
    rounds = {1: train[:2], 2: iter(held_out)}
    with pytest.raises(InputError, match="rows of the part held_out of a split cannot be over="):
        session.loop("sums", "{{question}}", lambda answer: 0.0, over=rounds.get, n=2, max_tokens=2, jobs=2)
    assert len(session.collections()) == 1  # of the first round


@pytest.mark.parametrize("wrong", ["over", "held_out"])
def test_a_loop_refuses_to_train_on_what_is_held_out(session, wrong):
    train, held_out = session.split(ROWS[:40], 0.4, say=quiet)
    rows = {"over": train, "held_out": held_out, wrong: held_out if wrong == "over" else train}
    with pytest.raises(InputError, match=f"of a split cannot be {wrong}="):
        session.loop("sums", "{{question}}", lambda trajectory, answer, messages, row: 0.0, **rows, jobs=1)
    assert session.collections().empty
