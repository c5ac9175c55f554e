"""Data files as other tools write them: what is read, how far, and what an error names."""

import codecs
import csv
import gzip
import io
import json
from itertools import islice
from pathlib import Path

import pandas as pd
import pytest

from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.sampling import data_files
from rolloutlab.sampling.data_files import is_data_file, read_records

ROWS = [{"x": 1, "text": "é"}, {"x": 2, "text": "two\nlines"}]


@pytest.fixture
def put(tmp_path):
    """Writes a file, and reads it."""

    def put(name: str, content: str | bytes, limit: int | None = None):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return list(islice(read_records(path), limit))

    return put


def rows(read) -> list:
    return [row for _, row in read]


LINES = "\n".join(map(json.dumps, ROWS))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES),
        ("a.ndjson", LINES + "\n"),
        ("a.JSONL", LINES),
        ("a.jsonl", codecs.BOM_UTF8 + LINES.encode()),
        ("a.jsonl", "\r\n" + LINES.replace("\n", "\r\n\r\n") + "\r\n  \r\n"),
        ("a.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)),
        ("a.jsonl", gzip.compress(LINES.encode(), mtime=0)),
        ("a.json", json.dumps(ROWS)),
        ("a.json", json.dumps(ROWS, indent=2, ensure_ascii=False)),
        ("a.json", f"\n \n{LINES}"),
        ("a.json.gz", gzip.compress(codecs.BOM_UTF8 + json.dumps(ROWS).encode(), mtime=0)),
    ],
)
def test_json_is_read_however_it_is_written(put, name, content):
    assert rows(put(name, content)) == ROWS


def test_zstandard_and_parquet_are_read_by_pyarrow(put, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    assert rows(put("a.jsonl.zst", pyarrow.compress(LINES.encode(), codec="zstd", asbytes=True))) == ROWS
    pd.DataFrame(ROWS).to_parquet(tmp_path / "a.parquet")
    assert list(read_records(tmp_path / "a.parquet")) == [("a.parquet, row 1", ROWS[0]), ("a.parquet, row 2", ROWS[1])]
    assert rows(put("b.parquet.gz", gzip.compress((tmp_path / "a.parquet").read_bytes()))) == ROWS
    with pytest.raises(InputError, match=r"c\.parquet cannot be read as Parquet"):
        put("c.parquet", b"PAR1 and no more")


def test_one_object_over_several_lines_is_one_row(put):
    assert put("a.json", '{\n "x": 1\n}') == [("a.json", {"x": 1})]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "name,n\nann,007\n"),
        ("a.csv", codecs.BOM_UTF8 + b"name;n\r\nann;007\r\n"),
        ("a.csv", "sep=|\nname|n\nann|007"),
        ("a.csv", "\n name , n \n\nann,007\n,\n"),
        ("a.tsv", "name\tn\nann\t007\n"),
        ("a.csv.gz", gzip.compress(b"name,n\nann,007\n", mtime=0)),
        ("a.csv", ",name,n,\n0,ann,007,\n"),
    ],
)
def test_values_of_a_table_stay_text_and_columns_without_a_name_are_left_out(put, name, content):
    assert rows(put(name, content)) == [{"name": "ann", "n": "007"}]


def test_text_that_other_readers_take_for_something_else_stays_what_it_is(put):
    read = put("a.csv", 'country,empty,date,flag\nNA,,1-2,TRUE\n"a ""b"", c\nd",nan,=1+1,\n')
    assert rows(read) == [
        {"country": "NA", "empty": "", "date": "1-2", "flag": "TRUE"},
        {"country": 'a "b", c\nd', "empty": "nan", "date": "=1+1", "flag": ""},
    ]
    assert [place for place, _ in read] == ["a.csv, line 2", "a.csv, line 3"]


