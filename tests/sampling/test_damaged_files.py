"""Damaged files of every kind that a person can name: an error of ours with what to type, never a foreign one."""

import gzip
import io
import json
import os
import random
import subprocess
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from rolloutlab.api.wire.fine_tuning import SFTTrainingConfig
from rolloutlab.errors import InputError, RolloutlabError
from rolloutlab.integrations.openai_graders.graders import read_grader
from rolloutlab.sampling import parquet_rows
from rolloutlab.sampling.dataset import rows_of
from rolloutlab.sampling.programs.results import read_results
from rolloutlab.settings.read import read_settings
from rolloutlab.store.lab import Lab
from rolloutlab.training.fine_tuning import FineTuning
from rolloutlab.trajectories.files import file_path
from rolloutlab.trajectories.files.exchange import import_file
from rolloutlab.trajectories.reward_edits import give_from_file

VARIANTS = 150


@pytest.fixture
def lab(tmp_path):
    with closing(Lab(tmp_path / "lab")) as opened:
        yield opened


PARQUET_VARIANTS = 60
"""Fewer: each is read in a fork first."""


def damaged(data: bytes, seed: int) -> bytes:
    """The bytes with up to five places flipped, overwritten, zeroed, left out, put in or cut off."""
    draw, changed = random.Random(seed), bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 5])):
        at, length = draw.randrange(len(changed) or 1), draw.choice([1, 2, 4, 16, 64])
        change = draw.choice(["flip", "other", "random", "left out", "put in", "cut", "zero"])
        if change == "flip" and changed:
            changed[at] ^= 1 << draw.randrange(8)
        elif change == "cut":
            del changed[at:]
        else:
            new = {"other": 1, "random": length, "put in": length, "zero": length}.get(change, 0)
            old = 0 if change == "put in" else 1 if change == "other" else length
            changed[at : at + old] = bytes(new) if change == "zero" else draw.randbytes(new)
    return bytes(changed)


def _call(number: int) -> dict:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": number}}}


ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"{n} é"},
            {"role": "assistant", "content": "", "tool_calls": [_call(n)]},
        ],
        "n": n,
        "share": n / 3,
        "text": f"text {n % 3}",
        "none": None,
        "list": [n, None],
        "id": f"a{n}",
        "reward": 0.5,
    }
    for n in range(30)
]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode()
PROFILE = (
    b'[profiles.mine]\nurl = "https://x.example"\napi_key_env = "KEY"\n[prices."a"]\nprompt = 1.5\ncompletion = 2\n'
)
SPEC = {"type": "string_check", "name": "\xe9", "operation": "eq", "input": "{{sample.output_text}}", "reference": "x"}
CSV = "trajectory,reward,more\n" + "\n".join(f'x/0/{n},{n / 3},"te, ""xt"" é"' for n in range(30))
FILES = {
    "a.jsonl": LINES,
    "a.json": json.dumps(ROWS, indent=1).encode(),
    "a.jsonl.gz": gzip.compress(LINES, mtime=0),
    "a.csv": CSV.encode(),
    "a.tsv": CSV.replace(",", "\t").encode(),
    "a.toml": b'policy = "practice"\n' + PROFILE,
    "a.grader": json.dumps(SPEC, ensure_ascii=False).encode(),
}


def _readers(path: Path, lab: Lab):
    """Each way in which a person can name such a file."""
    if path.suffix == ".toml":
        return [lambda: read_settings({"ROLLOUTLAB_SETTINGS": str(path)})]
    if path.suffix == ".grader":
        return [lambda: read_grader(path)]
    return [
        lambda: rows_of(path),
        lambda: list(FineTuning("lab/a", (), (file_path(path),), None, SFTTrainingConfig(), {})),
        lambda: import_file(lab, file_path(path), "x", None, lambda _: None),
        lambda: read_results(str(path)),
        lambda: give_from_file(lab.rewards, {}, file_path(path)),
    ]


def _outcome(read: Callable[[], object]) -> RolloutlabError | None:
    """None, or an error of ours; any other exception goes on."""
    try:
        read()
    except RolloutlabError as error:
        return error
    return None


