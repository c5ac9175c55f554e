"""The numbers of a run as CSV, from which every number is read back exactly."""

import csv
import os
import shlex
import uuid
from collections.abc import Iterator
from pathlib import Path

from rolloutlab.errors import InputError
from rolloutlab.fsutil import path_of, refused, remove
from rolloutlab.runs.table import RunTable


def write_csv(table: RunTable, path: str | os.PathLike[str]) -> Path:
    """Write one row per step: `step`, `time`, then the numbers; return the path.

    A time is in ISO 8601. A cell is empty where a step has no such number or no known time. Numbers have all their
    digits. pandas reads the same ones; before version 3.1 its default parser may err in the last bit, so ask it for
    `read_csv(path, float_precision="round_trip")`. A file that is already there is replaced when this one is complete.

    Raises:
        InputError: it is not a path. LabError: the file cannot be written.
    """
    hint = f"%runs {shlex.quote(table.name)} --csv run.csv"
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"a {type(path).__name__} is not a file path", hint=hint)
    target = path_of(path, hint)
    if not target.name:
        raise InputError(f"{str(path)!r} is not the path of a file", hint=hint)
    draft = target.with_name(f".{uuid.uuid4().hex}.draft")
    try:
        with draft.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(_lines(table))
        draft.replace(target)
    except OSError as error:
        remove(draft)
        raise refused(f"{target} cannot be written", error, hint) from error
    return target


def _lines(table: RunTable) -> Iterator[list[str]]:
    yield ["step", "time", *table.numbers]
    for (step, numbers), time in zip(table.by_step().items(), table.times, strict=True):
        values = (numbers.get(name) for name in table.numbers)
        yield [str(step), time.isoformat() if time else "", *("" if each is None else repr(each) for each in values)]
