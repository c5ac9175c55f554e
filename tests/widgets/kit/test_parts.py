"""Parts of views as HTML: escaped text, shares of bars, hints in order, tables and charts."""

import re
from urllib.parse import unquote
from xml.etree import ElementTree

from rolloutlab.hints import as_hint
from rolloutlab.widgets.html import Html, paragraphs
from rolloutlab.widgets.kit.chart import ChartLine, chart, spark
from rolloutlab.widgets.kit.parts import Hint, bars, chip, figure, foot, head, hints, panel, parts, share, style
from rolloutlab.widgets.kit.table import Heading, TableRow, table

NASTY = '<img src=x onerror=alert(1)> "quoted" \u202e'


def test_every_text_is_escaped_and_shows_what_is_invisible():
    hint = Hint(NASTY, NASTY, NASTY)
    made = [
        head(NASTY, NASTY, chip(NASTY)),
        hints([hint, hint, hint]),
        figure(NASTY, NASTY, NASTY),
        parts([(NASTY, 0.5, NASTY)]),
        bars([1, 2], NASTY, NASTY, NASTY),
        table([Heading(NASTY)], [TableRow([NASTY])], NASTY),
        chart(
            NASTY, [ChartLine(NASTY, [(0, 1), (1, 2)]), ChartLine(NASTY, [(0, 0)])], value=NASTY, says=NASTY, x=NASTY
        ),
    ]
    for html in made:
        assert "<img src=x" not in html
        assert "&lt;img src=x" in html
        assert "\u202e" not in html
        assert 'alert(1)> "' not in html


def test_the_style_comes_once_with_a_panel_and_has_no_comment():
    assert panel("a").count("<style>") == 1
    assert "<style>" not in panel("a", styled=False)
    assert "/*" not in style()
    assert "{color-scheme:dark}" in style().replace(" ", "")
    assert style().count("{") == style().count("}")


def test_two_hints_are_shown_and_the_others_are_folded():
    shown = hints([Hint("first"), Hint("second"), Hint("third"), Hint("fourth")])
    assert shown.index("second") < shown.index("<details") < shown.index("third") < shown.index("fourth")
    assert "2 more" in shown
    assert "<details" not in hints([Hint("first"), Hint("second")])


def test_a_hint_is_a_line_of_text_too():
    assert Hint("31 of 32 failed.", "1 did not.", "%group a").line() == "31 of 32 failed. 1 did not. -> %group a"


def test_shares_add_up_to_the_bar_and_nothing_is_drawn_for_none():
    drawn = share((0.5, ""), (0.0, "pass"), (0.5, "fail"))
    assert re.findall(r"width:(\d+)%", drawn) == ["50", "50"]
    assert "rl-pass" not in drawn


def test_a_count_of_one_among_thousands_is_seen():
    heights = [float(height) for height in re.findall(r"height:([\d.]+)%", bars([1, 0, 10_000], "0", "1", "rewards"))]
    assert heights == [5, 0, 100]


def test_a_histogram_of_some_has_all_behind_them():
    drawn = bars([1, 0], "0", "1", "rewards", of=[4, 2])
    assert re.findall(r"<u style=.height:([\d.]+)%", drawn) == ["25", "0"]


def test_a_column_without_anything_is_left_out():
    html = table(
        [Heading("a"), Heading("cost", number=True)],
        [TableRow(["x", ""]), TableRow(["y", ""], opens=Html("<p>more</p>"))],
    )
    assert "cost" not in html
    assert '<td class="rl-open" colspan="1"><p>more</p></td>' in html


def test_a_row_opens_below_itself_by_its_first_cell():
    html = table([Heading("a"), Heading("b")], [TableRow(["x", "1"], opens=Html("<p>more</p>")), TableRow(["y", "2"])])
    assert html.count("<details>") == html.count('<tr class="rl-below">') == 1
    assert "<summary>x</summary></details></td>" in html
    assert html.index("<summary>x") < html.index("<p>more</p>") < html.index('<td align="left">y')


def _drawn(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(unquote(re.search(r'src="data:image/svg\+xml,([^"]*)"', html)[1]))


def test_a_chart_is_a_picture_with_its_axes_as_text():
    html = chart(
        "reward", [ChartLine("trained on", [(0, 0.2), (1, 0.4), (2, 0.9)]), ChartLine("held out", [(0, 0.1), (2, 0.5)])]
    )
    lines = [each for each in _drawn(html) if each.get("stroke-width") == "2"]
    assert lines[0].get("d") == "M0.0 88.0L300.0 66.0L600.0 11.0"
    assert lines[1].get("stroke-dasharray")
    assert "<span>1</span><span>0.5</span><span>0</span>" in html
    assert "trained on: 0.2 to 0.9; held out: 0.1 to 0.5" in html
    assert "svg" not in re.sub(r'src="[^"]*"', "", html)


def test_a_chart_of_many_points_keeps_the_last():
    html = chart("loss", [ChartLine("loss", [(float(i), 0.0 if i < 9_999 else 1.0) for i in range(10_000)])])
    [line] = [each for each in _drawn(html) if each.get("stroke-width") == "2"]
    assert line.get("d").count("L") <= 400
    assert line.get("d").endswith(" 0.0")


def test_nothing_is_drawn_of_nothing():
    assert chart("reward", [ChartLine("reward", [])]) == ""
    assert spark([1.0]) == ""
    assert "NaN" not in spark([1.0, 1.0])


def test_a_page_shows_one_arrow_before_what_to_type_and_leaves_code_alone():
    line = "1 of 2 groups fails, by `f(x)->y` -> sample more, or score finer"
    shown = "1 of 2 groups fails, by `f(x)-&gt;y` → sample more, or score finer"
    for html in (foot(line), paragraphs([line]), hints([as_hint(line)]).replace("</b>", "")):
        assert shown in html
    assert as_hint(line).line() == line  # text keeps two ASCII characters
