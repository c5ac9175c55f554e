"""The rows of prompts: frames, lists, iterators and files, with what pandas and NumPy put into them made plain."""

import io
import itertools
import json
import re
import sys
from collections import deque
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from functools import partial
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.sampling.dataset import describe_left_out, kinds_of, rows_of
from rolloutlab.sampling.numbers import shorten
from rolloutlab.sampling.prompt import fill_text
from rolloutlab.sampling.split import split_rows


def test_without_rows_there_is_one_empty_row():
    assert rows_of(None) == [{}]


def test_a_frame_gives_one_row_per_row():
    frame = pd.DataFrame({"country": ["France", "Peru"], "n": [1, 2]}, index=[7, 7])
    assert rows_of(frame) == [{"country": "France", "n": 1}, {"country": "Peru", "n": 2}]


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_mappings_gives_their_columns_and_any_other_value_is_the_item(kind):
    assert rows_of(kind([{"country": "France"}, "Peru", 3])) == [{"country": "France"}, {"item": "Peru"}, {"item": 3}]


def test_the_names_of_columns_are_texts():
    assert rows_of(pd.DataFrame([[1, 2]])) == [{"0": 1, "1": 2}]


@pytest.mark.parametrize(("scalar", "plain"), [(np.int64(2), 2), (np.float32(1.5), 1.5), (np.bool_(True), True)])
@pytest.mark.parametrize("over", [lambda x: [{"item": x}], lambda x: [x], lambda x: pd.DataFrame({"item": [x]})])
def test_scalars_of_numpy_become_pythons(over, scalar, plain):
    (row,) = rows_of(over(scalar))
    assert row == {"item": plain}
    assert type(row["item"]) is type(plain)


@pytest.mark.parametrize("missing", [float("nan"), np.float64("nan"), None])
def test_what_is_missing_is_none(missing):
    (row,) = rows_of([{"country": "France", "population": missing}])
    assert row == {"country": "France", "population": None}


@pytest.mark.parametrize("dtype", ["float", "Int64", "string", "datetime64[ns]"])
def test_what_a_frame_calls_missing_is_none_for_every_type_of_column(dtype):
    (row,) = rows_of(pd.DataFrame({"x": pd.Series([None], dtype=dtype)}))
    assert row == {"x": None}


@pytest.mark.parametrize("over", [{"country": "France"}, 3, np.array(1), b"France", bytearray(b"France"), object()])
def test_rows_of_another_kind_are_refused(over):
    with pytest.raises(InputError, match=f"cannot sample over a {type(over).__name__}"):
        rows_of(over)


@pytest.mark.parametrize("over", [[], (), pd.DataFrame({"country": []})])
def test_no_rows_are_refused(over):
    with pytest.raises(InputError, match="no rows"):
        rows_of(over)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.arange(2000), list(range(2000))),
        (np.array([[1.5, float("nan")]]), [[1.5, None]]),
        (np.array(3), 3),
        (np.array(["a"]), ["a"]),
        (pd.Series([1, 2]), [1, 2]),
        (pd.Timestamp("2026-01-31 12:00"), "2026-01-31T12:00:00"),
        (np.datetime64("2026-01-31T12:00:00"), "2026-01-31T12:00:00"),
        (np.array(["2026-01-31", "NaT"], dtype="datetime64[D]"), ["2026-01-31", None]),
        (date(2026, 1, 31), "2026-01-31"),
        ({"a": [float("nan"), pd.NA, {"b": pd.NaT}]}, {"a": [None, None, {"b": None}]}),
        ([Decimal("NaN"), Decimal("sNaN"), Decimal("1.10")], [None, None, "1.10"]),
        ((1, np.float32(0.5)), [1, 0.5]),
        (2**70, 2**70),
    ],
    ids=str,
)
@pytest.mark.parametrize("over", [lambda x: [{"x": x}], lambda x: pd.DataFrame({"x": pd.Series([x], dtype=object)})])
def test_values_are_kept_as_json_holds_them(over, value, plain):
    (row,) = rows_of(over(value))
    assert row == {"x": plain}
    assert json.loads(json.dumps(row, allow_nan=False)) == row


@pytest.mark.parametrize(
    "value", [float("inf"), -np.inf, np.float32("inf"), [1, {"a": float("inf")}], np.array([np.inf])]
)
def test_what_is_infinite_is_refused_with_its_row_and_column(value):
    with pytest.raises(InputError, match=r"row 1, column 'x': -?inf cannot be kept as JSON"):
        rows_of([{"x": 1}, {"x": value}])


