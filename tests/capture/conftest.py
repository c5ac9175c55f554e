"""A gateway in front of a service that answers as the test says."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.capture.gateway import Gateway, OnChunk
from rolloutlab.capture.rollout import CallSettings, CapturedRollout
from rolloutlab.capture.server import serve


@dataclass
class Upstream:
    """A service that answers `answer 0`, `answer 1`, …; `said` are answers before that, `chunks` what it streams."""

    said: list[Any] = field(default_factory=list)
    requests: list[ChatRequest] = field(default_factory=list)
    with_ids: bool = True
    gives: int = 1024
    before: Callable[[], Any] | None = None

    async def __call__(self, request: ChatRequest, on_chunk: OnChunk | None) -> ChatCompletion:
        self.requests.append(request)
        if self.before:
            await self.before()
        choices = [self._choice(i) for i in range(min(request.n, self.gives))]
        usage = {"prompt_tokens": 5, "completion_tokens": 2 * len(choices), "total_tokens": 5 + 2 * len(choices)}
        head = {"id": f"chatcmpl-{len(self.requests)}", "created": 1, "model": "lab/practice@0"}
        if on_chunk:
            for choice in choices:
                delta = {k: v for k, v in choice["message"].items() if k != "role"}
                for piece in ({"role": "assistant", "content": ""}, delta):
                    part = {"index": choice["index"], "delta": piece, "logprobs": {"content": []}}
                    on_chunk({**head, "object": "chat.completion.chunk", "choices": [part]})
                end = {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}
                on_chunk({**head, "object": "chat.completion.chunk", "choices": [end]})
            on_chunk({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        return ChatCompletion.model_validate({**head, "object": "chat.completion", "choices": choices, "usage": usage})

    def _choice(self, index: int) -> dict[str, Any]:
        said = self.said.pop(0) if self.said else f"answer {len(self.requests) - 1}.{index}"
        if isinstance(said, Exception):
            raise said
        message = {"role": "assistant", **(said if isinstance(said, dict) else {"content": said})}
        ids = [100 * len(self.requests) + index, 7]
        content = [
            {"token": "t", "logprob": -0.5, "top_logprobs": [], **({"token_id": i} if self.with_ids else {})}
            for i in ids
        ]
        finish = "tool_calls" if "tool_calls" in message else "stop"
        return {"index": index, "finish_reason": finish, "message": message, "logprobs": {"content": content}}

    def asked(self, i: int = -1) -> list[dict[str, Any]]:
        """The messages of a request."""
        return [message.to_wire() for message in self.requests[i].messages]


@dataclass
class Program:
    """A rollout of a gateway that is served, and a client of it."""

    rollout: CapturedRollout
    gateway: Gateway
    http: httpx.AsyncClient
    url: str

    async def post(self, path: str = "chat/completions", *, headers: Any = None, **body: Any) -> httpx.Response:
        given = {"Authorization": f"Bearer {self.rollout.key}", **(headers or {})}
        return await self.http.post(f"{self.url}/v1/{path}", json=body, headers=given)

    async def chat(self, *messages: Any, **body: Any) -> dict[str, Any]:
        answer = await self.post(messages=[user(m) if isinstance(m, str) else m for m in messages], **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def events(self, *messages: Any, headers: Any = None, **body: Any) -> list[dict[str, Any]]:
        whole = [user(m) if isinstance(m, str) else m for m in messages]
        answer = await self.post(messages=whole, stream=True, headers=headers, **body)
        assert answer.status_code == 200, answer.text
        *lines, last, end = answer.text.split("\n\n")
        assert (last, end) == ("data: [DONE]", "")
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    def shape(self) -> list[list[str]]:
        return [
            [getattr(item, "role", "sampled") for item in history.messages_and_choices]
            for history in self.rollout.histories()
        ]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@asynccontextmanager
async def program(upstream: Upstream, **fixed: Any) -> AsyncIterator[Program]:
    gateway = Gateway(upstream)
    async with serve(gateway) as url, httpx.AsyncClient(timeout=240) as http:
        settings = CallSettings("lab/practice", fixed, lambda number: 1000 + number)
        yield Program(gateway.open(settings), gateway, http, url)
