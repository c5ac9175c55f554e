"""Changes as HTML: words that differ, an interval beside 0, a bar for each prompt."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.widgets.kit.change import MOST_BARS, differing_runs, draw_change, interval, mark_runs, slope, waterfall

TEXTS = st.lists(st.sampled_from(["a", "b", "cat", " ", "\n", ".", "ß", "→"]), max_size=30).map("".join)


@given(TEXTS, TEXTS)
def test_runs_are_the_texts_and_what_is_not_marked_is_the_same_in_both(before, after):
    runs = differing_runs(before, after)
    assert ["".join(text for text, _ in side) for side in runs] == [before, after]
    same = ["".join(text for text, differs in side if not differs) for side in runs]
    plain = not any(differs for side in runs for _, differs in side)
    assert same[0] == same[1] or plain


@given(TEXTS.filter(str.strip), TEXTS.filter(str.strip))
def test_a_text_is_never_marked_as_a_whole_on_both_sides(before, after):
    runs = differing_runs(before, after)
    assert not all(differs or not text.strip() for side in runs for text, differs in side)


@pytest.mark.parametrize(
    ("before", "after", "old", "new"),
    [
        ("the red cat sat", "the blue cat sat", "the <del>red</del> cat sat", "the <ins>blue</ins> cat sat"),
        ("name FROM t", "name, id FROM t", "name FROM t", "name<ins>, id</ins> FROM t"),
        ("yes", "no, never", "yes", "no, never"),
        ("one\ntwo three four\n", "one\nsix\n", "one\n<del>two three four\n</del>", "one\n<ins>six\n</ins>"),
        ("Sorry, I did", "Sorry, I  did", "Sorry, I did", "Sorry, I  did"),
        ("", "all", "", "all"),
        ("1 < 2 & 3", "1 < 2 & 4", "1 &lt; 2 &amp; <del>3</del>", "1 &lt; 2 &amp; <ins>4</ins>"),
    ],
)
def test_words_are_marked_where_half_are_equal_else_lines_else_nothing(before, after, old, new):
    runs = differing_runs(before, after)
    assert (mark_runs(runs[0], "del"), mark_runs(runs[1], "ins")) == (old, new)


def test_long_texts_are_compared_by_their_lines():
    lines = [f"{i} word word" for i in range(600)]
    runs = differing_runs("\n".join(lines), "\n".join([*lines[:300], "new", *lines[301:]]))
    assert [text for text, differs in runs[0] if differs] == ["300 word word\n"]
    assert [text for text, differs in runs[1] if differs] == ["new\n"]


def places(html):
    return [float(text) for text in re.findall(r"margin-left:([\d.]+)%", html)]


def test_an_interval_stands_where_its_numbers_are_beside_0():
    drawn = interval(-0.1, 0.3, 0.1, "the change")
    zero, low, middle = places(drawn)
    (width,) = (float(text) for text in re.findall(r"width:([\d.]+)%", drawn))
    assert middle - zero == pytest.approx(zero - low)
    assert low + width - zero == pytest.approx(3 * (zero - low))
    assert "rl-none" in drawn
    assert "rl-more" in interval(0.1, 0.3, 0.2, "")
    assert "rl-less" in interval(-0.3, -0.1, -0.2, "")
    assert places(interval(0.1, 0.3, 0.2, ""))[0] == 0


def test_each_change_has_a_bar_on_its_side_of_0():
    drawn = waterfall([-0.5, 0.0, 1.0], "changes")
    up, down = re.findall(r'<span style="height:(\d+)px">', drawn)
    assert (int(up), int(down)) == (48, 24)
    assert re.findall(r'rl-(more|less)" style="height:(\d+)%', drawn) == [
        ("less", "0"),
        ("more", "100"),
        ("less", "100"),
        ("more", "0"),
    ]
    assert waterfall([0.0, 0.0], "") == ""


def test_many_changes_share_bars_and_the_last_is_there():
    drawn = waterfall([i / 1000 for i in range(1000)], "changes")
    assert drawn.count("<i class") - 3 <= MOST_BARS + 1
    assert "a bar for 5" in drawn
    assert "height:100%" in drawn


def test_a_slope_goes_from_the_smaller_to_the_larger_and_its_colour_says_which_was_first():
    assert 'rl-less" style="margin-left:25%;width:50%"' in slope(0.75, 0.25, 0.0, 1.0)
    assert 'rl-more" style="margin-left:25%;width:50%"' in slope(0.25, 0.75, 0.0, 1.0)
    assert "width:0%" in slope(0.5, 0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("by", "drawn"),
    [
        (0.01, '<span class="rl-gained">+0.01</span>'),
        (-0.01, '<span class="rl-lost">\N{MINUS SIGN}0.01</span>'),
        (0.001, '<span class="rl-dim">0.00</span>'),
        (-0.001, '<span class="rl-dim">0.00</span>'),
    ],
)
def test_a_change_has_the_colour_of_its_side_and_none_where_it_rounds_to_0(by, drawn):
    assert draw_change(by) == drawn


def test_changes_of_any_size_are_drawn():
    drawn = waterfall([-1e308, 0.0, 1e308], "changes") + slope(1e307, 9e307, 0.0, 1e308)
    assert 'rl-less" style="height:100%"' in drawn
    assert "margin-left:10%;width:80%" in drawn