def test_an_integer_of_any_length_is_kept():
    assert rows_of([{"x": 10**400}]) == [{"x": 10**400}]


@pytest.mark.parametrize("value", ["\ud83d", ["a", {"b": "a\ud83d"}]])
def test_half_of_a_surrogate_pair_is_refused_with_its_line_and_column(tmp_path, value):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"x": "\U0001f600", "bad": ""}) + "\n" + json.dumps({"x": 1, "bad": value}))
    rows = rows_of(path)
    assert rows == [{"x": "\U0001f600", "bad": ""}, {"x": 1}]
    with pytest.raises(InputError, match=r"a\.jsonl, line 2, column 'bad': the text contains a lone surrogate"):
        fill_text("{{bad}}", rows[1])


def test_what_is_nested_too_deeply_is_refused_with_its_row_and_column():
    value: list[object] = []
    for _ in range(2000):
        value = [value]
    with pytest.raises(InputError, match="row 0, column 'x': nested too deeply"):
        rows_of([{"x": value}])


@pytest.mark.parametrize("value", [object(), {1, 2}, b"a", 1j, np.complex64(1), np.timedelta64(1, "s"), pd.DataFrame()])
def test_an_object_is_refused_with_its_row_and_column(value):
    with pytest.raises(InputError, match=f"row 0, column 'x': a {type(value).__name__} cannot be kept"):
        rows_of([{"x": value}])


@pytest.mark.parametrize(
    ("over", "said"),
    [
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), "the frame has 'x' twice"),
        (pd.DataFrame([[1, 2]], columns=[1, "1"]), "the frame has '1' twice"),
        ([{"x": 1}, {1: "a", "1": "b"}], "row 1 has '1' twice"),
        ([{"x": {1: "a", "1": "b"}}], "row 0, column 'x' has '1' twice"),
    ],
)
def test_no_column_is_lost_to_another_of_the_same_name(over, said):
    with pytest.raises(InputError, match=said):
        rows_of(over)


def test_rows_of_arrays_and_dates_come_back_from_the_lab_as_they_were_given(session):
    given = [{"dates": [pd.Timestamp("2026-01-31")], "grid": np.arange(1500)}]
    session.chat("c", "hello", over=given, max_tokens=2)
    (group,) = session.collection("c").groups
    assert group.row == {"dates": ["2026-01-31T00:00:00"], "grid": list(range(1500))}


def test_a_row_without_a_column_that_others_have_does_not_get_a_variable_instead(session):
    with pytest.raises(InputError, match="row 1 has no column 'country'"):
        session.chat("c", "{{country}}", over=[{"country": "Peru"}, {"city": "Lima"}], variables={"country": "France"})
    assert session.collections().empty


@pytest.mark.parametrize(
    "over",
    [
        ({"x": i} for i in range(3)),
        iter([{"x": 0}, {"x": 1}, {"x": 2}]),
        deque([{"x": 0}, {"x": 1}, {"x": 2}]),
        {i: {"x": i} for i in range(3)}.values(),
    ],
    ids=lambda over: type(over).__name__,
)
def test_any_iterable_gives_rows(over):
    assert rows_of(over) == [{"x": 0}, {"x": 1}, {"x": 2}]


def test_of_an_endless_iterator_as_many_rows_are_read_as_the_limit_says():
    count = itertools.count()
    assert rows_of(count, 3) == [{"item": 0}, {"item": 1}, {"item": 2}]
    assert next(count) == 3


@pytest.mark.parametrize("over", [list("abc"), pd.DataFrame({"item": list("abc")}), pd.DataFrame({"item": ["a", "b"]})])
def test_a_limit_is_no_more_than_the_rows_there_are(over):
    assert rows_of(over, 2) == [{"item": "a"}, {"item": "b"}]
    assert len(rows_of(over, 100)) == len(over)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "3"])
def test_a_limit_is_a_positive_number(limit):
    with pytest.raises(InputError, match="limit must be an integer"):
        rows_of(["a"], limit)


