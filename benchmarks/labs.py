"""Labs that benchmarks sample and train in."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rolloutlab.session import Session
from rolloutlab.settings import Settings


@contextmanager
def open_lab(**settings: Any) -> Iterator[Session]:
    """A new lab, which is gone at the end, with its service."""
    with tempfile.TemporaryDirectory() as folder:
        lab = Session(Settings(home=Path(folder) / "lab", **settings))
        yield lab
        lab.service("stop")
        lab.close()
