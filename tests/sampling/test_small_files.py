"""Small files that unpack to gigabytes: read within bounds of memory, or refused by what they would take."""

import gzip
import tracemalloc

import pytest

from rolloutlab.errors import InputError
from rolloutlab.sampling.data_files import records
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
@pytest.mark.parametrize("read", [records, parquet.documents])
def test_a_text_that_is_in_many_rows_of_a_parquet_file_is_in_memory_once(write, values, read):
    path = write(values)
    assert peak(lambda: [None for _ in read(path)]) < 20 * MEGABYTE
    assert [row["a"] for _, row in records(path)] == values


@pytest.mark.parametrize("read", [records, parquet.documents])
@pytest.mark.parametrize(
    ("values", "kind", "what"),
    [
        (["y" * 300 * MEGABYTE], "string", "bytes of it unpack to 314,"),
        ([[0] * 20_000_000], "lists", "the lists of its column a.list.element have 20,000,000 values in"),
    ],
)
def test_a_parquet_file_that_unpacks_to_hundreds_of_times_its_size_is_refused(write, values, kind, what, read):
    path = write(values, pyarrow.list_(pyarrow.int8()) if kind == "lists" else kind, use_dictionary=kind == "lists")
    with pytest.raises(InputError, match=f"a.parquet would take too much memory: .*{what}"):
        list(read(path))


def test_values_of_every_type_are_read_as_arrow_reads_them(write):
    types = [
        (["a", None, "a"], "string"),
        ([b"a", None], "binary"),
        ([[], None, ["a", None]], pyarrow.list_(pyarrow.string())),
        ([[], None, [["a"], []]], pyarrow.large_list(pyarrow.list_(pyarrow.string()))),
        ([["a", "b"], None], pyarrow.list_(pyarrow.string(), 2)),
        ([[("k", "v")], None, []], pyarrow.map_(pyarrow.string(), pyarrow.string())),
        (
            [{"a": 1, "b": ["x"]}, None],
            pyarrow.struct([("a", pyarrow.int64()), ("b", pyarrow.list_(pyarrow.string()))]),
        ),
        ([1.5, None], "float64"),
        (["1", "2"], pyarrow.large_string()),
        (["a", "b", "a"], pyarrow.dictionary(pyarrow.int8(), pyarrow.string())),
    ]
    for values, kind in types:
        assert [row["a"] for _, row in records(write(values, kind))] == values, kind


LISTS = b"[" + b"[]," * 9_000_000 + b"[]]"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", b'{"a": ' + LISTS + b"}\n"),
        ("a.json", b'[{"a": ' + LISTS + b"}]"),
        ("a.json", b'{"data": ' + LISTS + b"}"),
        ("a.jsonl.gz", gzip.compress(b'{"a": ' + LISTS + b"}\n", compresslevel=1)),
        ("a.jsonl", b"[" + b'{"a":0},' * 4_000_000 + b"{}]"),
    ],
)
@pytest.mark.parametrize("read", [records, jsonl.documents])
def test_json_whose_values_would_take_gigabytes_is_refused(tmp_path, name, text, read):
    path = tmp_path / name
    path.write_bytes(text)
    with pytest.raises(InputError, match=r"its values would take \d\.\d GiB of memory, more than 1"):
        list(read(path))


def test_blank_lines_that_gzip_packs_a_thousandfold_are_not_kept(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' + b"\n" * 300_000 + b'{"a": 2}\n'))
    assert peak(lambda: list(records(path))) < 5 * MEGABYTE
    assert [(place, row["a"]) for place, row in records(path)] == [
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
    assert [len(row["a"]) for _, row in records(path)] == [1_000_000, 1]
    assert sum(tries) < 5_000_000


def test_a_header_of_more_columns_than_anyone_reads_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("," * 200_000 + "\n")
    with pytest.raises(InputError, match=r"a\.csv, line 1: 200,001 columns"):
        list(records(path))