def test_a_path_is_a_file_and_an_error_in_a_row_names_its_line_and_column(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": NaN}\n{"x": [1, {"y": Infinity}]}\n')
    assert rows_of(path, 1) == rows_of(str(path), 1) == [{"x": None}]
    with pytest.raises(InputError, match=r"a\.jsonl, line 2, column 'x': inf cannot be kept as JSON"):
        rows_of(path)
    with pytest.raises(NotFoundError, match="there is no file countries"):
        rows_of("countries")


def test_a_row_without_a_column_that_others_have_is_named_by_its_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1}\n\n{"y": 1}\n')
    assert [row.place for row in rows_of(path)] == ["a.jsonl, line 1", "a.jsonl, line 3"]


def test_splits_of_a_dataset_are_named():
    class DatasetDict(dict):
        """As that of the library `datasets`."""

    with pytest.raises(InputError, match="a DatasetDict has several splits: train, test") as refused:
        rows_of(DatasetDict(train=[], test=[]))
    assert refused.value.hint == "rows = data['train']"


def test_a_dict_with_one_list_of_dicts_gives_those_rows():
    rows = [{"x": 1}, {"x": 2}]
    assert rows_of({"version": "1.1", "data": rows}) == rows
    with pytest.raises(InputError, match="the dict has several lists of rows: data, more") as refused:
        rows_of({"data": rows, "more": rows})
    assert refused.value.hint == "over=data[KEY]"


class Level(str, Enum):  # noqa: UP042 - the kind that older code has
    """A text that `str` represents as `Level.HIGH`."""

    HIGH = "high"


class Loud(str):
    """A text whose `str` is another one."""

    def __str__(self) -> str:
        return f"<Loud {len(self)}>"


def test_members_of_an_enumeration_and_kinds_of_text_are_their_values():
    (row,) = rows_of([{"level": Level.HIGH, "n": [IntEnum("Number", "ONE").ONE], "text": Loud("ab")}])
    assert row == {"level": "high", "n": [1], "text": "ab"}
    assert [type(value) for value in (row["level"], row["n"][0], row["text"])] == [str, int, str]


@pytest.mark.parametrize("lazy", [False, True])
def test_frames_of_polars_give_rows(lazy):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"x": [1, None], "day": [date(2026, 1, 31), None], "list": [[1, 2], []]})
    rows = rows_of(frame.lazy() if lazy else frame, 1)
    assert rows == [{"x": 1, "day": "2026-01-31", "list": [1, 2]}]
    assert kinds_of(rows) == {"day": "date"}
    assert len(rows_of(frame.lazy() if lazy else frame)) == 2


def test_datasets_of_hugging_face_give_rows_and_streams_no_more_than_is_asked_for():
    datasets = pytest.importorskip("datasets")
    messages = [{"role": "user", "content": "hi"}]
    data = datasets.Dataset.from_list([{"n": n, "messages": messages} for n in range(3)])
    assert rows_of(data) == [{"n": n, "messages": messages} for n in range(3)]
    assert rows_of(data.to_iterable_dataset(), 1) == [{"n": 0, "messages": messages}]
    read = []

    def endless():
        for n in itertools.count():
            read.append(n)
            yield {"n": n}

    assert rows_of(datasets.IterableDataset.from_generator(endless), 4) == [{"n": n} for n in range(4)]
    assert len(read) <= 5
    with pytest.raises(InputError, match="a DatasetDict has several splits: train, test"):
        rows_of(datasets.DatasetDict(train=data, test=data))


def test_tables_of_arrow_give_rows():
    pyarrow = pytest.importorskip("pyarrow")
    assert rows_of(pyarrow.table({"x": [1, 2], "y": ["a", None]}), 1) == [{"x": 1, "y": "a"}]


def unreadable_of_arrow():
    """By type, arrays of Arrow whose first value Python cannot hold."""
    pyarrow = pytest.importorskip("pyarrow")
    buffers = pyarrow.array(["xx", "yy"]).buffers()
    return {
        "timestamp[ms]": pyarrow.array([2**60, 1000], pyarrow.timestamp("ms")),
        "date32[day]": pyarrow.array([2**30, 1], pyarrow.date32()),
        "string": pyarrow.Array.from_buffers(pyarrow.string(), 2, [None, buffers[1], pyarrow.py_buffer(b"\xff\xfeyy")]),
    }


