"""A lab with a collection of two groups, as `%%chat --over` leaves it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutlab.store.lab import Lab
from rolloutlab.store.records import Arrival, Group, NewGroup
from rolloutlab.wire.chat import Choice, SystemMessage, UserMessage


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


def _choice(answer: str | None = "Paris", **overrides: Any) -> Choice:
    """A completion with a token per word, and one that ends it."""
    words = (answer or "call").split(" ")
    texts = [words[0], *(f" {word}" for word in words[1:]), "<end>"]
    content = [{"token": text, "logprob": -0.5, "top_logprobs": []} for text in texts]
    message = {"role": "assistant", "content": answer}
    record = {"finish_reason": "stop", "index": 0, "message": message, "logprobs": {"content": content}}
    return Choice.model_validate(record | overrides)


@pytest.fixture(scope="session")
def choice() -> Callable[..., Choice]:
    """Makes a sampled completion."""
    return _choice


@pytest.fixture
def groups(lab: Lab) -> Callable[..., list[Group]]:
    """Puts completions into groups of a new collection: a list of answers, or of items, per group."""

    def put(*answers: list[Any], name: str = "capitals", **extra: Any) -> list[Group]:
        prompt = [SystemMessage(role="system", content="Be brief."), UserMessage(role="user", content="Capital?")]
        added = lab.add_groups(lab.open_collection(name), [NewGroup(prompt, {"answer": "Paris"}) for _ in answers])
        for group, said in zip(added, answers, strict=True):
            items = [each if isinstance(each, list) else [_choice(each)] for each in said]
            arrivals = [Arrival(i, each, extra=extra) for i, each in enumerate(items)]
            lab.put(group, arrivals, model="lab/practice", step=3, sampling={"temperature": 1.0})
        return lab.groups(lab.find(name))

    return put
