"""How hits are shown: the passage that matched, everything else as text, whatever was written in it."""

from dataclasses import replace

import pytest

from rolloutlab.search import Knn
from rolloutlab.search.engine.plan_text import ExecutionPlan
from rolloutlab.search.query import WORDS, Search
from rolloutlab.trajectories.search_view import heading
from rolloutlab.widgets.search import SearchTexts, Shown, passage, search_listing, terms_of

LONG = (
    "user: " + "before " * 100 + "the needle lies here " + "after " * 100 + "\n\nassistant: I see\nassistant: no answer"
)


@pytest.fixture
def row():
    """Makes a row of the table."""
    record = {"name": "letters:1/0/3", "score": 0.25, "values": {"reward": 0.5}, "document": "user: a\n\nassistant: b"}
    return lambda **overrides: Shown(**record | overrides)


@pytest.fixture
def listing():
    """Makes the table of some hits."""

    def make(rows, terms, about="of 8 contain these words", warnings=()):
        name = f"{len(rows)} answer{'s' * (len(rows) != 1)}"
        return search_listing(SearchTexts(name, about, warnings), rows, terms, len(rows))

    return make


def test_the_passage_is_around_the_words_that_matched():
    message = passage(LONG, ["needle"])
    assert (message[:8], message[-2:]) == ("… before", " …")
    assert "the needle lies here" in message
    assert len(message) < 170


def test_of_several_places_the_one_with_most_words_is_shown():
    document = "alpha " + "x " * 200 + "beta alpha gamma " + "x " * 200 + "beta"
    assert "beta alpha gamma" in passage(document, ["alpha", "beta", "gamma"])


def test_without_a_match_the_last_answer_is_shown():
    assert passage(LONG, ["nothing"]) == "… assistant: no answer"
    assert passage("user: a\n\nassistant: b", []) == "… assistant: b"
    assert passage("", ["a"]) == ""


def test_words_are_found_whatever_they_mean_to_an_expression():
    assert passage("what (is) this?", ["(is)"]) == "what (is) this?"
    assert terms_of("the (longest) word") == ["longest", "word", "the"]


def test_a_table_says_which_hit_it_is_with_score_name_and_fields(listing, row):
    shown = listing([row(metadata={"tokens": 7})], ["user"]).text()
    assert shown.splitlines() == [
        "1 answer  of 8 contain these words",
        "  hit   match  reward  tokens  from",
        "    0  0.2500     0.5       7  letters:1/0/3",
        "    user: a",
    ]


def test_matched_words_are_marked_and_the_conversation_opens_without_scripts(listing, row):
    hit = row(document="user: A b\n\nassistant: <b>a</b>", metadata={"row.level": "hard", "finish_reason": "length"})
    shown = listing([hit], ["a"], warnings=["a warning"]).html()
    assert shown.index("1 answer") < shown.index("<b>a warning</b>") < shown.index("<table")
    assert "&lt;b&gt;<mark>a</mark>&lt;/b&gt;</summary>" in shown
    assert "user: A b\n\nassistant: &lt;b&gt;a&lt;/b&gt;</div>" in shown
    assert "%group letters:1/0<" in shown
    assert "%branch letters:1/0/3<" in shown
    for fact in ("level</span> hard", "ended</span> cut off"):
        assert fact in shown


def test_equal_texts_with_equal_fields_are_one_row_that_names_all(listing, row):
    rows = [row(name=f"letters:1/0/{i}", document=f"user: {i}\n\nassistant: the same") for i in range(3)]
    made = listing([*rows, row(values={"reward": 1.0}, document="user: x\n\nassistant: the same")], ["same"])
    assert [line.split()[0] for line in made.text().splitlines()[2:6:2]] == ["0", "3"]
    assert "letters:1/0/0 and 2 more" in made.text()
    assert "2 rows for 4 answers: equal texts are one row" in made.text()
    assert "letters:1/0/1, letters:1/0/2" in made.html()


