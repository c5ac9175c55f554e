"""The columns of rows in frames: with the types that they had when they were sampled."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from rolloutlab.sampling.dataset import kinds_of, rows_of
from rolloutlab.trajectories.frame import Frame, add_row_columns

NOON = datetime(2026, 1, 31, 12, 30)
ROWS = [
    {"at": NOON, "zoned": NOON.replace(tzinfo=UTC), "day": date(2026, 1, 31), "noon": time(12, 30), "n": 1, "ok": True},
    {"at": None, "zoned": None, "day": None, "noon": None, "n": None, "ok": None, "price": None, "x": None, "s": None},
    {
        "at": pd.Timestamp(NOON) + pd.Timedelta(1, "ns"),
        "zoned": NOON.replace(tzinfo=timezone(timedelta(hours=2))),
        "day": date(1, 1, 1),
        "noon": time(0),
        "n": 2**60,
        "ok": np.bool_(False),
        "price": Decimal("1.10"),
        "x": np.float32(0.5),
        "s": "a",
        "list": [1, {"a": None}],
        "mixed": 1,
    },
    {"mixed": "a", "list": np.arange(2)},
]


def typed(given: list) -> pd.DataFrame:
    rows = rows_of(given)
    frame = Frame({"reward": [0.0] * len(rows)}, index=[f"c/0/{i}" for i in range(len(rows))])
    return add_row_columns(frame, rows, kinds_of(rows))


def test_values_come_back_with_their_types():
    frame = typed(ROWS)
    assert isinstance(frame, Frame)
    assert list(frame.columns)[:3] == ["reward", "row.at", "row.zoned"]
    first, last = frame.iloc[0], frame.iloc[2]
    assert (first["row.at"], last["row.at"]) == (NOON, pd.Timestamp(NOON) + pd.Timedelta(1, "ns"))
    assert first["row.zoned"] == NOON.replace(tzinfo=UTC)
    assert last["row.zoned"] == NOON.replace(tzinfo=timezone(timedelta(hours=2)))
    assert (first["row.day"], last["row.day"]) == (date(2026, 1, 31), date(1, 1, 1))
    assert (first["row.noon"], last["row.noon"]) == (time(12, 30), time(0))
    assert (first["row.n"], last["row.n"]) == (1, 2**60)
    assert frame["row.n"].dtype == "Int64"
    assert frame["row.ok"].dtype == "boolean"
    assert last["row.price"] == Decimal("1.10")
    assert (last["row.x"], last["row.s"], last["row.list"], last["row.mixed"]) == (0.5, "a", [1, {"a": None}], 1)
    assert frame.iloc[3]["row.list"] == [0, 1]
    assert frame.iloc[1].drop("reward").isna().all()


def test_datetimes_with_and_without_a_time_zone_come_back_as_they_were():
    given = [NOON, NOON.replace(tzinfo=UTC), None, NOON.replace(tzinfo=timezone(timedelta(hours=2)))]
    back = typed([{"x": value} for value in given])["row.x"].tolist()
    assert back == given
    assert [each and each.utcoffset() for each in back] == [each and each.utcoffset() for each in given]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], "int64"),
        ([1.5, None], "float64"),
        ([1, 2.5], "float64"),
        ([True, False], "bool"),
        ([2**70, None], object),
        ([None, None], object),
        ([True, 1], object),
        ([[1], [2]], object),
    ],
)
def test_a_column_has_the_type_of_its_values(values, dtype):
    assert typed([{"x": value} for value in values])["row.x"].dtype == dtype


@pytest.mark.parametrize("kind", ["datetime", "date", "time", "decimal", "of a newer version"])
def test_text_that_is_not_of_the_type_stays_text(kind):
    frame = add_row_columns(Frame(index=["c/0/0"]), [{"x": "not that"}], {"x": kind})
    assert list(frame["row.x"]) == ["not that"]


def test_types_go_through_the_lab_and_into_both_frames(session):
    rows = [{"day": date(2026, 1, day), "n": None if day > 1 else day} for day in (1, 2)]
    made = session.chat("days", "hello", over=rows, n=2, max_tokens=2)
    for frame in (made.to_frame(), session.rewards("days").to_frame(), session.rewards("days/1").to_frame()[-2:]):
        assert list(frame["row.day"])[-2:] == [date(2026, 1, 2)] * 2
        assert frame["row.n"].dtype in ("Int64", object)
    session.continue_chat("days", "And?", max_tokens=2)
    assert session.collection("days").to_frame()["row.day"].iloc[0] == date(2026, 1, 1)
    row = session.collection("days").groups[0].row
    assert row == {"day": "2026-01-01", "n": 1}


def test_a_collection_without_types_has_its_rows_as_json(session):
    session.chat("days", "hello", over=[{"day": "2026-01-01"}], max_tokens=2)
    assert list(session.collection("days").to_frame()["row.day"]) == ["2026-01-01"]
    assert "types" not in session.collection("days").stored.plan
