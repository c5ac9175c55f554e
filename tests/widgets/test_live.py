"""Something that goes on changing: in place in a notebook, a line per change elsewhere."""

import pytest
from IPython.core.events import EventManager

from rolloutlab.widgets import progress


class Place:
    """Where a notebook shows something: what was shown there, one after the other."""

    def __init__(self) -> None:
        self.shown: list[object] = []

    def update(self, shown: object) -> None:
        self.shown.append(shown)


class Shell:
    """The part of a notebook's shell that tells when a cell has ended."""

    def __init__(self) -> None:
        self.events = EventManager(self, {"post_run_cell": lambda result: None})

    def end_cell(self) -> None:
        self.events.trigger("post_run_cell", None)


@pytest.fixture
def shell(monkeypatch) -> Shell:
    made = Shell()
    monkeypatch.setattr("IPython.get_ipython", lambda: made)
    return made


@pytest.fixture
def places(monkeypatch, shell) -> list[Place]:
    """The places of a notebook that this test is in."""
    made: list[Place] = []

    def display(shown: object, *, display_id: bool) -> Place:
        assert display_id
        made.append(Place())
        made[-1].update(shown)
        return made[-1]

    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", display)
    return made


def test_elsewhere_each_change_is_a_line():
    lines: list[str] = []
    shown = progress.Live(lines.append)
    shown.update(progress.ShownLive(), "round 1")
    shown.update(progress.ShownLive(), "round 2")
    assert lines == ["round 1", "round 2"]


def test_in_a_notebook_it_changes_in_its_place(places):
    lines: list[str] = []
    shown = progress.Live(lines.append)
    one, two = progress.ShownLive(), progress.ShownLive()
    shown.update(one, "round 1")
    shown.update(two, "round 2")
    assert [place.shown for place in places] == [[one, two]]
    assert lines == []


def test_the_result_of_the_cell_that_showed_it_is_not_shown_again_and_that_of_another_is(places, shell):
    shown = progress.ShownLive()
    progress.Live(print).update(shown, "round 1")
    shown._ipython_display_()  # it is done: nothing else is shown
    shell.end_cell()
    with pytest.raises(NotImplementedError):
        shown._ipython_display_()