@pytest.mark.parametrize(
    ("content", "row"),
    [
        ("prompt;price, EUR\nWhat?;2", {"prompt": "What?", "price, EUR": "2"}),
        ("sep=;\nprompt;price, EUR\nWhat?;2,5", {"prompt": "What?", "price, EUR": "2,5"}),
        ("a, b;c\n1,2", {"a": "1", "b;c": "2"}),
        ("a;b,c\n1;2,3\n\n4;5\n", {"a": "1", "b,c": "2,3"}),
        ('a;b,c\n1;"2\r3"\n', {"a": "1", "b,c": "2\r3"}),
        ("a;b,c\n" + "1;2\n" * 7 + '1;"2\n3"\n', {"a": "1", "b,c": "2"}),
    ],
)
def test_of_two_separators_in_the_header_the_rows_decide(put, content, row):
    assert rows(put("a.csv", content))[0] == row
    assert rows(put("b.csv", content, limit=1)) == [row]


def test_a_cell_may_be_as_long_as_a_document_with_line_breaks(put):
    document = 'a line, with "quotes"\n' * 20_000
    line = "x" * 200_000
    content = pd.DataFrame({"n": ["1", "2"], "text": [document, line]}).to_csv(index=False)
    assert rows(put("a.csv", content)) == [{"n": "1", "text": document}, {"n": "2", "text": line}]


def test_a_limit_for_cells_that_is_larger_stays(put):
    before = csv.field_size_limit(1 << 30)
    try:
        put("a.csv", "n\n1\n")
        assert csv.field_size_limit() == 1 << 30
    finally:
        csv.field_size_limit(before)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("more", [{}, {"version": "1.1", "meta": {"by": "x"}, "tags": ["a"], "nothing": []}])
def test_the_only_list_of_objects_of_an_object_is_its_rows(put, indent, more):
    read = put("a.json", "\n".join([json.dumps({**more, "data": ROWS}, indent=indent), "", ""]))
    assert rows(read) == ROWS
    assert [place for place, _ in read] == ["a.json, data, item 1", "a.json, data, item 2"]


def test_of_several_lists_of_objects_one_has_to_be_chosen(put):
    with pytest.raises(InputError, match=r"a\.json has several lists of rows: train, test") as refused:
        put("a.json", json.dumps({"train": ROWS, "test": ROWS[:1]}))
    assert refused.value.hint == "over=json.load(open('a.json'))['train']"


def test_a_table_of_pandas_with_its_schema_is_read(put):
    frame = pd.DataFrame({"x": [1, 2], "text": ["a", "b"]})
    assert rows(put("a.json", frame.to_json(orient="table", index=False))) == frame.to_dict("records")


