"""Sharing of the sampler: short chats beside one request of 512 completions, and equal prompts of several requests.

Everything goes over HTTP to an embedded service with the practice policy, from one client. The figures are ratios of
two measurements of the same run.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from goals import Goal, conclude

from rolloutlab.api.inference import complete
from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.session import Session
from rolloutlab.settings import Settings

CHATS = 240
TOKENS = 16
ROUNDS = 20
LARGE = 512
LARGE_REQUESTS = """
import json, sys, urllib.request
url, token, n = sys.argv[1:]
message = {"role": "user", "content": "Sort these letters: q m e r t z"}
for seed in range(1000):
    asked = {"model": "practice", "messages": [message], "n": int(n), "max_tokens": 64, "seed": seed}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(asked).encode(), headers)
    urllib.request.urlopen(request).read()
    print(seed, flush=True)
"""


class Client:
    """Chats of one session; none ends before `max_tokens` but by the policy's own choice."""

    def __init__(self, lab: Session) -> None:
        self._lab = lab
        self._address = lab.embedded.address()
        self.base_url = self._address.base_url
        self.token = (lab.settings.service_folder / "token").read_text()

    async def chat(self, content: str, **options: Any) -> int:
        """Send a chat; the number of its completions."""
        body = {"model": "practice", "messages": [{"role": "user", "content": content}], **options}
        completion = await complete(self._lab._connector.http, self._address, ChatRequest.model_validate(body))
        return len(completion.choices)

    async def latency(self, seed: int) -> float:
        """Seconds of a short chat."""
        begun = time.perf_counter()
        await self.chat("hello", max_tokens=TOKENS, seed=seed)
        return time.perf_counter() - begun


def p95(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=20)[-1]


async def beside_a_large_request(client: Client) -> Goal:
    """The 95th percentile of short chats, one after another, alone and while large requests are sampled.

    The large ones come from a process of their own, which would otherwise parse them while a chat is timed.
    """
    alone = [await client.latency(seed) for seed in range(CHATS + 10)][10:]
    arguments = "-c", LARGE_REQUESTS, client.base_url, client.token, str(LARGE)
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    try:
        assert await process.stdout.readline(), "the large requests fail"
        beside = [await client.latency(seed) for seed in range(CHATS)]
        assert process.returncode is None
    finally:
        process.terminate()
        await process.wait()
    both = [f"{1000 * statistics.median(each):.0f} ms, p95 {1000 * p95(each):.0f} ms" for each in (alone, beside)]
    print(f"a chat of {TOKENS} tokens alone {both[0]}; beside requests of n = {LARGE} {both[1]}")
    return Goal("short_chat_p95_beside_512_over_alone", p95(beside) / p95(alone), "<=", 3)


async def equal_prompts(client: Client) -> Goal:
    """Completions a second of eight requests with one prompt, over those of one request of n = 8."""
    seconds: dict[str, list[float]] = {"one": [], "eight": []}
    for round_ in range(2 * ROUNDS + 4):
        kind = "eight" if round_ % 2 else "one"
        content = f"{round_} Sort these letters: {'q m e r t z ' * 4}"
        begun = time.perf_counter()
        if kind == "one":
            await client.chat(content, n=8, max_tokens=TOKENS, seed=1)
        else:
            await asyncio.gather(*(client.chat(content, max_tokens=TOKENS, seed=i) for i in range(8)))
        seconds[kind].append(time.perf_counter() - begun)
    one, eight = (8 / statistics.median(seconds[kind][2:]) for kind in ("one", "eight"))
    print(f"one request of n = 8: {one:.0f} completions/s; eight requests: {eight:.0f}")
    return Goal("eight_requests_over_one_of_eight", eight / one, ">=", 0.5)


async def measure(client: Client) -> list[Goal]:
    return [await equal_prompts(client), await beside_a_large_request(client)]


def main() -> int:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        lab = Session(Settings(home=Path(home), linger=5))
        try:
            return conclude(lab._connector.http.run(measure(Client(lab))))
        finally:
            lab.embedded.stop()
            lab.close()


if __name__ == "__main__":
    sys.exit(main())