def test_a_full_page_with_equal_texts_says_how_many_hits_have_as_many_rows(row):
    hits = [row(document="user: a\n\nassistant: b")] * 6 + [row(document="user: a\n\nassistant: c")] * 4
    told = SearchTexts("10 answers", "", limit=10)
    line = "2 rows for 10 answers: equal texts are one row"
    assert f"{line} -> -k 50 for about 10" in search_listing(told, hits, [], 10).text()
    assert f"{line} → -k 50 for about 10" in search_listing(told, hits, [], 10).html()
    assert "-k" not in search_listing(SearchTexts("10 answers", ""), hits, [], 10).text()


def test_copies_of_a_prompt_that_has_the_words_are_one_row(listing, row):
    rows = [row(document=f"user: the capital of Peru?\n\nassistant: {i}") for i in range(3)]
    made = listing(rows, ["Peru"])
    assert len(made.rows) == 1
    assert "the capital of <mark>Peru</mark>?" in made.html()


def test_some_hits_have_a_summary_of_their_rewards_and_where_they_are_from(listing, row):
    rows = [row(name=f"{name}:1/0/0", values={"reward": reward}) for name, reward in [("a", 0), ("a", 1), ("b", 1)]]
    shown = listing(rows, []).html()
    assert "0.67" in shown[shown.index("Mean reward") :]
    assert shown.index("<span>a</span>") < shown.index("<span>b</span>")
    assert "Mean reward" not in listing(rows[:2], []).html()


@pytest.mark.parametrize(
    ("rewards", "mean", "drawn"),
    [([1e308] * 4, "1e+308", True), ([1e308, -1e308, 0.0], "0.00", False), ([1e-7] * 3, "1e-07", True)],
)
def test_rewards_of_any_size_are_summed_up(listing, row, rewards, mean, drawn):
    shown = listing([row(values={"reward": reward}) for reward in rewards], []).html()
    assert f">{mean}<" in shown.replace(" ", "")
    assert ("Rewards of these" in shown) == drawn


def test_a_summary_says_over_how_many_hits_a_mean_is(listing, row):
    rows = [row(values={"reward": 1.0}), row(values={"reward": 0.5}), row(values={})]
    assert "0.75 <small>of 2, 1 without a reward</small>" in listing(rows, []).html()
    assert "without a reward" not in listing(rows[:2] * 2, []).html()


def test_a_summary_leaves_out_no_collection(listing, row):
    rows = [row(name=f"col{i % 6}:1/0/{i}", metadata={"finish_reason": f"end {i % 5}"}) for i in range(30)]
    shown = listing(rows, []).html()
    where, ended = shown[shown.index("Where") :].split("Ended")[:2]
    assert [name in where for name in ("col2", "col3", "and 3 more</span>", "<span>15</span>")] == [
        True,
        False,
        True,
        True,
    ]
    assert "and 2 more</span>" in ended
    assert "<span>12</span>" in ended


def test_nothing_that_was_written_acts(listing, row):
    hostile = "<script>alert(1)</script>\x1b[31m\u202e"
    rows = [row(name=hostile, values={hostile: hostile}, document=hostile, metadata={f"row.{hostile}": hostile})] * 3
    made = listing(rows, ["script"], about=hostile, warnings=[hostile])
    assert not [acting for acting in ("<script", "\x1b", "\u202e") if acting in made.html()]
    assert not [acting for acting in ("\x1b", "\u202e") if acting in made.text()]


def test_of_much_some_is_shown_and_the_rest_counted(row):
    texts = SearchTexts("5,000 answers", "")
    rows = [row(name=f"letters:1/0/{i}", document=f"assistant: {i}") for i in range(20)]
    assert search_listing(texts, rows, [], 5_000).text().endswith("... and 4,980 more: result.to_frame()")
    assert len(search_listing(texts, [row(document="x" * 1_000_000)], [], 1).html()) < 30_000


def test_what_ends_at_the_limit_of_its_rank_is_not_counted():
    plan = ExecutionPlan(4549, 4549, False, ((WORDS, 16),), 16, None, 10, 0.005)
    words = Search(rank=Knn("helsinki", key=WORDS, limit=16))
    assert heading(plan, words) == ("10 answers", "the best of 4,549 by these words, 5 ms")
    few = replace(plan, nearest=((WORDS, 7),), scored=7, rows=7)
    assert heading(few, words) == ("7 answers", "of 4,549 contain these words, 5 ms")
