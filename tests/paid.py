"""A service that charges: it counts what it was paid for, as the test's own bookkeeping."""

import asyncio
import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any
from uuid import UUID

import httpx

from rolloutlab.session import Session

URL = "https://paid.example"
LISTED = {"object": "list", "data": [{"id": "team/small", "object": "model", "created": 0, "owned_by": "team"}]}
MODEL = {"id": "0b7d1c9e-0000-4000-8000-000000000001", "entity": "team", "project": "team", "base_model": "base"}


def spent(session: Session) -> Fraction:
    """Dollars that the session's lab has recorded for the service."""
    return Fraction(session.store.spending.at(URL), 10**12)


class Paid:
    """Chat completions at dollars per million tokens; a prompt has a token per word, a completion `sampled` tokens.

    charged: dollars so far, also for what failed after its work was done. fails: of the number of a request, a response
    in the place of its completion, after charging. usage: replaces what it reports. most: requests at once so far.
    """

    def __init__(self, prompt: float = 100.0, completion: float = 200.0) -> None:
        self.prices = Fraction(str(prompt)), Fraction(str(completion))
        self.charged, self.trained = Fraction(0), 0
        self.bodies: list[dict[str, Any]] = []
        self.jobs: list[dict[str, Any]] = []
        self.sampled: Callable[[dict[str, Any]], int] = lambda body: body["max_tokens"]
        self.fails: Callable[[int], httpx.Response | Exception | None] = lambda _: None
        self.usage: Callable[[dict[str, int]], Any] = lambda usage: usage
        self.answer: Callable[[dict[str, Any]], str] = lambda _: "word " * 3
        self.gate: asyncio.Event | None = None
        self.logprobs = False
        self.under_way = self.most = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path.endswith("/chat/completions"):
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                return await self._complete(json.loads(request.content))
            finally:
                self.under_way -= 1
        if path.endswith("/training-jobs") and not request.headers.get("Idempotency-Key"):
            return httpx.Response(422, json={"detail": "a key is missing"})  # it is asked whether it trains
        if path.endswith("/training-jobs"):
            self.jobs.append(json.loads(await request.aread()))
            return httpx.Response(200, json={"id": str(UUID(int=len(self.jobs)))})
        if path.endswith("/models") and request.method == "POST":
            sent = json.loads(request.content)
            return httpx.Response(200, json={**MODEL, "name": sent.get("name", "small")})
        return httpx.Response(200, json=LISTED) if path.endswith("/models") else httpx.Response(404)

    async def _complete(self, body: dict[str, Any]) -> httpx.Response:
        self.bodies.append(body)
        number, n = len(self.bodies), body.get("n", 1)
        prompt = sum(len(str(message.get("content")).split()) for message in body["messages"])
        sampled = self.sampled(body) * n
        self.charged += (prompt * self.prices[0] + sampled * self.prices[1]) / 10**6
        await asyncio.sleep(0)
        if self.gate:
            await self.gate.wait()
        if failure := self.fails(number):
            if isinstance(failure, Exception):
                raise failure
            return failure
        message = {"role": "assistant", "content": self.answer(body)}
        token = {"token": "w", "logprob": -1.0, "top_logprobs": []}
        logprobs = {"content": [token] * self.sampled(body)} if self.logprobs else None
        choices = [{"index": i, "finish_reason": "stop", "message": message, "logprobs": logprobs} for i in range(n)]
        usage = self.usage({"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled})
        head = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
        return httpx.Response(200, json={**head, "choices": choices, "usage": usage})
