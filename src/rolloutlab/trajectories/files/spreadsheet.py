"""CSV to label in a spreadsheet: a trajectory per line; `%rewards NAME --from FILE` takes the rewards back.

UTF-8 with a byte order mark and lines that end in CR LF (RFC 4180), as Excel expects. Texts that a spreadsheet would
take for a formula begin with an apostrophe (OWASP, "CSV Injection").
"""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Group, StoredCollection, StoredTrajectory
from rolloutlab.trajectories.table_query import number_of

_FORMULA = tuple("=+-@\t\r\uff1d\uff0b\uff0d\uff20")
"""Characters that begin a formula, also in their full-width forms."""


class SpreadsheetColumns(NamedTuple):
    """The columns that differ between files: the components of rewards, the columns of rows, and reasoning."""

    components: Sequence[str]
    rows: Sequence[str]
    reasoning: bool = False


def columns_of(lab: Lab, collections: Sequence[StoredCollection]) -> SpreadsheetColumns:
    """Find the components and row columns of all trajectories of collections, and whether any may have reasoning."""
    components = (part for each in collections for outline in lab.outlines.of(each) for part in outline.components)
    rows = (column for each in collections for row in lab.outlines.rows(each).values() for column in row)
    reasoning = any(map(lab.outlines.may_reason, collections))
    return SpreadsheetColumns(list(dict.fromkeys(components)), list(dict.fromkeys(rows)), reasoning)


def write(path: Path, groups: Iterable[tuple[StoredCollection, Group]], columns: SpreadsheetColumns) -> None:
    """Write the trajectories of groups, one per line.

    The columns are `trajectory`, `prompt`, `answer`, `reasoning` (if any trajectory may have it), `reward`, the
    components, `source`, and `row.x` for each column x of the rows. The name of a trajectory has its generation
    (`capitals:1/0/3`), so that it stays unique and no spreadsheet reads it as a date.
    """
    parts, rows, reasoning = columns
    texts = ["prompt", "answer", *(["reasoning"] if reasoning else [])]
    head = ["trajectory", *texts, "reward", *parts, "source", *(f"row.{name}" for name in rows)]
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(map(_format_cell, head))
        for collection, group in groups:
            for trajectory in group.trajectories:
                writer.writerow(map(_format_cell, _list_values(collection, trajectory, columns)))


def _list_values(collection: StoredCollection, trajectory: StoredTrajectory, columns: SpreadsheetColumns) -> list[Any]:
    place = "/".join(trajectory.name.split("/")[-2:])
    return [
        f"{collection.name}:{collection.generation}/{place}",
        trajectory.prompt,
        trajectory.answer,
        *([trajectory.reasoning] if columns.reasoning else []),
        trajectory.reward,
        *(trajectory.components.get(name) for name in columns.components),
        trajectory.source,
        *(trajectory.row.get(name) for name in columns.rows),
    ]


def _format_cell(value: Any) -> str:
    """Format a value for a cell. An apostrophe goes before a text that a spreadsheet would take for a formula."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    is_formula = value.lstrip().startswith(_FORMULA) and number_of(value) is None
    return f"'{value}" if is_formula or value.startswith(_FORMULA[4:6]) else value
