"""The lab's side of the search tests: it runs where rolloutlab is installed, and answers JSON lines with JSON lines.

    {"payload": dictionary}                           what the cloud would be sent
    {"records": [...], "space": "l2", "url": URL}     the lab's own engine has what a collection of a server has
    {"search": dictionary, "url": URL}                what it finds, and what is found through the server

An answer is {"answer": ...}, or {"error": message} for a dictionary that is none.
"""

import json
import sys
import tempfile
from pathlib import Path

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import InputError
from rolloutlab.integrations.chroma.cloud import cloud_payload
from rolloutlab.integrations.chroma.connect import connect_search
from rolloutlab.search.dictionary import parse
from rolloutlab.search.engine.execute import execute
from rolloutlab.search.engine.records import Record, Records


class Lab:
    def __init__(self, folder):
        self.folder = folder
        self.http = HttpClient()
        self.both = {}

    def payload(self, payload):
        return cloud_payload(parse(payload))

    def fill(self, records, space, url):
        own = Records(Path(tempfile.mkdtemp(dir=self.folder)) / "search.db", space=space)
        own.upsert(Record(**record) for record in records)
        self.both[url] = own, connect_search(self.http, url)

    def compare(self, search, url):
        own, server = self.both[url]
        found = execute(parse(search), own), server.search(parse(search))
        return [[vars(hit) for hit in one.hits] for one in found]

    def answer(self, call):
        if "payload" in call:
            return self.payload(**call)
        return self.fill(**call) if "records" in call else self.compare(**call)


def main():
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(folder)
        for line in sys.stdin:
            try:
                said = {"answer": lab.answer(json.loads(line))}
            except InputError as error:
                said = {"error": error.message}
            print(json.dumps(said), flush=True)


main()
