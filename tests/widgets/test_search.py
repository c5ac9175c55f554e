"""How hits are shown: the passage that matched, everything else as text, whatever was written in it."""

import pytest

from rolloutlab.widgets.search import Shown, html, passage, terms_of, text

LONG = (
    "user: " + "before " * 100 + "the needle lies here " + "after " * 100 + "\n\nassistant: I see\nassistant: no answer"
)


@pytest.fixture
def row():
    """Makes a row of the table."""
    record = {"name": "letters:1/0/3", "score": 0.25, "values": {"reward": 0.5}, "document": "user: a\n\nassistant: b"}
    return lambda **overrides: Shown(**record | overrides)


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


def test_a_table_says_place_score_name_and_fields(row):
    shown = text(["8 records → 1 row, 0 ms"], [row()], ["user"], 1)
    assert shown.splitlines() == [
        "8 records → 1 row, 0 ms",
        "  0     0.2500  letters:1/0/3  reward 0.5",
        "       user: a assistant: b",
    ]


def test_matched_words_are_marked_and_the_conversation_opens_without_scripts(row):
    shown = html(["plan", "a warning"], [row(document="user: A b\n\nassistant: <b>a</b>")], ["a"], 1)
    assert "<p>plan</p><p><b>a warning</b></p>" in shown
    assert "<mark>A</mark> b" in shown
    assert "<details><summary>" in shown
    assert "<pre>user: A b\n\nassistant: &lt;b&gt;a&lt;/b&gt;</pre>" in shown


def test_nothing_that_was_written_acts(row):
    hostile = "<script>alert(1)</script>\x1b[31m\u202e"
    shown = html([hostile], [row(name=hostile, values={hostile: hostile}, document=hostile)], ["script"], 1)
    assert not [acting for acting in ("<script", "\x1b", "\u202e") if acting in shown]
    shown = text([hostile], [row(name=hostile, values={"x": hostile}, document=hostile)], [], 1)
    assert not [acting for acting in ("\x1b", "\u202e") if acting in shown]


def test_of_much_some_is_shown_and_the_rest_counted(row):
    rows = [row(name=f"letters:1/0/{i}") for i in range(100)]
    assert text(["plan"], rows, [], 5_000).endswith("... and 4,980 more: result.to_frame()")
    assert html(["plan"], rows, [], 5_000).endswith("<p>... and 4,900 more: result.to_frame()</p>")
    assert len(html(["plan"], [row(document="x" * 1_000_000)], [], 1)) < 10_000
