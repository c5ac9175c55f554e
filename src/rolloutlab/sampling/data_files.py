"""Data files: rows of JSON Lines, JSON arrays, CSV, TSV and Parquet, plain or compressed, read as far as needed.

Values of CSV and TSV stay text: a guess would turn `007` into 7 and the country code `NA` into a missing value.
"""

import codecs
import csv
import gzip
import io
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice, repeat
from pathlib import Path
from typing import IO, Any

from rolloutlab.api.wire.json_size import too_large
from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.sampling.conversation import are_messages
from rolloutlab.sampling.parquet_rows import import_pyarrow, read_parquet_rows

Record = tuple[str, Any]
"""The place of a row, such as `chats.jsonl, line 7`, and the row: a mapping, or any other JSON value."""

MAX_BYTES = 128 << 20
"""The most bytes of a line, or of an item of an array, unpacked: gzip may make a file a thousand times smaller."""
_MAX_EXPANSION = 500
"""The most unpacked bytes for each byte of a compressed file. Ordinary texts have 30, a million tiny rows 200."""
_UNCHECKED_BYTES = 256 << 20
"""Unpacked bytes of a file below which its expansion is not checked."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_UTF_8_MARK = b"\xef\xbb\xbf"
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CHUNK = 1 << 20
_SPACE = re.compile(r"\s*")
_SEPARATOR_LINE = re.compile(r"sep=(.)\s*")
"""What Excel writes and reads as the first line of a CSV file with another separator."""
_SEPARATORS = ",;\t|"
_MAX_PACKED = 512 << 20
"""The most unpacked bytes of a Parquet file that is itself compressed, as by gzip."""
_MAX_COLUMNS = 100_000
_LINES = 8
"""The number of lines after the header that decide on the separator of a CSV file."""


def is_data_file(name: str) -> bool:
    """Whether a text is the name of a data file, by its ending. The file need not exist."""
    return _ending_of(name) in _READERS


def is_parquet(name: str) -> bool:
    """Whether a text is the name of a Parquet file, which may be compressed."""
    return _ending_of(name) == "parquet"


def read_records(path: Path) -> Iterator[Record]:
    """Read the rows of a file with their places, one after the other. The name of the file tells its format.

    Names end in .jsonl, .ndjson, .json, .csv, .tsv or .parquet, each also with .gz or .zst after it.

    Raises:
        NotFoundError: there is no such file. InputError: its name has another ending, or a row cannot be read; the
            message has file, line and column.
    """
    exists = os.path.exists(path)  # noqa: PTH110 - False also of a name that is too long, where Path raises
    if not exists and path.parent.name and not path.suffix:
        hint = f'over=datasets.load_dataset("{path.as_posix()}", split="train")'
        raise NotFoundError(f"there is no file {path}", hint=hint)
    read = _READERS.get(_ending_of(path.name))
    if read is None and exists:
        raise InputError(f"{path.name} has no known format", hint="a file called .jsonl, .json, .csv, .tsv or .parquet")
    with open_data_file(path) as file:
        if file.peek(2)[:2] in _UTF_16_MARKS:  # type: ignore[attr-defined]  # a BufferedReader
            raise InputError(f"{path.name} is UTF-16, not UTF-8", hint='pandas.read_csv(..., encoding="utf-16")')
        yield from (read or read_json_lines)(file, path.name)


@contextmanager
def open_data_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, unpacked if it is compressed by gzip or Zstandard, and after a byte order mark.

    Raises:
        NotFoundError: there is no such file. InputError: it cannot be read, or is cut short. That is raised also if it
            turns out in the block.
    """
    try:
        with path.open("rb") as raw:
            file = _unpack(raw)
            if file.peek(3)[:3] == _UTF_8_MARK:
                file.read(3)
            yield file
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}", hint=f"%ls {path.absolute().parent}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path.name} is a damaged gzip file: {error}", hint="fetch it again") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder", hint=f"a file in it: %ls {path}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", hint="another file") from error


def _unpack(raw: io.BufferedReader) -> io.BufferedReader:
    beginning = raw.peek(4)
    if beginning[:2] == _GZIP:
        return io.BufferedReader(_UnpackedFile(gzip.GzipFile(fileobj=raw), raw))
    if beginning[:4] == _ZSTD:
        return io.BufferedReader(_UnpackedFile(import_pyarrow("Zstandard").CompressedInputStream(raw, "zstd"), raw))
    return raw


