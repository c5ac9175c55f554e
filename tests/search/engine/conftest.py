"""An index of a few records, each written as what a test is about."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutlab.search import GroupBy, Limit, Rank, Search, Select, Where
from rolloutlab.search.engine.execute import SearchOutcome, execute
from rolloutlab.search.engine.records import Record, Records

Find = Callable[..., SearchOutcome]


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    opened = Records(tmp_path / "search.db")
    yield opened
    opened.close()


@pytest.fixture
def fill(records: Records) -> Callable[..., None]:
    """Metadata of records a, b, c, ... by position, or records by themselves."""

    def write(*given: Any) -> None:
        as_records = [
            each if isinstance(each, Record) else Record(chr(97 + i), metadata=each) for i, each in enumerate(given)
        ]
        records.upsert(as_records)

    return write


@pytest.fixture
def find(records: Records) -> Find:
    def run(
        where: Where | None = None,
        rank: Rank | None = None,
        group_by: GroupBy | None = None,
        limit: Limit | None = None,
        *select: str,
    ) -> SearchOutcome:
        return execute(Search(where, rank, group_by, limit or Limit(), Select(select)), records)

    return run


@pytest.fixture
def ids(find: Find) -> Callable[..., str]:
    """The ids that a search finds, written together."""
    return lambda *arguments, **options: "".join(hit.id for hit in find(*arguments, **options).hits)


@pytest.fixture
def scores(find: Find) -> Callable[[Rank], dict[str, float | None]]:
    return lambda rank: {hit.id: hit.score for hit in find(rank=rank).hits}
