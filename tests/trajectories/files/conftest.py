"""Labs to write from and to read into, and what a collection can hold."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutlab.api.wire.chat import Choice, SystemMessage, UserMessage
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Group, Recorded
from rolloutlab.trajectories.files.exchange import Export, ExportFilter, export, import_file


class Desk:
    """A lab, and files written from it and read into it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def write(
        self, path: Path, *names: str, kind: str | None = None, overwrite: bool = False, **choosing: Any
    ) -> Export:
        result = [self.lab.find(name) for name in names or ("capitals",)]
        return export(
            self.lab, result, path, kind, ExportFilter(**choosing), overwrite=overwrite, written=lambda _: None
        )

    def read(self, path: Path, name: str | None = None, kind: str | None = None) -> list[str]:
        return import_file(self.lab, path, name, kind, lambda _: None)

    def groups(self, label: str = "capitals") -> list[Group]:
        return self.lab.groups(self.lab.find(label))

    def add(self, *recorded: Recorded) -> list[str]:
        with self.lab.draft() as draft:
            draft.add(recorded)
            return draft.publish()


@pytest.fixture
def open_desk(tmp_path: Path) -> Iterator[Callable[[], Desk]]:
    labs: list[Lab] = []

    def make() -> Desk:
        labs.append(Lab(tmp_path / f"{len(labs)}.db"))
        return Desk(labs[-1])

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture
def desk(open_desk: Callable[[], Desk]) -> Desk:
    return open_desk()


def _choice(answer: str, logprobs: bool = True) -> Choice:
    content = [{"token": "Par", "token_id": 17, "logprob": -0.1234567890123456, "top_logprobs": [], "bytes": [80, 97]}]
    message = {"role": "assistant", "content": answer}
    record = {"finish_reason": "stop", "index": 0, "message": message, "policy_version": 2}
    return Choice.model_validate(record | ({"logprobs": {"content": content}} if logprobs else {}))


def _recorded(answer: str = "Paris", **overrides: Any) -> Recorded:
    prompt = [
        SystemMessage(role="system", content="One word."),
        UserMessage.model_validate({"role": "user", "content": "Capital of France?", "cache": {"deep": [None, 1]}}),
    ]
    record = {
        "place": "here",
        "collection": "capitals",
        "group": 0,
        "prompt": prompt,
        "items": [_choice(answer)],
        "row": {"country": "France", "list": [1, None]},
        "model": "lab/practice",
        "step": 2,
        "sampling": {"temperature": 1.0, "seed": 7},
        "created_at": "2026-01-31T12:00:00.123456+00:00",
    }
    return Recorded(**record | overrides)


@pytest.fixture(scope="session")
def recorded() -> Callable[..., Recorded]:
    """Makes a sampled trajectory of the group `capitals/0`, not scored."""
    return _recorded