def test_an_object_with_a_conversation_is_a_row_and_so_is_each_line_of_json_lines(put):
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    assert rows(put("a.json", json.dumps(chat, indent=1))) == [chat]
    assert rows(put("a.json", json.dumps(chat))) == [chat]
    table = {"data": [{"x": 1}]}
    assert rows(put("a.jsonl", json.dumps(table))) == [table]
    assert rows(put("a.json", f"{json.dumps(table)}\n\n{json.dumps(table)}\n")) == [table, table]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_file_without_rows_has_none(put, name):
    assert put(name, "") == []
    assert put("b.json", "[]") == put("c.json", "") == put("d.csv", "a,b\n") == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"x": 1}\n\n{"x": 2', "a.jsonl, line 3, column 8: not JSON"),
        ("a.jsonl", '{"x": 1, "x": 2}', "a.jsonl, line 1: not JSON: 'x' is there twice"),
        ("a.jsonl", b'{"x": 1}\n{"x": "\xe9"}\n', "a.jsonl, line 2, column 8: not UTF-8"),
        ("a.jsonl", "[" * 100_000, "a.jsonl, line 1: not JSON"),
        ("a.json", '[{"x": 1}, {"x": ', "a.json, item 2: not JSON"),
        ("a.json", "[1 2]", "a.json, item 1: not JSON: Expecting ',' or ']'"),
        ("a.json", b'[{"x": "\xe9"}]', "a.json: not UTF-8"),
        ("a.json", '{\n"x": 1,\n', "a.json, column 1: not JSON"),
        ("a.json", '[{"x": 1}]\n[{"x": 2}]', "a.json: not JSON: more after the end of the array: '[{\"x\": 2}]'"),
        ("a.json", "[1]" + " " * (1 << 20) + "garbage", "a.json: not JSON: more after the end of the array: 'garbage'"),
        ("a.json", b"[1]" + b" " * (1 << 20) + b"\xff", "a.json: not UTF-8"),
        ("a.json", b'{"a": "\xff"}', "a.json, line 1, column 8: not UTF-8"),
        ("a.json", b'{\n"a": "\xff"}', "a.json, line 2, column 7: not UTF-8"),
        ("a.csv", "a,b\r1,2\r", "a.csv, line 1: a line break is \\r, not \\n or \\r\\n"),
        ("a.csv", "prompt;price, EUR\nWhat?;2,5", "a.csv, line 1: ',' and ';' both divide the lines into 2 columns"),
        ("a.csv", "a,b\n1,2\n3", "a.csv, line 3: the header has 2 columns, this row 1"),
        ("a.csv", 'a,b\n\n1,"2', "a.csv, line 3: not CSV: unexpected end of data"),
        ("a.csv", "a,b,a\n1,2,3", "a.csv, line 1: the column 'a' is there twice"),
        ("a.csv", b"a\n\xe9\n", "a.csv, line 2, column 1: not UTF-8"),
        ("a.csv", "a\tb\n1\t2\n".encode("utf-16"), "a.csv is UTF-16"),
        ("a.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)[:-9], "a.jsonl.gz is a damaged gzip file"),
        ("a.txt", "hello", "a.txt has no known format"),
    ],
)
def test_what_is_wrong_is_named_with_its_file_and_line(put, name, content, message):
    with pytest.raises(InputError) as refused:
        put(name, content)
    assert refused.value.message.startswith(message)
    assert refused.value.hint


def test_a_last_line_that_was_copied_by_half_is_called_that(put):
    with pytest.raises(InputError) as refused:
        put("a.jsonl", '{"x": 1}\n{"x": "two')
    assert "the last line is cut short" in str(refused.value.hint)
    assert rows(put("a.jsonl", '{"x": 1}\n{"x": "two', limit=1)) == [{"x": 1}]


def test_a_file_that_is_not_there_is_named_and_a_data_set_of_the_hub_is_recognised():
    with pytest.raises(NotFoundError, match=r"there is no file nothing\.jsonl"):
        list(read_records(Path("nothing.jsonl")))
    with pytest.raises(NotFoundError) as refused:
        list(read_records(Path("openai/gsm8k")))
    assert refused.value.hint == 'over=datasets.load_dataset("openai/gsm8k", split="train")'


@pytest.mark.parametrize("name", ["a.jsonl", "b/a.csv.gz", "a.Parquet", "../a.tsv", "a.json.zst"])
def test_a_data_file_is_known_by_its_ending(name):
    assert is_data_file(name)
    assert not is_data_file(f"{name}.bak")


class Counted(io.BytesIO):
    """A file that counts the bytes it gives."""

    given = 0

    def read(self, size: int | None = -1) -> bytes:
        piece = super().read(size)
        self.given += len(piece)
        return piece

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        self.given += len(line)
        return line

    def peek(self, size: int = 1) -> bytes:
        return self.getbuffer()[self.tell() : self.tell() + 4096].tobytes()


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_lines_that_are_not_needed_are_not_read(ending):
    line = {"jsonl": b'{"x": 12345678}\n', "csv": b"abcdefgh,123456\n"}[ending]
    file = Counted(line * 1_000_000)
    taken = list(islice(data_files._READERS[ending](file, "a"), 1000))
    assert len(taken) == 1000
    assert file.given <= 1001 * len(line)


def test_items_of_an_array_that_are_not_needed_are_not_read():
    file = Counted(b"[" + b'{"x": 12345678},' * 1_000_000 + b"1]")
    assert len(list(islice(data_files._READERS["json"](file, "a"), 1000))) == 1000
    assert file.given <= 1 << 20
