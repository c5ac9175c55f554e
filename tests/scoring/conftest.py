"""A session on a lab with collections to score, whose answers alternate between right and wrong."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.store.models import NewGroup
from tests.labs import completion, lab_with


@pytest.fixture
def lab(tmp_path) -> Iterator[Session]:
    session = Session(Settings(home=tmp_path))
    yield session
    session.close()


@pytest.fixture
def collect(lab) -> Callable[..., None]:
    """Puts a collection into the lab; the answers of group i are `a{i}` and `wrong`, in turn."""

    def put(groups: int = 5, size: int = 8, name: str = "capitals", **row: Any) -> None:
        prompts = [
            NewGroup([UserMessage(role="user", content=f"Capital of {i}?")], {"country": i, "capital": f"a{i}", **row})
            for i in range(groups)
        ]
        members = [[completion("wrong" if j % 2 else f"a{i}", "ab") for j in range(size)] for i in range(groups)]
        lab_with(lab.store, *members, name=name, prompts=prompts)

    return put


@pytest.fixture
def rewards(lab) -> Callable[..., list[float | None]]:
    """The rewards of a collection, in order."""
    return lambda name="capitals": [t.reward for t in lab.collection(name).trajectories]
