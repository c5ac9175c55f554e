"""Progress of long work in a notebook: there while it goes on, gone at the end."""

import pytest

from rolloutlab.widgets import progress
from rolloutlab.widgets.progress import Progress, waiting


class Place:
    """Where a notebook shows something: what was shown there, one after the other."""

    def __init__(self) -> None:
        self.shown: list[object] = []

    def update(self, shown: object, *, raw: bool = False) -> None:
        self.shown.append(shown if raw else repr(shown))


@pytest.fixture
def place(monkeypatch) -> Place:
    """The place of a notebook that this test is in, where nothing is too short to be shown."""
    result = Place()

    def display(shown: object, *, display_id: bool, raw: bool = False) -> Place:
        result.update(shown, raw=raw)
        return result

    monkeypatch.setattr(progress, "_DELAY", 0)
    monkeypatch.setattr(progress, "_VIEW_DELAY", 0)
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", display)
    return result


def test_a_bar_goes_on_in_its_place_and_leaves_no_output_behind(place):
    with Progress("training") as shown:
        shown.update(1, 3)
        shown.update(2, 3, "loss 0.1")
    assert place.shown == [{}, "training: 1 of 3  ", "training: 2 of 3  loss 0.1", {}]  # nbval compares the first alone


def test_a_line_that_is_kept_is_printed_as_where_no_bar_was_shown(place, capsys):
    with Progress("training") as shown:
        shown.update(1, 3)
        shown.keep("the job goes on")
    assert place.shown[-1] == {}
    assert capsys.readouterr().out == "the job goes on\n"


def test_a_view_keeps_itself_up_to_date_and_is_gone_at_the_end(place):
    with Progress("training", view="a view") as shown:
        shown.update(1, 3)
        shown.update(2, 3)
    assert place.shown == [{}, "'a view'", {}]


def test_until_a_view_is_shown_there_is_a_line(place, monkeypatch):
    monkeypatch.setattr(progress, "_VIEW_DELAY", 60)
    with Progress("training", view="a view") as shown:
        shown.update(1, 3)
        shown.leave()
    assert place.shown == [{}, "training: 1 of 3  ", {}]  # the result of the cell is the view


@pytest.mark.parametrize("reason", [lambda shown: shown.leave(), lambda shown: shown.keep("the job goes on")])
def test_a_view_stays_where_it_is_still_of_use(place, reason):
    with Progress("training", view="a view") as shown:
        shown.update(1, 3)
        reason(shown)
    assert place.shown == [{}, "'a view'"]


def test_what_is_over_at_once_is_not_shown(place, monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 60)
    with Progress("training") as shown:
        shown.update(1, 3)
    assert place.shown == []


def test_what_begins_is_shown_before_it_where_it_ends_late(place, monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 0.3)
    monkeypatch.setattr(progress.time, "monotonic", lambda: 0.0)
    with Progress("training") as shown:
        shown.begin("reading 20 trajectories", 0.02)
        assert place.shown == []
        shown.begin("reading 20,000 trajectories", 20.0)
        assert place.shown[-1] == "training: reading 20,000 trajectories"


def test_what_is_waited_for_is_shown_at_once(place, monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 1e9)
    with waiting() as note:
        note("starting the embedded service")
        note("starting the embedded service")
        note("loading the policy")
    line = "rolloutlab: starting the embedded service"
    assert place.shown == [{}, line, "rolloutlab: loading the policy", {}]


def test_a_line_is_taken_away_and_another_one_shown(place):
    with Progress("sign-in") as shown:
        shown.begin("asking")
        shown.clear()
        shown.clear()
        shown.begin("asking")
    assert place.shown == [{}, "sign-in: asking", {}, "sign-in: asking", {}]


def test_a_line_of_a_terminal_is_no_longer_than_that(monkeypatch, capsys):
    monkeypatch.setattr(progress, "in_notebook", lambda: False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    with Progress("sampling") as shown:
        shown.waiting("converting a policy: 12 of 272 tensors, 8 s (a-long-name.gguf)")
    assert capsys.readouterr().out == "\r\x1b[Ksampling: converting a policy: 12 of 27\r\x1b[K"


def test_the_text_of_a_model_cannot_act_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "in_notebook", lambda: False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    with Progress("sampling") as shown:
        shown.update(0, 1, text="a\x1b[2J\nb")
    out = capsys.readouterr().out
    assert "\x1b[2J" not in out
    assert "\n" not in out
