"""What is typed above the columns of a table: which rows it shows, in which order, and how it says no."""

import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.errors import InputError
from rolloutlab.trajectories.table_query import TableColumn, arrange, number_of

Row = dict[str, Any]

ROWS: list[Row] = [
    {"reward": 0.5, "said": "Paris", "source": "hand"},
    {"reward": None, "said": "LYON, or paris?", "source": None},
    {"reward": -1.0, "said": "Lima", "source": "judge"},
    {"reward": 0.5, "said": "", "source": "function"},
    {"reward": 2.0, "said": "straße", "source": "hand"},
]


def columns(rows: list[Row]) -> dict[str, TableColumn]:
    def values(name: str):
        return lambda: [row[name] for row in rows]

    return {
        "reward": TableColumn("number", values("reward")),
        "said": TableColumn("text", values("said")),
        "source": TableColumn("choice", values("source"), choices=("function", "hand", "judge", "none")),
    }


def shown(sort: Any = (), **conditions: Any) -> list[int]:
    return list(arrange(columns(ROWS), len(ROWS), sort, conditions))


def test_without_sort_and_filter_every_row_is_shown_as_it_is():
    assert shown() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("reward", [2, 0, 3, 4, 1]),
        ("-reward", [4, 0, 3, 2, 1]),
        ([["reward", "desc"]], [4, 0, 3, 2, 1]),
        (["-reward", "said"], [4, 3, 0, 2, 1]),
        (["source", "-reward"], [3, 4, 0, 2, 1]),
        ("said", [3, 2, 1, 0, 4]),
    ],
)
def test_rows_are_sorted_by_several_columns_and_what_has_no_value_is_last_in_both_directions(sort, expected):
    assert shown(sort) == expected


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"reward": "> 0.5"}, [4]),
        ({"reward": ">=.5"}, [0, 3, 4]),
        ({"reward": "  <=   0 "}, [2]),
        ({"reward": "< 5e-1"}, [2]),
        ({"reward": "= 0.5"}, [0, 3]),
        ({"reward": "0.50"}, [0, 3]),
        ({"reward": 0.5}, [0, 3]),
        ({"reward": "!= 0.5"}, [2, 4]),
        ({"reward": "-1..0.5"}, [0, 2, 3]),
        ({"reward": "empty"}, [1]),
        ({"reward": "not empty"}, [0, 2, 3, 4]),
        ({"said": "PARIS"}, [0, 1]),
        ({"said": "STRASSE"}, [4]),
        ({"said": ""}, [0, 1, 2, 3, 4]),
        ({"source": "hand"}, [0, 4]),
        ({"source": ["hand", "none"]}, [0, 1, 4]),
        ({"source": [], "reward": None}, [0, 1, 2, 3, 4]),
        ({"source": "hand", "reward": "> 1"}, [4]),
    ],
)
def test_a_condition_keeps_the_rows_that_fit_it(conditions, expected):
    assert shown(**conditions) == expected


@pytest.mark.parametrize("wrong", ["much", "> 0,5", "nan", "> inf", "0..", "1_0", "٣", "> > 1", True, [1.0], {}])
def test_what_is_no_condition_on_a_number_is_refused_with_those_that_are(wrong):
    with pytest.raises(InputError, match=r"reward: .* is not a condition on a number") as raised:
        shown(reward=wrong)
    assert raised.value.hint == "> 0.5, <= 1, = 0, 0..1, empty, not empty"


@pytest.mark.parametrize("wrong", ["hands", ["hand", "nobody"], 5, [None], [["hand"]]])
def test_a_choice_that_there_is_not_is_refused_with_those_that_there_are(wrong):
    with pytest.raises(InputError, match=r"source: .* is not one of its values"):
        shown(source=wrong)


def test_a_text_is_looked_for_with_a_text():
    with pytest.raises(InputError, match="said: 5 is not a text"):
        shown(said=5)


@pytest.mark.parametrize(
    "sort", ["rewards", "-rewards", ["reward", "desc"], [["reward", "down"]], [5], [["rewards", "asc"]]]
)
def test_a_column_or_a_direction_that_there_is_not_is_refused(sort):
    with pytest.raises(InputError):
        shown(sort)


def test_a_column_that_was_meant_is_named():
    with pytest.raises(InputError, match="there is no column 'rewards'") as raised:
        shown(rewards="> 1")
    assert raised.value.hint == "reward"


def test_a_number_is_written_with_a_point_and_in_digits():
    assert [number_of(text) for text in ("0.5", " -1e-3 ", "+.5", "5.")] == [0.5, -0.001, 0.5, 5.0]
    assert [number_of(text) for text in ("", "0,5", "nan", "inf", "1_000", "0x1", "٣", "1 2")] == [None] * 8


def test_a_text_that_is_only_known_by_its_beginning_is_looked_for_by_the_column():
    asked: list[str] = []
    column = TableColumn("text", lambda: ["the beg"] * 3, holding=lambda part: asked.append(part) or {1})
    assert list(arrange({"said": column}, 3, filter={"said": "Ending"})) == [1]
    assert asked == ["Ending"]


NUMBER = st.none() | st.sampled_from([0.0, 0.5, 1.0, -1.0]) | st.floats(-2, 2)
TABLE = st.lists(
    st.fixed_dictionaries(
        {
            "reward": NUMBER,
            "said": st.text("abAB é", max_size=3),
            "source": st.sampled_from(["hand", "judge", "function", None]),
        }
    ),
    max_size=12,
)
KEYS = st.lists(st.tuples(st.sampled_from(["reward", "said", "source"]), st.booleans()), max_size=3)
COMPARISON = st.none() | st.tuples(
    st.sampled_from([">", ">=", "<", "<=", "=", "!="]), st.sampled_from([0.0, 0.5, -1.0])
)
COMPARE = dict(
    zip(
        ["<", "<=", ">", ">=", "=", "!="],
        [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne],
        strict=True,
    )
)


@given(TABLE, KEYS, COMPARISON, st.text("abA", max_size=2), st.sets(st.sampled_from(["hand", "judge", "none"])))
def test_rows_are_those_that_a_naive_implementation_finds_in_its_order(rows, keys, comparison, part, sources):
    def fits(row: Row) -> bool:
        if comparison and (row["reward"] is None or not COMPARE[comparison[0]](row["reward"], comparison[1])):
            return False
        return part.casefold() in row["said"].casefold() and (not sources or (row["source"] or "none") in sources)

    expected = [i for i, row in enumerate(rows) if fits(row)]
    for name, descending in reversed(keys):
        there = [i for i in expected if rows[i][name] is not None]
        for at in range(1, len(there)):  # insertion sort: nothing passes its equal
            while at and _before(rows[there[at]][name], rows[there[at - 1]][name], descending):
                there[at - 1 : at + 1] = there[at], there[at - 1]
                at -= 1
        expected = [*there, *(i for i in expected if rows[i][name] is None)]
    condition = f"{comparison[0]} {comparison[1]}" if comparison else ""
    conditions = {"reward": condition, "said": part, "source": sorted(sources)}
    sort = [f"-{name}" if descending else name for name, descending in keys]
    assert list(arrange(columns(rows), len(rows), sort, conditions)) == expected


def _before(one: Any, other: Any, descending: bool) -> bool:
    one, other = ((value.casefold() if isinstance(value, str) else value) for value in (one, other))
    return one > other if descending else one < other