def _outcomes(path: Path, lab: Lab) -> list[RolloutlabError | None]:
    """What each way leads to; an error always says what to type."""
    outcomes = [_outcome(read) for read in _readers(path, lab)]
    assert [error.message for error in outcomes if error and not error.hint] == []
    return outcomes


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_read_or_refused_with_what_to_type(name, tmp_path, lab):
    path = tmp_path / name
    path.write_bytes(FILES[name])
    assert None in _outcomes(path, lab)
    refused = 0
    for seed in range(VARIANTS):
        path.write_bytes(damaged(FILES[name], seed))
        refused += any(_outcomes(path, lab))
    assert refused > VARIANTS / 5


def _parquet(**options) -> bytes:
    written = io.BytesIO()
    table = pytest.importorskip("pyarrow").Table.from_pylist(ROWS)
    pytest.importorskip("pyarrow.parquet").write_table(table, written, row_group_size=12, **options)
    return written.getvalue()


KINDS = {
    "usual": {},
    "unpacked": {"compression": "none"},
    "zstd": {"compression": "zstd", "data_page_version": "2.0"},
    "without dictionaries": {"use_dictionary": False, "compression": "gzip"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_parquet_file_is_read_or_refused_with_what_to_type(kind, tmp_path, lab, monkeypatch):
    whole, path = _parquet(**KINDS[kind]), tmp_path / "a.parquet"
    check = parquet_rows._check_footer
    refused = 0
    for seed in range(PARQUET_VARIANTS // len(KINDS)):
        path.write_bytes(damaged(whole, seed))
        monkeypatch.setattr(parquet_rows, "_check_footer", check)
        error = _outcome(partial(rows_of, path))
        refused += error is not None
        if error and "its columns are damaged" in error.message:
            continue  # pyarrow would end this process
        monkeypatch.setattr(parquet_rows, "_check_footer", lambda *_: None)
        _outcomes(path, lab)
    assert refused


@pytest.mark.parametrize("forked", [False, True])
def test_a_file_at_which_pyarrow_ends_its_process_is_refused(tmp_path, monkeypatch, forked):
    if not forked:
        monkeypatch.setattr(parquet_rows, "subprocess", subprocess)
    (tmp_path / "a.parquet").write_bytes(_parquet())
    assert len(rows_of(tmp_path / "a.parquet")) == len(ROWS)
    monkeypatch.setattr(parquet_rows, "_READ_COLUMNS", "import os; os.abort()")
    with pytest.raises(InputError, match=r"a\.parquet cannot be read as Parquet: its columns are damaged") as refused:
        rows_of(tmp_path / "a.parquet")
    assert refused.value.hint == "copy the file again"


ENCODINGS = ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.toml", "a.grader"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_file_in_another_encoding_is_refused_and_a_byte_order_mark_of_utf_8_is_not(name, encoding, tmp_path, lab):
    path = tmp_path / name
    path.write_bytes(FILES[name].decode().encode(encoding))
    outcomes = _outcomes(path, lab)
    assert (None in outcomes) == (encoding == "utf-8-sig")


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet", "toml", "grader"])
@pytest.mark.parametrize("what", ["folder", "nothing", "empty", "loop", "long", "user", "nul", "half", "below a file"])
def test_what_is_no_file_is_refused_with_what_to_type(suffix, what, tmp_path, lab):
    path = tmp_path / f"a.{suffix}"
    if what == "folder":
        path.mkdir()
    elif what == "empty":
        path.write_bytes(b"")
    elif what == "loop":
        path.symlink_to(path)
    elif what == "below a file":
        path.write_bytes(b"")
        path = path / f"b.{suffix}"
    elif what != "nothing":
        begins = {"long": "x" * 300, "user": "~nobody-of-this-name/x", "nul": "a\0b", "half": "a\ud800"}[what]
        path = Path(f"{begins}.{suffix}")
    outcomes = _outcomes(path, lab)
    assert None not in outcomes or what == "empty"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every file")
@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "toml", "grader"])
def test_a_file_that_may_not_be_read_is_refused_with_what_to_type(suffix, tmp_path, lab):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(FILES[path.name])
    path.chmod(0)
    assert None not in _outcomes(path, lab)


def test_the_name_of_a_file_is_checked_where_its_folder_is_of_nobody():
    with pytest.raises(InputError, match="is not a file path: ") as refused:
        file_path("~nobody-of-this-name/a.jsonl")
    assert refused.value.hint == "'capitals.jsonl'"