class _UnpackedFile(io.RawIOBase):
    """Reads a compressed file unpacked. Raises InputError if that is hundreds of times the size of the file."""

    def __init__(self, unpacked: Any, packed: io.BufferedReader) -> None:
        super().__init__()
        self._from = unpacked
        self._packed = packed
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._from.read(len(buffer))
        buffer[: len(piece)] = piece
        self._size += len(piece)
        if self._size > max(_UNCHECKED_BYTES, _MAX_EXPANSION * self._packed.tell()):
            path = Path(self._packed.name)
            what = f"{self._packed.tell():,} bytes of it unpack to {self._size:,}"
            raise InputError(
                f"{path.name} would take too long: {what}", hint=f"unpack it first, if it is meant so: {path.stem}"
            )
        return len(piece)


def read_json_lines(file: Iterable[bytes], name: str) -> Iterator[Record]:
    """Read the values of JSON Lines with their places. name: the name of the file in these.

    Raises:
        InputError: a line is not JSON, not UTF-8, or too long.
    """
    for place, line in _read_lines(file, name):
        if line.strip():
            yield place, _parse(line, place, cut=not line.endswith("\n"))


def _read_lines(file: Iterable[bytes], name: str) -> Iterator[tuple[str, str]]:
    """Each line with its place; a line is bounded, so that a file without line breaks does not fill the memory."""
    read = iter(lambda: file.readline(MAX_BYTES + 1), b"") if isinstance(file, io.IOBase) else file
    for number, line in enumerate(read, start=1):
        place = f"{name}, line {number}"
        if len(line) > MAX_BYTES:
            raise InputError(f"{place}: more than {MAX_BYTES >> 20} MiB in one line", hint="JSON Lines, a row in each")
        try:
            yield place, line.decode()
        except UnicodeDecodeError as error:
            hint = 'pandas.read_csv(..., encoding="cp1252"), or save it as UTF-8'
            raise InputError(f"{place}, column {error.start + 1}: not UTF-8", hint=hint) from error


def _parse(text: str, place: str, *, cut: bool) -> Any:
    """Parse a line of JSON. NaN and Infinity are numbers, as Python, pandas and JavaScript libraries write them.

    cut: whether the line may be cut short, for the hint.
    """
    if why := too_large(text):
        raise InputError(f"{place}: {why}", hint="fewer values in one line")
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        hint = "the last line is cut short: copy the file again" if cut else "one JSON value per line"
        raise InputError(f"{place}{_column_of(error)}: not JSON: {_problem(error)}", hint=hint) from error


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object. Raise ValueError if it has a name twice, because a dict would lose one of the values."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError(f"{_repeated_name([name for name, _ in pairs])!r} is there twice")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_make_object)


def _column_of(error: Exception) -> str:
    return f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""


def _problem(error: Exception) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error)


def _read_json(file: IO[bytes], name: str) -> Iterator[Record]:
    """Read the rows of a .json file: the items of an array, the lines of JSON Lines, or one value or its rows."""
    if file.peek(1).lstrip()[:1] == b"[":  # type: ignore[attr-defined]  # a BufferedReader
        yield from _read_items(codecs.iterdecode(iter(lambda: file.read(_CHUNK), b""), "utf-8"), name)
        return
    first, more, blank = file.readline(MAX_BYTES), b"", 0
    while (more := file.readline(MAX_BYTES)) and not more.strip():
        blank += 1  # not kept: gzip packs a billion of them into a megabyte
    if not first.strip() or (more.strip() and _is_json(first)):
        yield from read_json_lines(chain([first], repeat(b"\n", blank), [more] if more else [], file), name)
        return
    between = b"\n" * min(blank, MAX_BYTES)
    lines = _read_lines(io.BytesIO(b"".join([first, between, more, file.read(MAX_BYTES)])), name)
    value = _parse("".join(line for _, line in lines), name, cut=True)
    table = table_of(value, name)
    if table is None:
        yield name, value
    else:
        key, rows = table
        yield from ((f"{name}, {key}, item {number}", row) for number, row in enumerate(rows, start=1))


