"""JSON Lines and JSON files, plain or gzipped: values are read with their places, and writes replace the target."""

import gzip
import json
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from rolloutlab.api.wire.json_size import too_large
from rolloutlab.errors import InputError
from rolloutlab.sampling.data_files import open_data_file

Document = tuple[str, Any]
"""The place of a value, such as `chats.jsonl, line 7`, and the value."""

_MAX_BYTES = 128 << 20
"""The most bytes of a line or of a whole JSON document, unpacked: a small gzip file may hold a thousand times more."""


def read_documents(path: Path) -> Iterator[Document]:
    """Read the JSON values of a file, each with its place.

    They are the lines of the file; in a `.json` file, the items of its array, or its only value.

    Raises:
        NotFoundError: there is no such file. InputError: it is empty, not UTF-8, not JSON, or too large to be read; the
            message has the place.
    """
    whole = path.name.removesuffix(".gz").endswith(".json")
    count = 0
    for count, document in enumerate(_read_whole(path) if whole else _read_lines(path), start=1):  # noqa: B007 - used after it
        yield document
    if not count:
        raise InputError(f"{path.name} is empty", hint="%export NAME FILE writes one")


def dump_line(value: object) -> str:
    """Write a value as a line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def write_lines(path: Path, lines: Iterable[str], *, gzipped: bool) -> None:
    """Write lines of text as UTF-8. The same lines always give the same bytes, also gzipped."""
    with path.open("wb") as raw:
        file = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if gzipped else raw
        for line in lines:
            file.write(line.encode() + b"\n")
        if gzipped:
            file.close()


@contextmanager
def replace_file(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Run a block with a temporary path. On success the file is moved to `path`; after an error it is removed.

    Raises:
        InputError: `path` exists and `overwrite` is false, or it cannot be written.
    """
    if path.exists() and not overwrite:
        raise InputError(f"{path} is there already", hint="--overwrite replaces it")
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield draft
        draft.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}", hint="another file") from error
    finally:
        with suppress(OSError):  # an error of the disk that matters has been raised already
            draft.unlink(missing_ok=True)


def _read_whole(path: Path) -> Iterator[Document]:
    with open_data_file(path) as file:
        text = _check_size(file.read(_MAX_BYTES + 1), path.name)
    if text.strip():
        value = _parse(text, path.name)
        for number, item in enumerate(value if isinstance(value, list) else [value], start=1):
            yield f"{path.name}, item {number}", item


def _read_lines(path: Path) -> Iterator[Document]:
    with open_data_file(path) as file:
        lines = iter(lambda: file.readline(_MAX_BYTES + 1), b"")
        for number, line in enumerate(lines, start=1):
            place = f"{path.name}, line {number}"
            if _check_size(line, place).strip():
                yield place, _parse(line, place)


def _check_size(text: bytes, place: str) -> bytes:
    if len(text) > _MAX_BYTES:
        hint = "JSON lines, a trajectory or a group in each"
        raise InputError(f"{place}: more than {_MAX_BYTES >> 20} MiB in one piece", hint=hint)
    return text


def _parse(text: bytes, place: str) -> Any:
    if why := too_large(text):
        raise InputError(f"{place}: {why}", hint="JSON lines, a trajectory or a group in each")
    hint = "a file of JSON lines, .jsonl or .jsonl.gz"
    try:
        decoded = text.decode()
        try:
            return from_json(decoded, allow_inf_nan=False)
        except ValueError:
            if "NaN" not in decoded:
                raise
            # Python's parser reads NaN but also a lone surrogate: the strict parser reads its result once more
            return from_json(json.dumps(json.loads(decoded, parse_constant=_parse_constant)), allow_inf_nan=False)
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not JSON: {error}", hint=hint) from error


def _parse_constant(name: str) -> None:
    """Read NaN, which Python and pandas write for a missing number, as None; raise ValueError for an infinite one."""
    if name != "NaN":
        raise ValueError(f"{name} is no number")
