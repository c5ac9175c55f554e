"""Small files that unpack to gigabytes: read within bounds of memory, or refused by what they would take."""

import gzip
import itertools
import tracemalloc

import pytest

from rolloutlab.api.wire import json_size
from rolloutlab.errors import InputError
from rolloutlab.sampling import data_files, dataset
from rolloutlab.sampling.data_files import read_records
from rolloutlab.sampling.dataset import rows_of
from rolloutlab.trajectories.files import jsonl, parquet

pyarrow = pytest.importorskip("pyarrow")
MEGABYTE = 1 << 20


@pytest.fixture
def write(tmp_path):
    """Writes a column of values to a Parquet file."""

    def make(values, kind=None, **options):
        import pyarrow.parquet as writer

        path = tmp_path / "a.parquet"
        writer.write_table(pyarrow.table({"a": pyarrow.array(values, kind)}), path, compression="zstd", **options)
        assert path.stat().st_size < 200_000
        return path

    return make


def peak(read):
    """The most memory of Python objects and of Arrow while something is read, in bytes."""
    pool = pyarrow.system_memory_pool()
    before, default = pool.bytes_allocated(), pyarrow.default_memory_pool()
    pyarrow.set_memory_pool(pool)
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1] + pool.max_memory() - before
    finally:
        tracemalloc.stop()
        pyarrow.set_memory_pool(default)


TEXT = "x" * (MEGABYTE // 2)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([TEXT] * 512, id="texts"),
        pytest.param([[TEXT] * 200] * 2, id="lists"),
        pytest.param([[{"role": "user", "content": TEXT}] * 200] * 2, id="messages"),
        pytest.param([{"b": {"c": TEXT}}, None] * 256, id="nested"),
    ],
)
@pytest.mark.parametrize("read", [read_records, parquet.read_documents])
def test_a_text_that_is_in_many_rows_of_a_parquet_file_is_in_memory_once(write, values, read):
    path = write(values)
    assert peak(lambda: [None for _ in read(path)]) < 20 * MEGABYTE
    assert [row["a"] for _, row in read_records(path)] == values


def repeated(kind, times):
    """One row that has a text of half a megabyte so many times; the file has it once."""
    texts = pyarrow.DictionaryArray.from_arrays([0] * times, [TEXT])
    return {
        "list": lambda: pyarrow.ListArray.from_arrays([0, times], texts),
        "fixed": lambda: pyarrow.FixedSizeListArray.from_arrays(texts, times),
        "map": lambda: pyarrow.MapArray.from_arrays([0, times], [str(i) for i in range(times)], texts),
        "messages": lambda: pyarrow.ListArray.from_arrays(
            [0, times], pyarrow.StructArray.from_arrays([texts, texts], ["role", "content"])
        ),
        "views": lambda: pyarrow.ListArray.from_arrays([0, times], pyarrow.array([TEXT] * times, "string_view")),
        "bytes": lambda: pyarrow.ListArray.from_arrays([0, times], texts.cast(pyarrow.binary()).dictionary_encode()),
    }[kind]()


@pytest.mark.parametrize("read", [read_records, parquet.read_documents])
@pytest.mark.parametrize("kind", ["list", "fixed", "map", "messages", "views", "bytes"])
def test_a_row_that_has_a_long_text_thousands_of_times_is_refused(write, kind, read):
    path = write(repeated(kind, 300))
    tracemalloc.start()
    with pytest.raises(InputError, match=r"a.parquet would take too much memory: the texts of one row have [\d,]{11,}"):
        list(read(path))
    assert tracemalloc.get_traced_memory()[1] < 20 * MEGABYTE
    tracemalloc.stop()


def test_rows_that_have_a_long_text_thousands_of_times_in_all_are_refused(write):
    path = write(pyarrow.DictionaryArray.from_arrays([0] * 3000, [TEXT]))
    with pytest.raises(InputError, match=r"the texts of its rows have 1,07\d,\d{3},\d{3} characters, in [\d,]+ bytes"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("values", "kind", "what"),
    [
        # made in the test: every worker imports this module
        (lambda: ["y" * 150 * MEGABYTE], "string", "bytes of it unpack to 157,"),
        (lambda: [[0] * 20_000_000], "lists", "the lists of its column a.list.element have 20,000,000 values in"),
    ],
)
@pytest.mark.long
def test_a_parquet_file_that_unpacks_to_hundreds_of_times_its_size_is_refused(write, values, kind, what):
    path = write(values(), pyarrow.list_(pyarrow.int8()) if kind == "lists" else kind, use_dictionary=kind == "lists")
    for read in (read_records, parquet.read_documents):
        with pytest.raises(InputError, match=f"a.parquet would take too much memory: .*{what}"):
            list(read(path))


def test_values_of_every_type_are_read_as_arrow_reads_them(write):
    types = [
        (["a", None, "a"], "string"),
        ([b"a", None], "binary"),
        ([[], None, ["a", None]], pyarrow.list_(pyarrow.string())),
        ([[], None, [["a"], []]], pyarrow.large_list(pyarrow.list_(pyarrow.string()))),
        ([["a", "b"], None], pyarrow.list_(pyarrow.string(), 2)),
        ([[("k", "v")], None, [], [("k", None), ("l", "v")]] * 400, pyarrow.map_(pyarrow.string(), pyarrow.string())),
        ([["a", None], None, ["a", "b"]] * 400, pyarrow.list_(pyarrow.string(), 2)),
        (
            [{"a": 1, "b": ["x"]}, None],
            pyarrow.struct([("a", pyarrow.int64()), ("b", pyarrow.list_(pyarrow.string()))]),
        ),
        ([1.5, None], "float64"),
        (["1", "2"], pyarrow.large_string()),
        (["a", "b", "a"], pyarrow.dictionary(pyarrow.int8(), pyarrow.string())),
    ]
    for values, kind in types:
        assert [row["a"] for _, row in read_records(write(values, kind))] == values, kind


