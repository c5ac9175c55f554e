"""The way between an object in the kernel and a browser that shows it."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter

from rolloutlab.errors import InputError
from rolloutlab.widgets.base import MIME, NotebookView, _widget_class


class Doubler(NotebookView):
    module = "doubler"

    def state(self) -> dict[str, Any]:
        return {}

    def calls(self) -> dict[str, Any]:
        return {"double": self.double}

    def double(self, x: Any) -> int:
        if not isinstance(x, int):
            raise InputError(f"{x!r} is no number", hint="7")
        return 2 * x


def test_a_call_is_answered_under_its_id() -> None:
    assert Doubler().answer({"id": "a/1", "call": "double", "args": {"x": 21}}) == {"id": "a/1", "result": 42}


def test_a_deliberate_error_is_told_with_what_to_type() -> None:
    answer = Doubler().answer({"id": "a/1", "call": "double", "args": {"x": "one"}})
    assert answer == {"id": "a/1", "error": {"message": "'one' is no number", "hint": "7"}}


@pytest.mark.parametrize("asked", [{"call": "treble"}, {"call": "double", "args": {"y": 1}}, {}])
def test_a_call_that_there_is_not_is_told_and_logged(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    answer = Doubler().answer({"id": "a/1", **asked})
    assert answer["error"]["hint"] is None
    assert "Traceback" in capsys.readouterr().err


def test_nothing_is_a_widget_where_no_browser_is() -> None:
    assert Doubler()._repr_mimebundle_() == ({}, {})


@pytest.mark.filterwarnings("ignore:Deprecated in traitlets:DeprecationWarning")  # ipywidgets 7 itself
def test_in_colab_an_output_names_the_widget_manager_that_shows_it(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("rolloutlab.widgets.base.BUNDLES", tmp_path)
    monkeypatch.setattr("rolloutlab.widgets.base.in_notebook", lambda: True)
    for name in ("doubler.js", "doubler.css"):
        (tmp_path / name).write_text("")
    shown, response = DisplayFormatter().format(Doubler(), include={MIME})
    assert list(shown) == [MIME]
    assert response == {}
    url = "https://ssl.gstatic.example/widgets"
    colab = SimpleNamespace(enable_custom_widget_manager=lambda: None, _widgets=SimpleNamespace(_installed_url=url))
    monkeypatch.setitem(sys.modules, "google.colab.output", colab)
    shown, response = DisplayFormatter().format(Doubler(), include={MIME})
    assert list(shown) == [MIME]
    assert response == {MIME: {"colab": {"custom_widget_manager": {"url": url}}}}


def test_a_view_that_has_no_state_tells_why_instead_of_keeping_others_from_loading() -> None:
    class Gone(Doubler):
        def state(self) -> dict[str, Any]:
            raise InputError("it was deleted", hint="%collections --restore it")

    assert Gone().first_state() == {"refused": {"message": "it was deleted", "hint": "%collections --restore it"}}


@pytest.mark.filterwarnings("ignore:Deprecated in traitlets:DeprecationWarning")  # ipywidgets 7 itself
def test_each_kind_of_view_has_a_style_sheet_of_its_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutlab.widgets.base.BUNDLES", tmp_path)
    for name in ("one.js", "one.css", "other.js", "other.css"):
        (tmp_path / name).write_text("")
    styles = {_widget_class(name)(Doubler())._anywidget_id for name in ("one", "other")}
    assert len(styles) == 2
