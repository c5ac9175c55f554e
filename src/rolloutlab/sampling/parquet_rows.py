"""Rows of Parquet files as Python values, within memory that a small file cannot exceed."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO, Any

from rolloutlab.errors import InputError, RolloutlabError
from rolloutlab.sampling.numbers import shorten_floats

_ROWS = 512
"""The most rows in memory at once."""
_FEW_ROWS = 8
"""Rows of a batch that are read even if they exceed `_BATCH_BYTES`."""
_BATCH_BYTES = 1 << 30
"""Memory that rows of a large row group may take at once, counted as if each row had all the text of the group."""
_MAX_EXPANSION = 300
"""The most unpacked bytes for each byte of a row group: zstd packs 600 MB of one letter into 18 kB."""
_UNCHECKED_BYTES = 128 << 20
"""Unpacked bytes of a row group below which its expansion is not checked."""
_VALUES_PER_BYTE = 1000
"""The most values in the lists of a column for each byte of it: 50 million zeros are 132 bytes."""
_UNCHECKED_VALUES = 16 << 20
"""Values in the lists of a column below which they are not checked."""
_ROW_CHARACTERS = 128 << 20
"""The most characters in the texts of one row. A text counts as often as the row has it, because JSON repeats it."""
_UNCHECKED_CHARACTERS = 1 << 30
"""Characters in the texts of a row group below which they are not checked."""
_CHARACTERS_PER_BYTE = 1000
"""The most characters in the texts of a row group for each byte of it."""
_SMALL_BYTES = 8 << 20
"""Unpacked bytes up to which a column of texts is read as a dictionary in any case."""
_END = 8
"""Bytes after the footer: its length, and `PAR1`."""
_READ_COLUMNS = """
import io, sys
from pyarrow.parquet import read_metadata
metadata = read_metadata(io.BytesIO(sys.stdin.buffer.read()))
for group in range(metadata.num_row_groups):
    for column in range(metadata.num_columns):
        metadata.row_group(group).column(column)
