"""A notebook whose policy is a function of the messages that it reads."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import pytest
from IPython.core.interactiveshell import InteractiveShell

from rolloutlab.api.http.client import HttpClient
from rolloutlab.magics import register
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from tests.magics.conftest import Notebook, bare  # noqa: F401  # a fixture
from tests.sampling_services import URL, SamplingService

Messages = list[dict[str, Any]]


class Answerer(SamplingService):
    """A service whose policy is `answer`: from the messages of a request to a text, or to a message with calls.

    finish: of each answer. refusal: of a request, or None. gate: awaited before each answer.
    """

    models = ("tester/policy",)

    def __init__(self) -> None:
        super().__init__()
        self.answer: Callable[[Messages], Any] = lambda messages: "yes"
        self.finish = "stop"
        self.refusal: Callable[[Mapping[str, Any]], Any] = lambda _: None
        self.gate: Callable[[Messages], Awaitable[Any]] | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.gate and request.url.path.endswith("/completions"):
            await self.gate(json.loads(request.content)["messages"])
        return super().__call__(request)

    def refuses(self, body: Mapping[str, Any]) -> Any:
        return self.refusal(body)

    def _choice(self, body: Mapping[str, Any], i: int) -> dict[str, Any]:
        answer = self.answer(body["messages"])
        message = answer if isinstance(answer, dict) else {"role": "assistant", "content": answer}
        token = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
        finish = "tool_calls" if message.get("tool_calls") else self.finish
        return {"index": i, "message": message, "finish_reason": finish, "logprobs": {"content": [token] * 3}}

    def read(self, i: int = -1) -> list[str]:
        """The texts that a request held."""
        return [str(message["content"]) for message in self.taken[i]["messages"]]


@pytest.fixture
def policy() -> Answerer:
    return Answerer()


@pytest.fixture
def notebook(bare: InteractiveShell, policy: Answerer, tmp_path):  # noqa: F811
    session = Session(Settings(home=tmp_path), http=HttpClient(httpx.MockTransport(policy), backoff=0))
    register(bare, session)
    notebook = Notebook(bare)
    notebook.run("from rolloutlab import Step")
    notebook.run(f"%connect {URL}")
    notebook.run("%model tester/policy")
    yield notebook
    session.close()
