"""The one place that turns text into HTML."""

from rolloutlab.widgets.html import Html, Words, code, escape, for_notebook, html_table, paragraphs, title
from rolloutlab.widgets.text import more, number, text_table


def test_markup_in_a_text_is_escaped_and_what_is_invisible_is_seen():
    assert escape("<b>\u202e&") == "&lt;b&gt;⟨202e⟩&amp;"
    assert title("<i>") == "<p><b>&lt;i&gt;</b></p>"
    assert paragraphs(["<i>", "", "b"]) == "<p>&lt;i&gt;</p><p>b</p>"


def test_what_is_html_already_stays_as_it_is():
    assert escape(code("<b>")) == "<code>&lt;b&gt;</code>"
    assert escape(Html("<b>")) == "<b>"


def test_a_table_escapes_its_cells_and_has_words_on_the_left():
    table = html_table(("<a>", Words("b")), [(1, Words("<c>", columns=2)), (Html("<i>2</i>"), "d")])
    assert table == (
        '<table><tr><th>&lt;a&gt;</th><th style="text-align:left"><div align="left">b</div></th></tr>'
        '<tr><td>1</td><td colspan="2" style="text-align:left;white-space:pre-wrap">'
        '<div align="left">&lt;c&gt;</div></td></tr><tr><td><i>2</i></td><td>d</td></tr></table>'
    )
    assert html_table((), [("a", "b")], labelled=True) == "<table><tr><th>a</th><td>b</td></tr></table>"


def test_an_output_of_a_notebook_shows_invisible_characters_wherever_they_are():
    assert for_notebook("<b>\u200b</b>") == '<div class="tex2jax_ignore mathjax_ignore"><b>⟨200b⟩</b></div>'


def test_columns_of_text_are_as_wide_as_their_widest_cell():
    rows = [("capitals/0", "1", "Paris"), ("a", "-", "")]
    assert text_table(("name", "reward", "answer"), rows, "<4 >7") == [
        "  name        reward  answer",
        "  capitals/0       1  Paris",
        "  a                -",
    ]
    assert text_table(("name", "answer"), [], "<4") == []


def test_what_is_left_out_of_a_list_is_counted():
    assert more(2_000, "%x") == ["... and 2,000 more: %x"]
    assert more(1, "%x", "group") == ["... and 1 more group: %x"]
    assert more(0, "%x") == []
    assert (number(None), number(0.12345)) == ("-", "0.123")