def _is_json(line: bytes) -> bool:
    if too_large(line):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def table_of(value: Any, name: str) -> tuple[str, list[Any]] | None:
    """Find the rows in an object such as `{"version": "1.1", "data": [{...}]}`: its only list of objects, and its key.

    None if it has no such list. A list of messages does not count, because an object with messages is a row.

    Raises:
        InputError: there are several; the message has their keys.
    """
    items = value.items() if isinstance(value, Mapping) else ()
    tables = {str(k): v for k, v in items if isinstance(v, list) and v and not are_messages(v) and _are_objects(v)}
    if len(tables) > 1:
        hint = f"over=json.load(open({name!r}))[{next(iter(tables))!r}]" if is_data_file(name) else "over=data[KEY]"
        raise InputError(f"{name} has several lists of rows: {', '.join(tables)}", hint=hint)
    return next(iter(tables.items()), None)


def _are_objects(values: list[Any]) -> bool:
    return all(isinstance(each, Mapping) for each in values)


def _read_items(pieces: Iterator[str], name: str) -> Iterator[Record]:
    """Read the items of a JSON array that comes in pieces.

    An item that cannot be parsed may only be incomplete: more pieces are added to it until it can, or until the file
    ends or the item is too large.
    """
    text, at, number = "", 0, 0  # what is read and not used yet, from `at`; item 0 is the bracket that opens the array
    while True:
        place = f"{name}, item {number}" if number else name
        try:
            at = _skip_space(text, at)
            if number and text[at : at + 1] == "]":
                _check_end(chain([text[at + 1 :]], pieces), name)
                return
            value, end = _DECODER.raw_decode(text, at) if number else (None, text.index("[") + 1)
            end = _skip_space(text, end)
            if number and text[end : end + 1] not in {",", "]"}:  # the rest of a number may follow
                raise json.JSONDecodeError("Expecting ',' or ']'", text, end)
        except (ValueError, RecursionError) as error:
            text, at = _read_more(text[at:], pieces, place, error), 0
            if why := too_large(text):
                raise InputError(f"{place}: {why}", hint="fewer values in one item") from error
            if len(text) > MAX_BYTES:
                raise InputError(f"{place}: not JSON: {_problem(error)}", hint="JSON Lines, a row in each") from error
            continue
        if number:
            yield place, value
        at, number = end + (text[end : end + 1] == ","), number + 1


def _check_end(pieces: Iterator[str], name: str) -> None:
    """Raise InputError for anything after an array, such as a second array, instead of leaving it out silently."""
    try:
        more = next(filter(None, map(str.strip, pieces)), "")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8", hint="save it as UTF-8") from error
    if more:
        hint = "one array with all rows, or JSON Lines, a row in each, in a file called .jsonl"
        raise InputError(f"{name}: not JSON: more after the end of the array: {more[:20]!r}", hint=hint)


def _skip_space(text: str, at: int = 0) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _read_more(text: str, pieces: Iterator[str], place: str, error: Exception) -> str:
    """Add to the beginning of an item as much again of the file. So parsing a long item takes linear time.

    Raise InputError if the file ends before the item does, or is not UTF-8.
    """
    try:
        more = [next(pieces)]
        missing = min(len(text), MAX_BYTES - len(text)) - len(more[0])
        while missing > 0 and (piece := next(pieces, "")):
            more.append(piece)
            missing -= len(piece)
        return "".join([text, *more])
    except StopIteration:
        raise InputError(f"{place}: not JSON: {_problem(error)}", hint="is the file complete? copy it again") from error
    except UnicodeDecodeError:
        raise InputError(f"{place}: not UTF-8", hint="save it as UTF-8") from error


def _read_csv(file: IO[bytes], name: str, separator: str = "") -> Iterator[Record]:
    """Read the rows of a CSV file (RFC 4180) with a header. separator: "" to find it by the header."""
    # the default of 131,072 characters is less than a document may have; the limit is one for all readers of a process
    if csv.field_size_limit() < MAX_BYTES:
        csv.field_size_limit(MAX_BYTES)
    lines = _read_lines(file, name)
    header, before = "", 0
    for before, (_, header) in enumerate(lines):  # noqa: B007 - the number of lines before the header
        named = _SEPARATOR_LINE.fullmatch(header)
        separator = named[1] if named else separator
        if header.strip() and not named:
            break
    place = f"{name}, line {before + 1}"
    rest: Iterator[str] = (line for _, line in lines)
    try:
        if not separator:
            separator, rest = _find_separator(header, rest, place)
        reader = csv.reader(chain([header], rest), delimiter=separator, strict=True)
        columns = [column.strip() for column in next(reader, [])]
        if len(columns) > _MAX_COLUMNS:
            raise InputError(f"{place}: {len(columns):,} columns", hint=f"at most {_MAX_COLUMNS:,} columns")
        _check_header([column for column in columns if column], place)
        place = f"{name}, line {before + reader.line_num + 1}"
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield place, _make_csv_row(columns, cells, place)
            place = f"{name}, line {before + reader.line_num + 1}"
    except csv.Error as error:
        if "new-line character" in str(error):
            hint = f"pandas.read_csv({name!r})"
            raise InputError(f"{place}: a line break is \\r, not \\n or \\r\\n", hint=hint) from error
        is_long = "field limit" in str(error)
        hint = "does a quote end the value?" if is_long else 'quotes in a value are doubled: ""'
        raise InputError(f"{place}: not CSV: {error}", hint=hint) from error