"""
"""Program of the process that reads a footer."""
_USUAL_EXPANSION = 30
"""The most unpacked bytes for each byte of texts that people write."""


def read_parquet_rows(source: Path | IO[bytes] | Any, name: str, hint: str) -> Iterator[Mapping[str, Any]]:
    """Read the rows of a Parquet file, one after the other.

    A file stores a text that is in many rows only once, so 500 bytes may be gigabytes of rows. Such a column is read as
    indices into a dictionary of its texts, so that equal texts of a batch of rows are one object.

    Args:
        source: the file.
        name: its name in messages.
        hint: what to type if it is not Parquet.

    Raises:
        InputError: pyarrow is not installed, the file is not Parquet, two columns have one name, or it would take too
            much memory.
    """
    import_pyarrow("Parquet")
    import pyarrow.parquet as parquet

    try:
        _check_footer(_read_footer(source), name, hint)
        with parquet.ParquetFile(source) as file:
            metadata, names = file.metadata, file.schema_arrow.names
            types = {field.name: field.type for field in file.schema_arrow}
        _check_names(names, name)
        for number in range(metadata.num_row_groups):
            columns = [metadata.row_group(number).column(i) for i in range(metadata.num_columns)]
            _check_size(columns, [metadata.schema.column(i).max_repetition_level for i in range(len(columns))], name)
            texts = [each.path_in_schema for each in columns if _is_dictionary(each)]
            other = sum(each.total_uncompressed_size for each in columns if not _is_dictionary(each))
            batch_size = min(max(_BATCH_BYTES // max(other, 1), _FEW_ROWS), _ROWS)
            with parquet.ParquetFile(source, metadata=metadata, read_dictionary=texts) as file:
                batches = file.iter_batches(batch_size=batch_size, row_groups=[number])
                values = chain.from_iterable(zip(*map(_read_values, batch.columns), strict=True) for batch in batches)
                rows = shorten_floats((dict(zip(names, row, strict=True)) for row in values), types)
                yield from (
                    _check_texts(rows, sum(each.total_compressed_size for each in columns), name) if texts else rows
                )
    except RolloutlabError:
        raise
    except Exception as error:  # pyarrow raises many types for damaged bytes: OSError, KeyError, UnicodeDecodeError
        what = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name} cannot be read as Parquet: {what}", hint=hint) from error


def _read_footer(source: Any) -> bytes:
    """Read the footer of a Parquet file, which describes its columns, and return it as a file of its own."""
    with source.open("rb") if isinstance(source, Path) else nullcontext(source) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _END, 0))
        end = file.read()
        file.seek(max(size - _END - int.from_bytes(end[:4], "little"), 0))
        footer = b"PAR1" + file.read()
        file.seek(0)
    return footer


def _check_footer(footer: bytes, name: str, hint: str) -> None:
    """Raise InputError if reading the footer would end this process.

    pyarrow does that if the footer describes a column in two ways, as in one of a thousand damaged files. So another
    process reads the footer first. That takes a third of a second.
    """
    if sys.executable:
        command = [sys.executable, "-P", "-c", _READ_COLUMNS]
        child = subprocess.run(command, input=footer, capture_output=True, check=False)
        if child.returncode not in {0, 1}:
            raise InputError(f"{name} cannot be read as Parquet: its columns are damaged", hint=hint)


def import_pyarrow(what: str) -> Any:
    """Import pyarrow; raise InputError if it is not installed. what: what needs it, for the message."""
    try:
        import pyarrow
    except ImportError as error:
        raise InputError(f"{what} needs pyarrow", hint="pip install 'rolloutlab[parquet]'") from error
    return pyarrow


def _check_names(names: list[str], name: str) -> None:
    if twice := next((each for each in names if names.count(each) > 1), None):
        raise InputError(f"{name}: the column {twice!r} is there twice", hint="a name of its own for each column")


def _check_size(columns: list[Any], nested: list[int], name: str) -> None:
    """Raise InputError if a row group would unpack to far more than its own size.

    nested: by column, above 0 if its values are in lists.
    """
    unpacked, packed = (sum(getattr(each, f"total_{kind}_size") for each in columns) for kind in _KINDS)
    if unpacked > max(_UNCHECKED_BYTES, _MAX_EXPANSION * packed):
        raise _too_large(name, f"{packed:,} bytes of it unpack to {unpacked:,}")
    for each in (column for column, level in zip(columns, nested, strict=True) if level):
        if each.num_values > max(_UNCHECKED_VALUES, _VALUES_PER_BYTE * each.total_compressed_size):
            what = f"the lists of its column {each.path_in_schema} have {each.num_values:,} values"
            raise _too_large(name, f"{what} in {each.total_compressed_size:,} bytes")


def _check_texts(rows: Iterable[Mapping[str, Any]], packed: int, name: str) -> Iterator[Mapping[str, Any]]:
    """Pass on the rows of a row group as long as their texts are not too long.

    packed: the bytes of the row group, which may store a text once for many rows.

    Raises:
        InputError: the texts of a row, or of all rows so far, have too many characters.
    """
    every = 0
    for row in rows:
        size = _count_characters(row)
        every += size
        if size > _ROW_CHARACTERS:
            raise _too_large(name, f"the texts of one row have {size:,} characters")
        if every > max(_UNCHECKED_CHARACTERS, _CHARACTERS_PER_BYTE * packed):
            raise _too_large(name, f"the texts of its rows have {every:,} characters, in {packed:,} bytes")
        yield row


def _count_characters(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_count_characters, value.values()))
    return sum(map(_count_characters, value)) if isinstance(value, list | tuple) else 0


_KINDS = ("uncompressed", "compressed")


def _too_large(name: str, what: str) -> InputError:
    return InputError(f"{name} would take too much memory: {what}", hint="a file with less in each row group")


def _is_dictionary(column: Any) -> bool:
    """Whether a column of a row group is read as a dictionary of its texts.

    A large column that packs no better than ordinary texts is not: the dictionary of each batch of rows would hold all
    texts of the batches before.
    """
    size, packed = column.total_uncompressed_size, column.total_compressed_size
    has_texts = column.physical_type == "BYTE_ARRAY" and "RLE_DICTIONARY" in column.encodings
    return has_texts and (size <= _SMALL_BYTES or size > _USUAL_EXPANSION * packed)


def _read_values(array: Any) -> list[Any]:
    """Read the values of an array as `to_pylist` does, but with one object for equal texts of a dictionary."""
    import pyarrow.compute as compute
    from pyarrow import types

    kind = array.type
    if types.is_dictionary(kind):
        indices = array.indices.to_pylist()
        texts = {i: _read_value(array.dictionary[i]) for i in {*indices} - {None}}
        return [None if i is None else texts[i] for i in indices]
    if types.is_struct(kind):
        names, fields = (
            [field.name for field in kind],
            [_read_values(field) for field in map(array.field, range(len(kind)))],
        )
        return [
            {name: field[i] for name, field in zip(names, fields, strict=True)} if valid else None
            for i, valid in enumerate(array.is_valid().to_pylist())
        ]
    if types.is_map(kind):
        # an array may be a slice: its offsets count from the first of all keys and items, not from its own first one
        places = array.offsets.to_pylist()
        own = [each.slice(places[0], places[-1] - places[0]) for each in (array.keys, array.items)]
        pairs = list(zip(*map(_read_values, own), strict=True))
        ranges = [slice(begin - places[0], end - places[0]) for begin, end in pairwise(places)]
        return [
            pairs[each] if valid else None for each, valid in zip(ranges, array.is_valid().to_pylist(), strict=True)
        ]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        items = iter(_read_values(array.flatten()))
        lengths = compute.list_value_length(array).to_pylist()
        return [None if length is None else list(islice(items, length)) for length in lengths]
    return read_arrow_values(array)


class Unreadable:
    """A value of Arrow that Python cannot hold: a date after the year 9999, or bytes that are not UTF-8."""

    def __init__(self, kind: Any, error: Exception) -> None:
        self.why = f"Python cannot hold this {kind}: {' '.join(str(error).split())}"


def read_arrow_values(array: Any) -> list[Any]:
    """Read the values of an array of Arrow. A value that Python cannot hold becomes an `Unreadable`."""
    try:
        return list(array.to_pylist())
    except (ArithmeticError, ValueError):  # OverflowError, UnicodeDecodeError, ArrowInvalid
        return [_read_value(each) for each in array]


def _read_value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ArithmeticError, ValueError) as error:
        return Unreadable(scalar.type, error)
