"""Large collections are shown before they are read."""

import json

import pytest

from rolloutlab.trajectories.rewards_data import read_first_page
from rolloutlab.trajectories.rewards_view import RewardsView

ALL = 6


@pytest.fixture
def collections(lab, sample, give):
    """One of six trajectories, five of them scored, and one of six that has no rewards."""
    sample()
    give(1.0, 0.0, 0.5, 0.5, 1.0, right=1.0)
    sample("rivers")
    return [lab.find("capitals"), lab.find("rivers")]


def test_what_can_be_read_at_once_is_not_glimpsed(lab, collections):
    assert read_first_page(lab, collections, 3, at_once=2 * ALL) is None


def test_a_glimpse_is_the_first_page_without_what_depends_on_every_row(lab, collections):
    page = read_first_page(lab, collections, 8, at_once=2 * ALL - 1)
    whole = RewardsView(lab, collections).page(0, 8)
    unknown = {"advantage": None, "reason": None, "why_not": None, "why": None}
    assert page["rows"] == [{**row, **unknown} for row in whole["rows"]]
    mean, counts = whole["summary"].pop("mean_reward"), ("trajectories", "scored", "groups")
    response = {name: whole["summary"][name] for name in counts}
    assert page["summary"] == {**response, "mean_reward": pytest.approx(mean), "trainable": None}
    assert (page["offset"], page["total"], page["filtered"]) == (0, 2 * ALL, 2 * ALL)


def test_a_browser_gets_a_glimpse_first_and_the_whole_when_it_asks_for_the_page(lab, collections):
    view = RewardsView(lab, collections, at_once=1)
    state = view.state()
    assert json.loads(json.dumps(state)) == state
    assert (state["title"], state["components"], state["summary"]["trainable"]) == ("capitals, rivers", ["right"], None)
    page = view.page()
    assert page["summary"]["trainable"] == 2
    assert view.state()["page"] == page


def test_a_change_before_all_is_read_is_told_to_the_browser(lab, collections, give):
    view = RewardsView(lab, collections, at_once=1)
    pushed = []
    view.push = lambda event, **_: pushed.append(event)
    give(0.25)
    assert pushed == ["changed"]
    assert view.page()["rows"][0]["reward"] == 0.25


def test_where_no_browser_is_all_is_read_to_be_shown(lab, collections):
    view = RewardsView(lab, collections, at_once=1)
    assert "2 will train" in repr(view)
    assert "2 will train" in view._repr_html_()


def test_in_a_notebook_text_and_html_of_what_is_not_read_say_so(lab, collections, monkeypatch):
    view = RewardsView(lab, collections, at_once=1)
    monkeypatch.setattr(view, "can_be_seen", lambda: True, raising=False)
    assert "capitals, rivers: 12 trajectories in 4 groups, mean reward 0.600 (5 scored)" in repr(view)
    assert "what would train is known when all is read" in view._repr_html_()
    view.page()
    assert "2 will train" in repr(view)
