"""A small chart: what is in the picture, what its axes say, and the same as text."""

import math
import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.widgets.plot import Panels, Plot, Series, sparklines

HOSTILE = '<script>alert("x")</script>&\''
NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.none()


def line(*y: float | None, label: str = "reward", **more) -> Series:
    return Series(label, [float(i) for i in range(len(y))], y, **more)


def drawn(plot) -> ElementTree.Element:
    return ElementTree.fromstring(plot._repr_svg_())


def found(tree: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return tree.findall(f".//{{http://www.w3.org/2000/svg}}{tag}")


def words(tree: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in found(tree, "text")]


def test_every_point_is_a_dot_inside_the_picture():
    plot = Plot([line(0.1, 0.9, 0.4), line(None, 2.0, math.nan, label="other")])
    dots = [dot for dot in found(drawn(plot), "circle") if dot.get("r") == "2"]
    assert len(dots) == 4
    assert all(0 <= float(dot.get("cx")) <= plot.width for dot in dots)
    assert all(0 <= float(dot.get("cy")) <= plot.height for dot in dots)


def test_more_is_higher_and_later_is_further_right():
    first, last = (dot for dot in found(drawn(Plot([line(0.0, 1.0)])), "circle"))
    assert float(first.get("cx")) < float(last.get("cx"))
    assert float(first.get("cy")) > float(last.get("cy"))


def test_the_axes_have_round_numbers_around_what_is_shown():
    plot = Plot([line(0.13, 0.87)], title="letters", x_label="round")
    assert words(drawn(plot)) == ["letters", "0", "0.2", "0.4", "0.6", "0.8", "1", "0", "1", "round"]


def test_counts_have_no_halves_on_their_axis():
    plot = Plot([Series("reward", [1.0, 2.0], [0.0, 1.0])])
    assert words(drawn(plot))[-3:] == ["1", "2", ""]


def test_several_series_are_named_and_one_is_not():
    assert {"one", "two"} <= set(words(drawn(Plot([line(1.0, label="one"), line(2.0, label="two")]))))
    assert "one" not in words(drawn(Plot([line(1.0, label="one")])))


def test_words_take_the_colour_of_the_page_or_one_that_reads_on_any():
    plot = Plot([line(1.0)])
    assert 'color="inherit"' in plot.svg()
    assert 'color="#808080"' in plot._repr_svg_()


def test_what_anyone_wrote_is_text():
    tree = drawn(Plot([line(1.0, label=HOSTILE), line(1.0, label="b")], title=HOSTILE, x_label=HOSTILE))
    assert {element.tag.rpartition("}")[2] for element in tree.iter()} <= {"svg", "title", "text", "path", "circle"}
    assert words(tree).count(HOSTILE) == 3


def test_as_text_each_series_is_a_line_with_its_course_and_its_ends():
    plot = Plot([line(0.0, 0.5, 1.0, label="reward"), line(2.0, label="loss"), line(label="none")], title="letters")
    assert repr(plot).splitlines() == ["letters", "reward  ▁▅█  0 -> 1", "loss    ▁  2", "none    -"]


def test_a_long_course_is_still_a_line():
    (shown,) = sparklines([line(*range(1000))])
    assert len(shown) < 90
    assert shown.endswith("0 -> 999")


@given(st.lists(NUMBERS, max_size=5))
def test_any_numbers_can_be_shown(y):
    plot = Plot([line(*y), line(*y, line=False)])
    assert not re.search(r"nan|inf\b", plot._repr_svg_().replace("inherit", ""))
    assert len(drawn(plot)) > 0
    assert repr(plot)


def test_panels_are_side_by_side_two_in_a_row():
    panels = drawn(Panels([Plot([line(1.0)], title=title) for title in "abc"]))
    assert [(inner.get("x"), inner.get("y")) for inner in panels] == [("0", "0"), ("480", "0"), ("0", "220")]
    assert (panels.get("width"), panels.get("height")) == ("960", "440")


def test_without_panels_it_is_said_what_is_missing():
    assert Panels([], empty="no steps yet")._repr_svg_() is None
    assert repr(Panels([], empty="no steps yet")) == "no steps yet"
