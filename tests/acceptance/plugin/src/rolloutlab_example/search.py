"""`%connect --search notes:FILE`: notes in a file of JSON Lines, `{"id": "a", "text": "...", "stars": 3}`."""

import json
import tempfile
from pathlib import Path

from rolloutlab.errors import InputError
from rolloutlab.search.engine.execute import execute
from rolloutlab.search.engine.explain import breakdown
from rolloutlab.search.engine.records import Record, Records
from rolloutlab.search.query import Search, Select, resolved
from rolloutlab.search.result import Answer
from rolloutlab.search.where import Among


class Notes:
    """The lab's own engine on the records of a file: filters, ranks, groups and pages."""

    def __init__(self, path, embedder):
        self.path, self.embedder = path, embedder
        self.records = Records(Path(tempfile.mkdtemp()) / "notes.db")

    def use(self, embedder):
        self.embedder = embedder

    def refresh(self, progress):
        notes = [json.loads(line) for line in self.path.read_text().splitlines()]
        self.records.upsert(Record(note["id"], note["text"], {"stars": note["stars"]}) for note in notes)
        return [f"in {self.path.name}"]

    def fields(self):
        return ["stars"]

    def search(self, search, progress):
        executed = resolved(search, self.embedder)
        return Answer(execute(executed, self.records), executed, search, ())

    def documents(self, names):
        search = Search(where=Among("#id", tuple(names)), select=Select(("#document",)))
        return {hit.id: hit.document for hit in execute(search, self.records).hits} if names else {}

    def breakdown(self, executed, name):
        return breakdown(executed, self.records, name)


def open_place(http, url, key, embedder):
    if not Path(url).is_file():
        raise InputError(f"there is no file {url}", hint="%connect --search notes:notes.jsonl")
    return Notes(Path(url), embedder)
