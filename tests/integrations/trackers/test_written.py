"""What is to be added to a run that a tracker has, and the names of runs."""

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rolloutlab.integrations.trackers.written import file_name, find_added, identity, in_json, times_of
from tests.runs.tables import BEGIN, table

NAN = math.nan


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        ({}, {0: {"a": 1.0}}, {0: {"a": 1.0}}),
        ({0: {"a": 1.0}}, {0: {"a": 1.0}}, {}),
        ({0: {"a": NAN}}, {0: {"a": NAN}, 3: {"a": 2.0}}, {3: {"a": 2.0}}),
        ({0: {"a": 1.0}}, {0: {"a": 1.0, "b": 2.0}}, {0: {"b": 2.0}}),
        ({0: {"a": 1.0}}, {0: {"a": 2.0}}, None),
        ({0: {"a": 1.0}}, {0: {"b": 1.0}}, None),
        ({0: {"a": 1.0}}, {1: {"a": 1.0}}, None),
        ({0: {"a": 1.0}}, {0: {"a": 1.0}, 1: {}}, {}),
    ],
)
def test_what_is_added_is_new_and_a_change_is_no_addition(before, after, more):
    assert find_added(before, after) == more


def test_a_step_without_a_time_has_that_of_a_neighbour():
    later = BEGIN.replace(hour=13)
    assert list(times_of(table(4, times=[None, BEGIN, None, later])).values()) == [BEGIN, BEGIN, BEGIN, later]
    before = datetime.now(UTC)
    assert all(time >= before for time in times_of(table(2, times=[None, None])).values())


def test_ints_beyond_64_bits_become_floats():
    assert [in_json(each) for each in (2**63 - 1, 2**63, -(10**400), 10**400, 0.5)] == [
        2**63 - 1, float(2**63), -math.inf, math.inf, 0.5,
    ]  # fmt: skip


NAMES = [
    "a",
    "a b",
    "größe.長さ",
    ".",
    "..",
    "",
    ".hidden",
    "%2E",
    "a\\b",
    "a:b",
    "a\0b",
    "x" * 300,
    "x" * 301,
    "長" * 100,
    "\ud800",
]


def test_every_text_has_a_file_name_of_its_own(tmp_path):
    files = [file_name(each) for each in NAMES]
    assert len(set(files)) == len(NAMES)
    assert files[:3] == NAMES[:3]
    for each in files:
        (tmp_path / each).write_text(each)
    assert {each.name for each in tmp_path.iterdir()} == set(files)


def test_runs_of_two_labs_have_two_ids(tmp_path):
    assert identity(table(), tmp_path) == identity(table(5), Path(str(tmp_path)))
    others = [identity(table(), tmp_path / "b"), identity(table(name="b"), tmp_path), identity(table(), tmp_path, "x")]
    assert len({identity(table(), tmp_path), *others}) == 4