def lists(number: int = 1_200_000) -> bytes:
    return b"[" + b"[]," * number + b"[]]"


LARGE = {
    "a row of gigabytes": ("a.jsonl", lambda: b'{"a": ' + lists(9_000_000) + b"}\n"),
    "a row": ("a.jsonl", lambda: b'{"a": ' + lists() + b"}\n"),
    "rows in a list": ("a.json", lambda: b'[{"a": ' + lists() + b"}]"),
    "rows in data": ("a.json", lambda: b'{"data": ' + lists() + b"}"),
    "a packed row": ("a.jsonl.gz", lambda: gzip.compress(b'{"a": ' + lists() + b"}\n", compresslevel=1)),
    "a list for a row": ("a.jsonl", lambda: b"[" + b'{"a":0},' * 500_000 + b"{}]"),
}


@pytest.mark.parametrize("kind", LARGE)
def test_json_whose_values_would_take_too_much_is_refused(tmp_path, monkeypatch, kind):
    name, text = LARGE[kind]
    if "gigabytes" not in kind:
        monkeypatch.setattr(json_size, "MAX_VALUES_BYTES", 100 * MEGABYTE)
    path = tmp_path / name
    path.write_bytes(text())
    for read in (read_records, jsonl.read_documents):
        with pytest.raises(InputError, match=r"its values would take \d\.\d GiB of memory, more than [01]"):
            list(read(path))


@pytest.mark.long
def test_blank_lines_that_gzip_packs_a_thousandfold_are_not_kept(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' + b"\n" * 300_000 + b'{"a": 2}\n'))
    assert peak(lambda: list(read_records(path))) < 5 * MEGABYTE
    assert [(place, row["a"]) for place, row in read_records(path)] == [
        ("a.json.gz, line 1", 1),
        ("a.json.gz, line 300002", 2),
    ]


def test_a_long_item_of_an_array_is_parsed_a_few_times(tmp_path, monkeypatch):
    from rolloutlab.sampling import data_files

    monkeypatch.setattr(data_files, "_CHUNK", 1000)
    tries, decode = [], data_files.json.JSONDecoder.raw_decode

    def counted(self, text, at):
        tries.append(len(text))
        return decode(self, text, at)

    monkeypatch.setattr(data_files.json.JSONDecoder, "raw_decode", counted)
    path = tmp_path / "a.json"
    path.write_text('[{"a": "' + "x" * 1_000_000 + '"}, {"a": "y"}]')
    assert [len(row["a"]) for _, row in read_records(path)] == [1_000_000, 1]
    assert sum(tries) < 5_000_000


def test_a_header_of_more_columns_than_anyone_reads_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("," * 200_000 + "\n")
    with pytest.raises(InputError, match=r"a\.csv, line 1: 200,001 columns"):
        list(read_records(path))


TINY = {"a.jsonl.gz": b'{"a":1}\n', "a.csv.gz": b"1\n", "a.json.gz": b'{"a":1},'}


@pytest.mark.parametrize("name", TINY)
def test_more_rows_than_anyone_samples_over_are_refused_without_a_limit(tmp_path, monkeypatch, name):
    monkeypatch.setattr(dataset, "MAX_ROWS", 5000)
    path, ends = tmp_path / name, {"a.json.gz": (b"[", b"1]"), "a.csv.gz": (b"a\n", b"")}
    begin, end = ends.get(name, (b"", b""))
    path.write_bytes(gzip.compress(begin + TINY[name] * 6000 + end))
    with pytest.raises(InputError, match=f"{name}, (line|item) 500[12]: there are more than 5,000 rows"):
        rows_of(path)
    assert len(rows_of(path, limit=5500)) == 5500


def test_an_iterator_without_an_end_is_refused_without_a_limit(monkeypatch):
    monkeypatch.setattr(dataset, "MAX_ROWS", 5000)
    with pytest.raises(InputError, match="more than 5,000 rows"):
        rows_of(itertools.count())


def test_how_many_rows_have_been_read_is_told_while_they_are(tmp_path):
    path, told = tmp_path / "a.jsonl.gz", []
    path.write_bytes(gzip.compress(TINY["a.jsonl.gz"] * 3500))
    rows_of(path, None, told.append)
    assert told == [1000, 2000, 3000, 3500, 3500, 3500]


def test_rows_that_have_been_read_are_not_read_again():
    rows = rows_of([{"a": 1}, {"a": 2}])
    assert rows_of(rows) is rows
    assert [*rows_of(rows, limit=1)] == [{"a": 1}]


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.long
def test_a_file_that_unpacks_to_hundreds_of_times_its_size_is_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(data_files, "_UNCHECKED_BYTES", MEGABYTE)
    path, text = tmp_path / f"a.jsonl.{kind}", b"\n" * 8 * MEGABYTE
    path.write_bytes(gzip.compress(text) if kind == "gz" else pyarrow.compress(text, "zstd", asbytes=True))
    with pytest.raises(InputError, match=rf"a.jsonl.{kind} would take too long: [\d,]+ bytes of it unpack to [\d,]+"):
        list(read_records(path))
