import math
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rolloutlab.errors import InputError, LabError
from rolloutlab.search import F, FieldTerm, Knn, Limit, Search, Select, SparseVector
from rolloutlab.search.engine.execute import execute
from rolloutlab.search.engine.records import Record, Records, discard
from rolloutlab.search.where import Compare, Contains

Ids = Callable[..., str]
Change = Callable[..., None]

BY_VECTOR = Knn((1.0, 0.0), limit=99)
BY_WORD = Knn("cat", key="bm25")


def test_an_id_that_exists_keeps_its_place(records: Records, ids: Ids) -> None:
    records.upsert([Record("a", "cat", {"x": 1}), Record("b")])
    records.upsert([Record("c"), Record("a", "dog", {"y": 2})])
    assert ids() == "abc"
    assert ids(Compare("x", "$eq", 1)) == ""
    assert ids(Compare("y", "$eq", 2)) == "a"
    assert ids(rank=BY_WORD) == ""


def test_of_two_records_with_one_id_the_last_is_written(records: Records, ids: Ids) -> None:
    records.upsert([Record("a", embedding=(1.0, 0.0)), Record("b"), Record("a", metadata={"x": 1})])
    assert ids() == "ab"
    assert ids(Compare("x", "$eq", 1)) == "a"
    assert ids(rank=BY_VECTOR) == ""


def test_a_record_without_an_embedding_keeps_none(records: Records, ids: Ids) -> None:
    records.upsert([Record("a", "cat", embedding=(1.0, 0.0))])
    assert ids(rank=BY_VECTOR) == "a"
    records.upsert([Record("a", "cat")])
    assert ids(rank=BY_VECTOR) == ""


def test_embeddings_are_set_by_themselves(records: Records, ids: Ids) -> None:
    records.upsert([Record("a", "cat", {"x": 1}), Record("b")])
    ids()
    records.embed({"a": (1.0, 0.0), "gone": (1.0, 0.0)})
    assert ids(Compare("x", "$eq", 1), BY_VECTOR) == "a"
    assert records.count == 2


def test_deleted_records_are_found_no_more(records: Records, ids: Ids) -> None:
    records.upsert([Record(c, "cat", {"x": 1, "tags": ["t"]}, (1.0, 0.0)) for c in "abc"])
    assert ids(rank=BY_VECTOR) == "abc"
    records.delete(["b", "nobody"])
    assert ids() == ids(rank=BY_VECTOR) == ids(rank=BY_WORD) == ids(Contains("tags", "t")) == "ac"
    records.upsert([Record("b", "cat")])
    assert ids() == "acb"


def test_a_reader_that_missed_many_deletions_reads_everything_anew(records: Records, ids: Ids) -> None:
    records.upsert([Record(str(i), metadata={"x": i}) for i in range(10_010)])
    assert ids(Compare("x", "$gte", 10_008)) == "1000810009"
    other = Records(records.path)
    other.delete([str(i) for i in range(10_005)])
    other.upsert([Record("new")])
    other.close()
    assert ids(Compare("x", "$gte", 10_008)) == "1000810009"
    assert records.count == 6
    assert ids(limit=Limit(2, 4)) == "10009new"


def test_what_one_process_writes_another_finds(records: Records, ids: Ids) -> None:
    other = Records(records.path)
    for word in "xyz":
        other.upsert([Record(word, word, {"word": word}, (1.0, 2.0))])
        assert ids(Compare("word", "$eq", word), BY_VECTOR) == word
    other.close()


def test_types_of_metadata_are_kept(records: Records) -> None:
    metadata = {"b": True, "i": 1, "f": 1.0, "s": "1", "l": [1, "a", True], "big": 2**63 - 1, "é": "ü"}
    records.upsert([Record("a", metadata=metadata | {"none": None})])
    for select in ("#metadata",), tuple(metadata):
        (hit,) = execute(Search(select=Select(select)), records).hits
        assert hit.metadata == metadata
        assert [type(value) for value in hit.metadata.values()] == [type(value) for value in metadata.values()]


def test_fields_are_told_with_their_kinds(records: Records) -> None:
    records.upsert([Record("a", metadata={"x": 1, "y": "s"}, sparse={"splade": SparseVector((1,), (1.0,))})])
    records.upsert([Record("b", metadata={"x": 1.5, "z": [1]})])
    assert records.fields() == {"x": ("int", "float"), "y": ("str",), "z": ("list",), "splade": ("sparse",)}
    records.delete(["b"])
    assert records.fields() == {"x": ("int",), "y": ("str",), "splade": ("sparse",)}