@pytest.mark.parametrize("source", ["table", "batch", "frame", "file", "lists"])
@pytest.mark.parametrize("kind", ["timestamp[ms]", "date32[day]", "string"])
def test_values_of_arrow_that_python_cannot_hold_are_left_out_by_name(kind, source, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    array = unreadable_of_arrow()[kind]
    if source == "lists":
        array = pyarrow.ListArray.from_arrays([0, 1, 2], array)
    table = pyarrow.table({"q": ["a", "b"], "t": array})
    if source == "file":
        from pyarrow import parquet

        parquet.write_table(table, tmp_path / "a.parquet")
    sources = {
        "batch": lambda: table.to_batches()[0],
        "frame": lambda: table.to_pandas(types_mapper=pd.ArrowDtype),
        "file": lambda: tmp_path / "a.parquet",
    }
    rows = rows_of(sources.get(source, lambda: table)())
    assert [row["q"] for row in rows] == ["a", "b"]
    assert ["t" in row for row in rows] == [False, True]
    (line,) = describe_left_out(rows)
    assert re.search(
        rf"column 't': Python cannot hold this [^:]*(: )?{re.escape(kind)}>?: .*: left out of 1 row ->", line
    )


def test_two_columns_of_arrow_with_one_name_are_refused():
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["x", "x"])
    with pytest.raises(InputError, match="the table has 'x' twice"):
        rows_of(table)


def test_a_table_of_arrow_without_columns_has_its_rows():
    pyarrow = pytest.importorskip("pyarrow")
    assert rows_of(pyarrow.table({"x": [1, 2]}).select([])) == [{}, {}]


def test_types_that_json_has_not_are_known_by_column_where_all_values_have_one():
    rows = rows_of(
        [
            {"at": pd.Timestamp("2026-01-31 12:00"), "day": date(2026, 1, 31), "mixed": 1, "price": Decimal("1.10")},
            {"at": datetime(2026, 1, 31, tzinfo=UTC), "day": None, "mixed": date(2026, 1, 31), "price": None},
            {"at": np.datetime64("2026-01-31"), "noon": time(12), "mixed": "a"},
            {"at": pd.NaT},
        ]
    )
    assert kinds_of(rows) == {"at": "datetime", "day": "date", "price": "decimal", "noon": "time"}
    assert rows[0]["price"] == "1.10"
    assert kinds_of(rows_of(rows)) == kinds_of(rows)


