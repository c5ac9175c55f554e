"""What an export asks for before it writes anything."""

import re

import pytest

from rolloutlab.api.wire.chat import AssistantMessage, UserMessage
from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.store.models import Recorded


@pytest.fixture
def filled(session):
    prompt, message = UserMessage(role="user", content="2 + 2?"), AssistantMessage(role="assistant", content="4")
    with session.store.draft() as draft:
        draft.add([Recorded("here", "sums", 0, [prompt], [message])])
        draft.publish()
    return session


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("a.txt", None, "a.txt has no known format"),
        ("a.json", None, "a.json has no known format"),
        ("a.jsonl", "xml", "unknown format 'xml'"),
        ("a.jsonl", "csv", "a.jsonl is not a file name for the format csv"),
        ("a.csv", "jsonl", "a.csv is not a file name for the format jsonl"),
        ("a.jsonl", "parquet", "a.jsonl is not a file name for the format parquet"),
        ("a.parquet", "openai", "a.parquet is not a file name for the format openai"),
        ("a.jsonl", "art", "nothing of sums would be written"),
        ("no/a.jsonl", None, "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_said_and_leaves_no_file(filled, tmp_path, name, kind, message):
    before = set(tmp_path.iterdir())
    with pytest.raises(InputError, match=re.escape(message)) as error:
        filled.files.export("sums", tmp_path / name, kind)
    assert error.value.hint
    assert set(tmp_path.iterdir()) == before


def test_a_file_is_not_replaced_unasked(filled, tmp_path):
    filled.files.export("sums", tmp_path / "a.jsonl")
    with pytest.raises(InputError, match="is there already"):
        filled.files.export("sums", tmp_path / "a.jsonl")
    assert repr(filled.files.export(["sums"], tmp_path / "a.jsonl", overwrite=True)).startswith(
        "1 trajectory in 1 group -> "
    )


def test_a_collection_that_is_not_there_is_said(filled, tmp_path):
    with pytest.raises(NotFoundError):
        filled.files.export(["sums", "rivers"], tmp_path / "a.jsonl")
    with pytest.raises(InputError, match="no collection is given"):
        filled.files.export([], tmp_path / "a.jsonl")


def test_a_file_that_is_written_counts_also_where_its_draft_cannot_be_looked_for(filled, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.unlink", refuse)
        filled.files.export("sums", tmp_path / "a.jsonl")
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 1
