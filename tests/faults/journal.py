"""What a client was told is stored, in a file that outlives the client: a line per fact, written before it goes on."""

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredTrajectory


class Journal:
    """Facts of one process, each in the page cache when `write` returns: a SIGKILL loses none."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, kind: str, **facts: Any) -> None:
        os.write(self._handle, json.dumps({"kind": kind, **facts}).encode() + b"\n")

    def trajectories(self, label: str, trajectories: Iterable[StoredTrajectory]) -> None:
        self.write("trajectories", label=label, digests={t.id: digest(t) for t in trajectories})


def read(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """The facts after a place in the file, each with the place where it ends; a line cut by a kill is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            offset += len(line)
            if line.endswith(b"\n"):
                yield offset, json.loads(line)


def digest(trajectory: StoredTrajectory) -> str:
    """Of everything that was sampled, without rewards."""
    text = json.dumps([item.to_wire() for item in trajectory.items], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stored(lab: Lab, label: str) -> dict[int, StoredTrajectory]:
    """The trajectories of a collection by id."""
    return {t.id: t for group in lab.groups(lab.find(label)) for t in group.trajectories}


def halves(service: Path) -> list[str]:
    """Files of fine-tuning data, and sources of losses, that are there under their names but not whole."""
    data = [path for path in (service / "files").glob("*.jsonl") if not _is_whole(path)]
    paths = (service / "losses").glob("*.py")
    sources = [path for path in paths if hashlib.sha256(path.read_bytes()).hexdigest() != path.stem]
    return [f"{path.relative_to(service)} is half a file" for path in [*data, *sources]]


def _is_whole(path: Path) -> bool:
    """Whether a file of fine-tuning data ends with a line, and all of them are JSON."""
    lines = path.read_bytes().split(b"\n")
    try:
        return [json.loads(line) for line in lines[:-1]] != [] and lines[-1] == b""
    except ValueError:
        return False


def learned(service: Path, job_id: str) -> int | None:
    """How many conversations or trajectories a job has trained on; None where it reported none."""
    connection = sqlite3.connect(service / "service.db", timeout=20.0)
    sql = "SELECT data FROM events WHERE job_id = ? AND type = 'preflight' ORDER BY id DESC"
    row = connection.execute(sql, (job_id,)).fetchone()
    connection.close()
    return row and json.loads(row[0])["trainable_trajectories"]
