"""One valid record of each kind that the lab keeps, with overrides; processes of notebooks."""

from collections.abc import Iterator
from typing import Any

import pytest

from rolloutlab.api.wire.chat import Choice, UserMessage
from rolloutlab.store.models import StoredTrajectory
from tests.forked_scripts import ForkedScripts


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedScripts]:
    scripts = ForkedScripts(tmp_path_factory.mktemp("scripts"))
    yield scripts
    scripts.end()


@pytest.fixture(scope="session")
def choice():
    """Makes a sampled completion with the logprobs and ids of two tokens."""
    return _choice


def _choice(answer: str | None = "Paris", **overrides: Any) -> Choice:
    content = [
        {"token": "Par", "token_id": 17, "logprob": -0.1234567890123456, "top_logprobs": [], "bytes": [80, 97, 114]},
        {"token": "is", "token_id": 4, "logprob": -1e-17, "top_logprobs": [{"token": "is", "logprob": -1e-17}]},
    ]
    message = {"role": "assistant", "content": answer}
    record = {"finish_reason": "stop", "index": 0, "message": message, "logprobs": {"content": content}}
    return Choice.model_validate(record | overrides)


@pytest.fixture(scope="session")
def question():
    """Makes the prompt of a group."""
    return lambda text="Capital of France?": [UserMessage(role="user", content=text)]


@pytest.fixture(scope="session")
def trajectory(choice, question):
    """Makes a stored trajectory that was sampled, not yet scored."""

    def make(*items: Any, **overrides: Any) -> StoredTrajectory:
        record = {
            "id": 1,
            "name": "capitals/0/3",
            "items": items or (*question(), choice()),
            "row": {"country": "France"},
            "model": "lab/practice",
            "step": 2,
            "sampling": {"temperature": 1.0, "top_p": 1.0, "seed": 7},
            "created_at": "2026-01-31T12:00:00.123456+00:00",
        }
        return StoredTrajectory(**record | overrides)

    return make
