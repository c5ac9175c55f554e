"""Parquet with the columns of the JSONL, without loss: values other than numbers and texts are JSON. Needs pyarrow.

It also reads the Parquet logs of `openpipe-art`.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from rolloutlab.api.wire.json_size import too_large
from rolloutlab.errors import InputError
from rolloutlab.sampling.conversation import messages_of, tools_of
from rolloutlab.sampling.data_files import read_records
from rolloutlab.sampling.dataset import convert_parquet_row
from rolloutlab.sampling.parquet_rows import import_pyarrow
from rolloutlab.sampling.prompt import Row
from rolloutlab.store.models import Group, StoredCollection
from rolloutlab.trajectories.files.columns import FURTHER, to_columns
from rolloutlab.trajectories.files.jsonl import Document, dump_line

_JSON = ("row", "sampling", "components", "messages_and_choices", *FURTHER, "extra")
_OWN = {"collection", "generation", "group", "messages_and_choices", "sampling"}
"""Columns of which only files of `write` have all."""
_CONVERSATIONS = {"messages", "messages_and_choices", "conversations", "prompt", "completion"}
"""Columns of conversations. If a value in them cannot be read, that is an error, and the value is not left out."""
_ROWS = 512  # rows of a row group


def write(path: Path, groups: Iterable[tuple[StoredCollection, Group]]) -> None:
    """Write the trajectories of groups; raise InputError if pyarrow is not installed."""
    pyarrow = import_pyarrow("Parquet")
    import pyarrow.parquet as parquet

    schema = pyarrow.schema(
        [(name, getattr(pyarrow, kind)()) for name, kind in _column_types().items()],
        metadata={"rolloutlab": "trajectories"},
    )
    columns = (to_columns(collection, group, each) for collection, group in groups for each in group.trajectories)
    rows = ({name: dump_line(value) if name in _JSON else value for name, value in row.items()} for row in columns)
    with parquet.ParquetWriter(path, schema, compression="zstd") as file:
        while batch := list(islice(rows, _ROWS)):
            file.write_table(pyarrow.Table.from_pylist(batch, schema))


def read_documents(path: Path, dropped: list[Row] | None = None) -> Iterator[Document]:
    """Read the rows of a file in the form of the JSONL, or the groups of a log of `openpipe-art`.

    dropped: gets an empty `Row` for each row with values that JSON cannot hold; its `unusable` has columns and reasons.

    Raises:
        InputError: pyarrow is not installed, the file is not Parquet, or a column has another type.
    """
    numbered = read_records(path)
    first = next(numbered, None)
    if first is None:
        return
    every = chain([first], numbered)
    if "group_index" in first[1]:
        yield from _read_log(every)
    elif first[1].keys() >= _OWN:
        yield from ((place, _parse_columns(place, row)) for place, row in every)
    else:
        yield from ((place, _read_foreign(place, row, [] if dropped is None else dropped)) for place, row in every)


def _column_types() -> dict[str, str]:
    own = ("collection", "generation", "group", "position", "row", "model", "step", "sampling", "reward", "components")
    names = (*own, "source", "start_time", "prompt", "messages_and_choices", *FURTHER, "extra")
    numbers = {**dict.fromkeys(("generation", "group", "position", "step", "prompt"), "int64"), "reward": "float64"}
    return {name: numbers.get(name, "string") for name in names}


def _parse_columns(place: str, row: Mapping[str, Any]) -> dict[str, Any]:
    present = {name: value for name, value in row.items() if value is not None}
    return {name: _parse(place, name, value) if name in _JSON else value for name, value in present.items()}


def _read_foreign(place: str, row: Mapping[str, Any], dropped: list[Row]) -> dict[str, Any]:
    """Read a row of another tool's file.

    A column with one of our names may hold any text there, and values may be dates. dropped: as of `read_documents`.
    """
    plain = convert_parquet_row(place, row)
    for column in _CONVERSATIONS & plain.unusable.keys():
        raise plain.unusable[column]
    dropped += [Row(unusable=plain.unusable)] if plain.unusable else []
    values: dict[str, Any] = {}
    for name, value in plain.items():
        try:
            values |= _parse_columns(place, {name: value})
        except InputError:
            if name in _CONVERSATIONS:
                raise
            values[name] = value
    messages = values.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(each, dict) for each in messages):
        tools = values.get("tools")
        values["messages"] = messages_of(messages, tools, structs=True)
        values |= {"tools": tools_of(tools, structs=True)} if tools else {}
    return values


def _parse(place: str, column: str, text: Any) -> Any:
    if not isinstance(text, str):
        return text
    if why := too_large(text):
        raise InputError(f"{place}: {column}: {why}", hint="a shorter value")
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InputError(f"{place}: {column}: not JSON: {error}", hint="docs/exchange.md has the columns") from error


def _read_log(rows: Iterable[Document]) -> Iterator[Document]:
    """Read the groups of a log of `openpipe-art`: consecutive rows with the same `group_index`."""
    for _, members in groupby(rows, lambda document: document[1]["group_index"]):
        group = list(members)
        place, first = group[0]
        metadata = _parse(place, "group_metadata", first.get("group_metadata") or "{}")
        trajectories = [_read_log_trajectory(*each) for each in group if each[1].get("messages") is not None]
        yield place, {"trajectories": trajectories, "metadata": metadata}


def _read_log_trajectory(place: str, row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("reward", "metrics", "metadata", "tools", "logs")
    values = {name: _parse(place, name, row[name]) for name in names if row.get(name) is not None}
    messages = _parse(place, "messages", row["messages"])
    if isinstance(messages, list):
        messages = [_read_log_message(place, each) if isinstance(each, Mapping) else each for each in messages]
    return {**values, "messages": messages}


def _read_log_message(place: str, message: Mapping[str, Any]) -> dict[str, Any]:
    present = {name: value for name, value in message.items() if value is not None and name != "trainable"}
    return {name: _parse(place, name, value) if name == "tool_calls" else value for name, value in present.items()}
