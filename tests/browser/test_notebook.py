"""The page that the other tests handle: a test in a browser is worth what it notices."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.process

COUNTER = """\
import ipywidgets
pressed = []
button = ipywidgets.Button(description="more")
button.on_click(lambda _: pressed.append(1) or setattr(button, "description", f"{len(pressed)} more"))
button
"""
MODULE = """\
import anywidget

class Shown(anywidget.AnyWidget):
    _esm = "export default {{ render({{ el }}) {{ {} }} }}"

Shown()
"""


def test_a_reload_keeps_kernel_and_widgets_and_a_restart_begins_anew(notebook):
    shown = notebook.run(COUNTER)
    shown.get_by_role("button", name="more").click()
    notebook.reload()
    shown.get_by_role("button", name="1 more").click()
    expect(shown.get_by_role("button", name="2 more")).to_be_visible()
    assert notebook.text_of(notebook.run("len(pressed)")) == "2"
    notebook.restart_kernel()
    assert "NameError" in notebook.text_of(notebook.run("pressed", fails=True))


def test_the_theme_and_the_width_of_the_window_change(notebook):
    shown = notebook.run("'light and wide'")
    wide = shown.bounding_box()["width"]
    notebook.theme("JupyterLab Dark")
    notebook.narrow()
    assert shown.bounding_box()["width"] < wide
    assert notebook.screenshot("dark-and-narrow").exists()


@pytest.mark.parametrize("front_end", ["lab"])
def test_whatever_a_module_throws_is_noticed(notebook):
    for thrown in ("throw new Error('lost')", "throw 'lost'", "Promise.reject('lost')", "let let"):
        with notebook.page.expect_event("pageerror"):
            notebook.run(MODULE.format(thrown))
        assert notebook.errors(), thrown
        notebook.said.clear()