YEARS = [2019, None, 2020]
MAKERS = {
    "float64": lambda: pd.DataFrame({"x": YEARS}),
    "Int64": lambda: pd.DataFrame({"x": pd.array(YEARS, dtype="Int64")}),
    "float32": lambda: pd.DataFrame({"x": np.array(YEARS, dtype="float32")}),
    "float16": lambda: pd.DataFrame({"x": np.array([2, np.nan, 3], dtype="float16") + 0}),
    "sparse": lambda: pd.DataFrame({"x": pd.arrays.SparseArray([2019, np.nan, 2020])}),
    "category": lambda: pd.DataFrame({"x": pd.Series(YEARS).astype("category")}),
    "object": lambda: pd.DataFrame({"x": pd.Series([2019.0, None, 2020.0], dtype=object)}),
    "csv with a blank": lambda: pd.read_csv(io.StringIO("x,y\n2019,1\n,2\n2020,3\n"))[["x"]],
    "outer join": lambda: pd.DataFrame({"x": [2019, 2020], "k": [0, 2]}).merge(
        pd.DataFrame({"k": [0, 1, 2]}), how="outer"
    )[["x"]],
    "dicts of a frame": lambda: pd.DataFrame({"x": YEARS}).to_dict("records"),
    "polars": lambda: pytest.importorskip("polars").DataFrame({"x": YEARS}),
    "datasets": lambda: pytest.importorskip("datasets").Dataset.from_dict({"x": YEARS}),
    "a split": lambda: split_rows(pd.DataFrame({"x": YEARS}), held_out=0.5, seed=3, by="x", say=lambda _: None),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_whole_number_beside_a_missing_one_is_an_integer(maker):
    over = MAKERS[maker]()
    rows = sorted((row for part in over for row in part), key=lambda row: row["x"] or 0) if maker == "a split" else over
    values = [row["x"] for row in rows_of(rows)]
    known = [2, 3] if maker == "float16" else [2019, 2020]
    assert [value for value in values if value is not None] == known
    assert {type(value) for value in values} == {int, type(None)}


@pytest.mark.parametrize("frame", [pd.DataFrame({"x": [1.5, None, 2.0]}), pd.DataFrame({"x": [1.0, 2.0]})])
def test_other_floats_of_a_frame_stay_floats(frame):
    assert {type(row["x"]) for row in rows_of(frame)} <= {float, type(None)}


def test_what_is_whole_is_decided_by_all_rows_of_a_frame_and_not_by_those_that_are_read():
    assert rows_of(pd.DataFrame({"x": [2019, 2020, None]}), 1) == [{"x": 2019}]
    assert type(rows_of(pd.DataFrame({"x": [2019, 2020, None]}), 1)[0]["x"]) is int
    assert type(rows_of(pd.DataFrame({"x": [2019, 1.5, None]}), 1)[0]["x"]) is float


def test_numbers_inside_lists_and_objects_of_parquet_are_what_they_were(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    half = pyarrow.array([[0.1, None], [2.5]], pyarrow.list_(pyarrow.float32()))
    table = pyarrow.table({"n": [{"a": 2019}, {"a": None}], "list": [[1, None], [2]], "half": half})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "a.parquet")
    wanted = [
        {"n": {"a": 2019}, "list": [1, None], "half": [0.1, None]},
        {"n": {"a": None}, "list": [2], "half": [2.5]},
    ]
    for over in (table, tmp_path / "a.parquet", pd.read_parquet(tmp_path / "a.parquet")):
        rows = rows_of(over)
        assert rows == wanted
        assert type(rows[0]["n"]["a"]) is type(rows[0]["list"][0]) is int


TENTHS = [0.1, None, 1234.5]
NARROW = {
    "float32": lambda: pd.DataFrame({"x": np.array(TENTHS, dtype="float32")}),
    "Float32": lambda: pd.DataFrame({"x": pd.array(TENTHS, dtype="Float32")}),
    "float16": lambda: pd.DataFrame({"x": np.array([0.1, np.nan, 1234.5], dtype="float16")}),
    "scalars": lambda: [{"x": None if each is None else np.float32(each)} for each in TENTHS],
    "arrays": lambda: [{"x": np.array(0.1, dtype="float32")}, {"x": None}, {"x": np.array(1234.5, dtype="float32")}],
    "arrow": lambda: _of_arrow("float32"),
    "half of arrow": lambda: _of_arrow("float16"),
    "pandas of arrow": lambda: _of_arrow("float32").to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda: pytest.importorskip("polars").DataFrame(_of_arrow("float32")),
    "datasets": lambda: pytest.importorskip("datasets").Dataset(_of_arrow("float32")),
    "stream": lambda: pytest.importorskip("datasets").Dataset(_of_arrow("float32")).to_iterable_dataset(),
}


def _of_arrow(kind):
    pyarrow = pytest.importorskip("pyarrow")
    values = [None if each is None else np.dtype(kind).type(each) for each in TENTHS]
    return pyarrow.table({"x": pyarrow.array(values, getattr(pyarrow, kind)())})


@pytest.mark.parametrize("maker", NARROW)
def test_a_float_of_32_or_16_bits_has_the_digits_that_it_holds(maker):
    last = 1234.0 if "16" in maker or "half" in maker else 1234.5
    assert [row["x"] for row in rows_of(NARROW[maker]())] == [0.1, None, last]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_shortest_decimal_is_the_one_that_numpy_writes(value):
    assert shorten(value, 4) == float(str(np.float32(value)))


def test_what_to_type_about_a_missing_value_works_for_each_source(tmp_path):
    frame = pd.DataFrame({"x": [2019, None], "y": [None, 1]})
    sources = {"frame": frame, "list": frame.to_dict("records")}
    if find_spec("pyarrow"):
        frame.to_parquet(tmp_path / "a.parquet")
        import pyarrow.compute

        sources |= {"file": tmp_path / "a.parquet", "arrow": pyarrow.Table.from_pylist([{"x": 2019}, {"x": None}])}
    (tmp_path / "a.jsonl").write_text('{"x": 2019}\n{"x": null}\n')
    sources["lines"] = tmp_path / "a.jsonl"
    for library in ("polars", "datasets"):
        if find_spec(library):
            sources[library] = MAKERS[library]()
    for source in sources.values():
        with pytest.raises(InputError, match=r"\{\{x\}\} has no value") as refused:
            list(map(partial(fill_text, "{{x}}"), rows_of(source)))
        names = {"rows": source, "pandas": pd, "pyarrow": sys.modules.get("pyarrow")}
        code = refused.value.hint
        left = rows_of(eval(code.removeprefix("rows = "), names))
        assert {fill_text("{{x}}", row) for row in left} <= {"2019", "2020"}
        assert left


@pytest.mark.parametrize(
    ("over", "rows"),
    [
        (pd.Series(["France", "Peru"], name="country"), [{"country": "France"}, {"country": "Peru"}]),
        (pd.Series([2019, None]), [{"item": 2019}, {"item": None}]),
        (pd.Series([0.1], dtype="float32", name=3), [{"item": 0.1}]),
        (pd.Series([{"a": 1}, {"a": 2}], name="x"), [{"a": 1}, {"a": 2}]),
        (pd.Index(["a", "b"], name="x"), [{"x": "a"}, {"x": "b"}]),
        (pd.Categorical(["a", "b"]), [{"item": "a"}, {"item": "b"}]),
        (np.array([1, 2]), [{"item": 1}, {"item": 2}]),
        (np.array([[1, 2], [3, 4]]), [{"item": [1, 2]}, {"item": [3, 4]}]),
        (np.array([(1, "a")], dtype=[("n", int), ("s", "U1")]), [{"n": 1, "s": "a"}]),
        ({"b", "a", "c"}, [{"item": "a"}, {"item": "b"}, {"item": "c"}]),
        (frozenset({("b", 1), ("a", 2)}), [{"item": ["a", 2]}, {"item": ["b", 1]}]),
        ({"a": 1, "b": 2}.keys(), [{"item": "a"}, {"item": "b"}]),
        ({"a": 1}.values(), [{"item": 1}]),
        (range(2), [{"item": 0}, {"item": 1}]),
    ],
)
def test_a_series_an_array_and_a_set_are_rows_of_their_values(over, rows):
    assert rows_of(over) == rows
    assert rows_of(over, 1) == rows[:1]


def test_arrays_of_arrow_and_series_of_polars_are_rows_of_their_values():
    pyarrow = pytest.importorskip("pyarrow")
    assert rows_of(pyarrow.array([1, 2])) == [{"item": 1}, {"item": 2}]
    assert rows_of(pyarrow.chunked_array([[0.1]], pyarrow.float32()), 1) == [{"item": 0.1}]
    assert rows_of(pyarrow.array([{"a": 1}])) == [{"a": 1}]
    assert rows_of(pyarrow.record_batch({"x": [1, 2]}), 1) == [{"x": 1}]
    polars = pytest.importorskip("polars")
    assert rows_of(polars.Series("country", ["France", "Peru"]), 1) == [{"country": "France"}]
    assert rows_of(polars.Series([{"a": 1}])) == [{"a": 1}]


def test_the_only_split_of_a_dataset_is_taken():
    class IterableDatasetDict(dict):
        """As that of the library `datasets`."""

    assert rows_of(IterableDatasetDict(train=[{"x": 1}])) == [{"x": 1}]
    with pytest.raises(InputError, match="a IterableDatasetDict has several splits"):
        rows_of(IterableDatasetDict(train=[{"x": 1}], test=[]))


BAD = [b"\xff", object(), float("inf"), "\ud83d", np.datetime64("2026") - np.datetime64("2025"), {1: 1, "1": 2}]


@pytest.mark.parametrize("value", BAD)
def test_a_value_that_cannot_be_kept_is_left_out_by_name_and_refused_where_it_is_used(session, capsys, value):
    rows = [{"n": 1, "image": value}, {"n": 2, "image": value}, {"n": 3, "image": "a"}]
    session.chat("pictures", "{{n}}", over=rows, n=1, max_tokens=2)
    shown = capsys.readouterr().out
    assert "row 0, column 'image'" in shown
    assert "left out of 2 rows -> " in shown
    assert [dict(group.row) for group in session.store.groups(session.store.collection("pictures"))] == [
        {"n": 1},
        {"n": 2},
        {"n": 3, "image": "a"},
    ]
    for prompt in ("{{image}}", lambda row: row["image"]):
        with pytest.raises(InputError, match="row 0, column 'image'"):
            session.preview("again", prompt, over=rows)
    with pytest.raises(InputError, match="row 0, column 'image'"):
        session.preview("again", "", over=rows, prompt_column="image")
    lines = []
    session.split([{**row, "n": n} for n, row in enumerate(rows * 9)], 0.5, say=lines.append)
    assert any("left out of 18 rows" in line for line in lines)


def test_rows_of_which_no_value_can_be_kept_are_refused():
    with pytest.raises(InputError, match="row 1, column 'x': a bytes cannot be kept as JSON"):
        rows_of([{"x": 1}, {"x": b"a"}])
