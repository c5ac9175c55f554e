"""Listings: aligned text that fits a terminal, and times and durations as a person says them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from rolloutlab.widgets.html import Html
from rolloutlab.widgets.kit.listing import Drawn, Listing, ListingRow, ago, draw_mean, duration, percent
from rolloutlab.widgets.kit.table import Heading

NOW = datetime(2026, 11, 27, 14, 30, tzinfo=timezone(timedelta(hours=2)))
COLUMNS = (Heading("name"), Heading("a", middle=True), Heading("reward", number=True), Heading("b", middle=True))


def listing(*rows: ListingRow) -> Listing:
    return Listing("Jobs", "2 of 41", COLUMNS, rows, cells=["%jobs -n 41"])


def test_the_text_is_aligned_and_says_what_to_type():
    made = listing(ListingRow(["x", "1", "0.5", ""]), ListingRow(["longer", "", "0.25", ""], below=["why"]))
    assert made.text().splitlines() == [
        "Jobs  2 of 41",
        "  name    a  reward",
        "  x       1     0.5",
        "  longer       0.25",
        "    why",
        "-> %jobs -n 41",
    ]


def test_columns_in_the_middle_make_way_where_a_terminal_is_narrow():
    rows = [ListingRow(["x" * 40, "m" * 30, "0.5", "z" * 30])]
    lines = listing(*rows).text().splitlines()
    assert max(map(len, lines)) <= 100
    assert "m" * 30 in lines[2]
    assert "z" not in lines[2]
    assert "z" * 30 in listing(*rows).html()


def test_what_hides_in_a_name_is_seen_in_both():
    nasty = "<b>\x1b[31m\u202e\nx"
    made = listing(ListingRow([nasty, "", "", ""]))
    for shown in (made.text(), made.html()):
        assert "\x1b" not in shown
        assert "\u202e" not in shown
    assert "<b>\u241b" not in made.html()
    assert len(made.text().splitlines()) == 4


def test_a_cell_that_is_drawn_has_its_text_too():
    made = listing(ListingRow([Drawn("x", Html("<em>x</em>")), "", "", ""]))
    assert "<em>x</em>" in made.html()
    assert "  x" in made.text().splitlines()


@pytest.mark.parametrize(
    ("time", "text"),
    [
        ("2026-11-27T12:29:30+00:00", "now"),
        ("2026-11-27T12:30:05+00:00", "now"),  # by another clock
        ("2026-11-27T12:28:00+00:00", "2 min ago"),
        ("2026-11-27T09:05:00Z", "11:05"),
        ("2026-11-26T23:30:00+00:00", "01:30"),
        ("2026-11-21T12:00:00+00:00", "21 Nov"),
        ("2025-11-21T12:00:00+00:00", "21 Nov 2025"),
    ],
)
def test_a_time_is_as_a_clock_beside_it_shows_it(time, text):
    made = ago(time, NOW)
    assert made.text == text
    assert datetime.fromisoformat(made.html.split('"')[1]).astimezone(UTC) == datetime.fromisoformat(time)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.31, "0.3 s"),
        (4.4, "4 s"),
        (60, "1 min"),
        (220.4, "3 min 40 s"),
        (3600, "1 h"),
        (6735, "1 h 52 min"),
        (180_000, "2 d 2 h"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds, text):
    assert duration(seconds) == text


def test_little_is_not_nothing():
    assert [percent(share) for share in (0, 0.001, 0.62)] == ["0%", "<1%", "62%"]


def test_nearly_all_is_not_all():
    assert [percent(share) for share in (0.99, 0.997, 1 - 1e-9, 1)] == ["99%", ">99%", ">99%", "100%"]
    assert draw_mean(0.7089).text == "0.71"
    assert [draw_mean(mean).text for mean in (1e-7, -1e300)] == ["1e-07", "-1e+300"]