def _find_separator(header: str, lines: Iterator[str], place: str) -> tuple[str, Iterator[str]]:
    """Find the separator that divides the header into most columns. If several do, the next lines decide.

    Returns the separator and the lines, of which none is used up. Raise InputError if the next lines do not decide
    either, as with `prompt;price, EUR` and then `What?;2,5`.
    """
    widths = {each: len(next(csv.reader([header], delimiter=each), [])) for each in _SEPARATORS}
    most = max(widths.values())
    likely = [each for each, width in widths.items() if width == most]
    if most < 2 or len(likely) == 1:
        return likely[0], lines
    ahead = list(islice(lines, _LINES))
    fit = [each for each in likely if ahead and _has_width(ahead, each, most)]
    if len(fit) > 1:
        both = " and ".join(map(repr, fit))
        hint = f"a line sep={fit[-1]} before the header, or pandas.read_csv(..., sep={fit[-1]!r})"
        raise InputError(f"{place}: {both} both divide the lines into {most} columns", hint=hint)
    return (fit or likely)[0], chain(ahead, lines)


def _has_width(lines: Sequence[str], separator: str, width: int) -> bool:
    """Whether all rows of these lines have `width` values. The last row does not count if further lines may follow."""
    try:
        rows = [row for row in csv.reader(lines, delimiter=separator) if any(map(str.strip, row))]
    except csv.Error:
        return False
    whole = rows[:-1] if len(lines) == _LINES else rows
    return all(len(row) == width for row in whole)


def _make_csv_row(columns: Sequence[str], cells: Sequence[str], place: str) -> dict[str, str]:
    """Make a row of its cells. Columns without a name are left out."""
    if len(cells) != len(columns):
        what = f"the header has {len(columns)} columns, this row {len(cells)}"
        hint = "is the last line complete? a value with a separator in it needs quotes"
        raise InputError(f"{place}: {what}", hint=hint)
    return {column: cell for column, cell in zip(columns, cells, strict=True) if column}


def _check_header(columns: Sequence[str], place: str) -> None:
    if len(set(columns)) < len(columns):
        hint = "a name of its own for each column"
        raise InputError(f"{place}: the column {_repeated_name(columns)!r} is there twice", hint=hint)


def _repeated_name(names: Sequence[str]) -> str:
    """Return the name that is there most often."""
    return Counter(names).most_common(1)[0][0]


def _read_tsv(file: IO[bytes], name: str) -> Iterator[Record]:
    return _read_csv(file, name, "\t")


def _read_parquet(file: IO[bytes], name: str) -> Iterator[Record]:
    source: Any = file
    # Parquet is read from its end, so a compressed file is unpacked as a whole
    if not isinstance(getattr(file, "raw", None), io.FileIO):
        packed = file.read(_MAX_PACKED + 1)
        if len(packed) > _MAX_PACKED:
            what = f"{name} unpacks to more than {_MAX_PACKED >> 20} MiB"
            raise InputError(what, hint="unpack it first: a Parquet file is packed inside")
        source = import_pyarrow("Parquet").BufferReader(packed)
    rows = read_parquet_rows(source, name, "copy the file again")
    yield from ((f"{name}, row {number}", row) for number, row in enumerate(rows, start=1))


_READERS: dict[str, Callable[[IO[bytes], str], Iterator[Record]]] = {
    "jsonl": read_json_lines,
    "ndjson": read_json_lines,
    "json": _read_json,
    "csv": _read_csv,
    "tsv": _read_tsv,
    "parquet": _read_parquet,
}


def _ending_of(name: str) -> str:
    return name.lower().removesuffix(".gz").removesuffix(".zst").rpartition(".")[2]
