"""What a client was told is stored, in a file that outlives the client: a line per fact, written before it goes on."""

import hashlib
import json
import os
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
