"""Something that goes on changing: in place in a notebook, a line per change elsewhere."""

import pytest

from rolloutlab.widgets import live


class Place:
    """Where a notebook shows something: what was shown there, one after the other."""

    def __init__(self) -> None:
        self.shown: list[object] = []

    def update(self, shown: object) -> None:
        self.shown.append(shown)


@pytest.fixture
def places(monkeypatch) -> list[Place]:
    """The places of a notebook that this test is in."""
    made: list[Place] = []

    def display(shown: object, *, display_id: bool) -> Place:
        assert display_id
        made.append(Place())
        made[-1].update(shown)
        return made[-1]

    monkeypatch.setattr(live, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", display)
    return made


def test_elsewhere_each_change_is_a_line():
    lines: list[str] = []
    shown = live.Live(lines.append)
    shown.update(object(), "round 1")
    shown.update(object(), "round 2")
    assert lines == ["round 1", "round 2"]


def test_in_a_notebook_it_changes_in_its_place(places):
    lines: list[str] = []
    shown = live.Live(lines.append)
    shown.update("one", "round 1")
    shown.update("two", "round 2")
    assert [place.shown for place in places] == [["one", "two"]]
    assert lines == []
