"""Files as strangers hand them over: gzipped, with a byte order mark, damaged, of another kind."""

import gzip

import pytest

from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.trajectories.files.jsonl import read_documents, replace_file, write_lines

LINES = b'{"a": 1}\n\n{"a": "\xe2\x80\xa8"}\r\n'
FOUND = [("f.jsonl, line 1", {"a": 1}), ("f.jsonl, line 3", {"a": "\u2028"})]


@pytest.fixture
def written(tmp_path):
    def write(content: bytes, name: str = "f.jsonl"):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


@pytest.mark.parametrize("content", [LINES, b"\xef\xbb\xbf" + LINES, gzip.compress(LINES, mtime=0), LINES.rstrip()])
def test_lines_are_found_with_their_numbers_however_they_are_packed(written, content):
    assert list(read_documents(written(content))) == FOUND


@pytest.mark.parametrize("content", [b'[{"a": 1}, 2]', gzip.compress(b'\n[{"a": 1},\n 2]', mtime=0)])
def test_a_json_file_is_read_whole(written, content):
    assert list(read_documents(written(content, "f.json"))) == [("f.json, item 1", {"a": 1}), ("f.json, item 2", 2)]


def test_a_json_file_may_hold_one_value(written):
    assert list(read_documents(written(b'{\n"a": 1}', "f.json"))) == [("f.json, item 1", {"a": 1})]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "f.jsonl is empty"),
        (b"\xef\xbb\xbf\n \n", "f.jsonl is empty"),
        (gzip.compress(b"", mtime=0), "f.jsonl is empty"),
        (b'{}\n{"a": \xff}', "line 2: not UTF-8"),
        (b"PAR1\x00\xff", "line 1: not UTF-8"),
        (b'{"a": 1}\n{"a": ', "line 2: not JSON: EOF"),
        (b'{"a": Infinity}', "line 1: not JSON"),
        (b'{"a": NaN, "b": -Infinity}', "line 1: not JSON: -Infinity is no number"),
        (b'{"a": NaN, "b": "\\ud800"}', "line 1: not JSON"),
        (b'{"a": NaN, "b": }', "line 1: not JSON"),
        (b'{"a": "\\ud800"}', "line 1: not JSON"),
        (gzip.compress(LINES * 99, mtime=0)[:-9], "f.jsonl is a damaged gzip file"),
        (b"\x1f\x8bnothing", "f.jsonl is a damaged gzip file"),
    ],
)
def test_a_file_that_cannot_be_read_says_why_and_where(written, content, text):
    with pytest.raises(InputError) as error:
        list(read_documents(written(content)))
    assert text in error.value.message
    assert error.value.hint


def test_a_file_that_is_not_there_and_a_folder_are_told_apart(tmp_path):
    with pytest.raises(NotFoundError, match="there is no file"):
        list(read_documents(tmp_path / "nothing.jsonl"))
    with pytest.raises(InputError, match="is a folder"):
        list(read_documents(tmp_path))


@pytest.mark.parametrize("gzipped", [False, True])
def test_the_same_lines_always_give_the_same_bytes(tmp_path, gzipped):
    for name in ("a", "b"):
        write_lines(tmp_path / name, ['{"a":"é"}'], gzipped=gzipped)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert list(read_documents(tmp_path / "a")) == [("a, line 1", {"a": "é"})]


def test_a_file_is_replaced_only_when_asked_for_and_only_when_all_went_well(tmp_path):
    path = tmp_path / "f"
    path.write_text("old")

    def lines(*more):
        yield "new"
        yield from more
        if more:
            raise KeyboardInterrupt

    def write(text, *, overwrite):
        with replace_file(path, overwrite=overwrite) as draft:
            write_lines(draft, text, gzipped=False)

    with pytest.raises(InputError, match="is there already"):
        write(lines(), overwrite=False)
    with pytest.raises(KeyboardInterrupt):
        write(lines("half"), overwrite=True)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]
    write(lines(), overwrite=True)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["new\n"]


def test_a_folder_that_is_not_there_is_an_error_of_ours(tmp_path):
    with (
        pytest.raises(InputError, match="cannot be written: No such file"),
        replace_file(tmp_path / "no" / "f", overwrite=False) as draft,
    ):
        write_lines(draft, [], gzipped=False)