def test_halves_of_characters_are_written_as_question_marks(records: Records, ids: Ids) -> None:
    records.upsert([Record("a", "broken \ud83d and \x00 cat", {"x": "\ud83d"})])
    assert ids(Contains("#document", "broken ? and \x00 cat")) == "a"
    assert ids(Compare("x", "$eq", "\ud83d")) == "a"


@pytest.mark.parametrize(
    "record",
    [
        Record("a", metadata={"x": {"y": 1}}),
        Record("a", metadata={"x": [[1]]}),
        Record("a", metadata={"x": 2**63}),
        Record("a", metadata={"#x": 1}),
        Record("a", embedding=(math.nan, 1.0)),
        Record("a", embedding=(1e300, 1.0)),
        Record("a", embedding=()),
        Record("a", embedding=("x",)),  # type: ignore[arg-type]
        Record("a", sparse={"s": SparseVector((1, 1), (1.0, 2.0))}),
        Record("a", sparse={"s": SparseVector((1,), (math.inf,))}),
        Record("a", sparse={"bm25": SparseVector((1,), (1.0,))}),
        Record(1),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_record_is_refused_whole(records: Records, record: Record) -> None:
    with pytest.raises(InputError) as caught:
        records.upsert([Record("fine"), record])
    assert caught.value.hint
    assert records.count == 0


def test_embedding_spaces_are_not_mixed(records: Records, ids: Ids) -> None:
    records.set_model("small", 2, "abc")
    records.upsert([Record("a", embedding=(1.0, 0.0))])
    with pytest.raises(InputError, match="mixed embedding spaces"):
        records.upsert([Record("b"), Record("c", embedding=(1.0, 0.0, 0.0))])
    with pytest.raises(InputError, match="mixed embedding spaces"):
        records.embed({"a": (1.0,)})
    with pytest.raises(InputError, match=r"mixed embedding spaces: .* are from small, not from large"):
        records.set_model("large", 2, "def")
    assert ids() == ids(rank=BY_VECTOR) == "a"
    records.set_model("small", 2, "abc")


def test_a_process_with_another_model_is_told(records: Records) -> None:
    records.set_model("small", 2, "abc")
    other = Records(records.path)
    other.set_model("large", 2, "def")
    other.close()
    with pytest.raises(InputError, match="mixed embedding spaces"):
        records.upsert([Record("a", embedding=(1.0, 0.0))])
    assert records.count == 0


def test_an_index_that_was_thrown_away_is_followed(records: Records, ids: Ids) -> None:
    records.upsert([Record("a")])
    discard(records.path)
    other = Records(records.path)
    other.upsert([Record("b")])
    assert ids() == "b"
    discard(records.path)
    records.upsert([Record("c")])
    assert [hit.id for hit in execute(Search(), other).hits] == ["c"]
    other.close()


def test_searches_come_from_any_thread(records: Records) -> None:
    records.upsert([Record(str(i), metadata={"x": i}, embedding=(1.0, float(i))) for i in range(100)])
    found: list[int] = []

    def search() -> None:
        found.extend(len(execute(Search(Compare("x", "$gte", 50), BY_VECTOR), records).hits) for _ in range(20))

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(20):
        records.upsert([Record(f"new{i}", metadata={"x": 0})])
    for thread in threads:
        thread.join()
    assert found == [50] * 80


WRITER = """
import sys
from pathlib import Path
from rolloutlab.search.engine.records import Record, Records

path, end = map(Path, sys.argv[1:])
records, number = Records(path), 0
while not end.exists():
    number += 1
    records.upsert([Record(f"{number} {i}", f"cat {number}", {"n": number}, (1.0, float(i))) for i in range(10)])
    records.delete([f"{number - 10} {i}" for i in range(10)])
records.close()
"""
"""Ten rows at a time in one transaction, and the tenth last away, until the other side has seen enough of them."""


def test_searches_beside_a_writer_see_whole_transactions_and_new_ones(records: Records, tmp_path: Path) -> None:
    enough, seen, newest, end = 30, 0, 0, time.monotonic() + 240
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(records.path), str(tmp_path / "end")])
    while seen < enough and time.monotonic() < end:
        found = execute(Search(rank=FieldTerm("n"), select=Select(("n",))), records)
        rows = Counter(hit.metadata["n"] for hit in found.hits if hit.metadata)
        assert set(rows.values()) <= {10}
        for rank in BY_WORD, BY_VECTOR:
            assert len(execute(Search(rank=replace(rank, limit=1000)), records).hits) in (0, *range(10, 120, 10))
        if max(rows, default=0) > newest:
            newest = max(rows)
            seen += 1
    (tmp_path / "end").touch()
    assert (writer.wait(240), seen) == (0, enough)


