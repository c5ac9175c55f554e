"""HTML of the kit as nodes for a browser."""

from rolloutlab.widgets.html import escape
from rolloutlab.widgets.kit.tree import tree


def test_elements_texts_and_attributes_are_nested_as_in_the_html():
    made = tree('<div class="a"><b>x</b> &amp; y<br>z</div><i></i>')
    assert made == [["div", {"class": "a"}, [["b", {}, ["x"]], " & y", ["br", {}, []], "z"]], ["i", {}, []]]


def test_escaped_text_stays_one_text():
    hostile = "<script>x</script> &lt; \"'"
    assert tree(f"<p>{escape(hostile)}</p>") == [["p", {}, [hostile]]]