@pytest.fixture
def damaged(tmp_path: Path) -> Callable[[str], Records]:
    """An index on which some SQL was run."""

    def make(sql: str) -> Records:
        path = tmp_path / "search.db"
        Records(path).fields()
        records = Records(path)
        sparse = {"s": SparseVector((1, 2), (1.0, 2.0))}
        records.upsert([Record(str(i), f"cat number {i}", {"x": i}, (1.0, float(i)), sparse) for i in range(500)])
        records.close()
        connection = sqlite3.connect(path)
        connection.executescript(sql)
        connection.close()
        return Records(path)

    return make


@pytest.mark.parametrize(
    ("sql", "search"),
    [
        ("UPDATE vectors SET vector = x'00' WHERE row = 7", Search()),
        ("UPDATE vectors SET vector = x'0000c07f0000c07f' WHERE row = 7", Search()),
        ("UPDATE records SET metadata = '{' WHERE row = 7", Search()),
        ("UPDATE records SET metadata = '[1]' WHERE row = 7", Search()),
        ("UPDATE records SET metadata = '{\"x\": {}}' WHERE row = 7", Search()),
        ("DELETE FROM state", Search()),
        ("DROP TABLE vectors", Search()),
        ("UPDATE sparse SET places = x'00' WHERE row = 7", Search(rank=Knn(SparseVector((1,), (1.0,)), key="s"))),
        ("DELETE FROM words_data", Search(rank=BY_WORD)),
        ("DELETE FROM words_docsize", Search(rank=BY_WORD)),
        ("DROP TABLE words_data", Search(rank=BY_WORD)),
        ("DROP TABLE words", Search(rank=BY_WORD)),
    ],
)
def test_a_damaged_index_says_what_to_type(damaged: Callable[[str], Records], sql: str, search: Search) -> None:
    records = damaged(sql)
    with pytest.raises(LabError) as caught:
        execute(search, records)
    assert caught.value.hint == "%search --reindex"
    records.close()


@pytest.mark.parametrize("start", [0, 4096, 8192, 40960])
def test_pages_of_zeros_are_an_error_and_no_crash(
    damaged: Callable[[str], Records], tmp_path: Path, start: int
) -> None:
    damaged("PRAGMA wal_checkpoint(TRUNCATE)").close()
    path = tmp_path / "search.db"
    content = bytearray(path.read_bytes())
    content[start : start + 4096 * 8] = bytes(4096 * 8)
    discard(path)
    path.write_bytes(content)
    with pytest.raises(LabError) as caught:  # noqa: PT012 - on opening or on reading
        records = Records(path)
        execute(Search(rank=BY_VECTOR + BY_WORD, select=Select(("#document", "#metadata"))), records)
    assert caught.value.hint == "%search --reindex"


def test_a_file_that_is_none_says_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "search.db").write_text("no database at all, just some text " * 100)
    with pytest.raises(LabError) as caught:
        Records(tmp_path / "search.db")
    assert caught.value.hint == "%search --reindex"


def test_a_null_that_an_older_version_wrote_is_as_if_it_were_not_there(damaged: Callable[[str], Records]) -> None:
    records = damaged('UPDATE records SET metadata = \'{"x": null, "y": 1}\' WHERE row = 7')
    found = execute(Search(where=Compare("y", "$eq", 1), select=Select(("x", "y"))), records)
    assert [hit.metadata for hit in found.hits] == [{"y": 1}]
    records.close()


def test_a_wrong_query_of_ours_is_not_called_damage(damaged: Callable[[str], Records]) -> None:
    records = damaged("")
    with pytest.raises(LabError) as caught:
        records._read("SELECT nothing FROM records")
    assert "damaged" not in caught.value.message
    assert caught.value.hint != "%search --reindex"
    records.close()


def test_reasoning_is_where_it_was_after_characters_that_cannot_be_stored(fill, find):
    document = "\ud83e\udd14 \ud83e \x00 🤔 carry, and\ud800 more"
    begin, middle, end = (document.index(part) for part in ("carry", "and", " more"))
    fill(Record("a", document, reasoning=[(begin, begin + 5), (middle, end)]), Record("b", "carry"))
    (hit,) = find(F.reasoning_text.contains("carry"), None, None, None, "reasoning_text").hits
    assert hit.metadata == {"reasoning_text": "carry\n\nand?"}


def test_a_record_that_is_written_again_has_its_new_reasoning_alone(fill, ids):
    fill(Record("a", "carry", reasoning=[(0, 5)]), Record("b", "carry", reasoning=[(0, 5)]))
    fill(Record("a", "carry"))
    assert ids(F.reasoning_text.contains("carry")) == "b"
