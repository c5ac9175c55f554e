"""Rollouts: completions a second of `Session.chat` next to the openai SDK and to nothing but aiohttp.

All talk to the same mock service (mock_service.py), one request per completion, as many at once. Ours parses,
validates and stores every completion in the lab; the SDK parses; aiohttp reads the JSON. Each in a process of its own.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from goals import Goal, conclude
from measure import ROOT, alone, forget_peak, peak_memory, peer_python

from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings

CHATS = 4096
CHATS_OF_SDK = 1024
"""It gets fewer: it would take the longest by far, and its rate is the same."""
CONCURRENT = 512
ROUNDS = 3


@dataclass(frozen=True)
class Figures:
    """What so many chats took: seconds, CPU seconds of the client, and the peak of its memory in bytes."""

    chats: int
    seconds: float
    cpu: float
    peak: int

    @property
    def rate(self) -> float:
        return self.chats / self.seconds

    def __str__(self) -> str:
        thousand = 1000 * self.cpu / self.chats
        return f"{self.rate:6.0f} completions/s, {thousand:5.2f} CPU s per 1,000, {self.peak / 1e6:4.0f} MB"


@contextmanager
def mock_service() -> Iterator[str]:
    """The base URL of a mock service in a process of its own."""
    command = [sys.executable, str(ROOT / "benchmarks/mock_service.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        process.stdin.close()


def rows(count: int) -> list[dict[str, str]]:
    return [{"letters": f"d b a c {i}"} for i in range(count)]


def ours(url: str) -> Figures:
    """`Session.chat` over a list of rows, into a new lab."""
    with tempfile.TemporaryDirectory() as home:
        lab = Session(Settings(home=Path(home), service=Address(url, url, None)))

        def chat(count: int) -> None:
            found = lab.chat(
                "letters",
                "Sort these letters: {{letters}}",
                over=rows(count),
                model="mock",
                seed=0,
                concurrency=CONCURRENT,
            )
            assert lab.store.collection(found.label).trajectories == count

        chat(CONCURRENT)  # connections and imports
        forget_peak(os.getpid())
        begun, cpu = time.perf_counter(), time.process_time()
        chat(CHATS)
        figures = Figures(CHATS, time.perf_counter() - begun, time.process_time() - cpu, peak_memory(os.getpid()))
        lab.close()
        return figures


def raw(url: str) -> Figures:
    """The same requests through aiohttp alone, the answers read as JSON and thrown away."""

    async def chats(session: aiohttp.ClientSession, count: int) -> None:
        gate = asyncio.Semaphore(CONCURRENT)

        async def chat(i: int) -> None:
            messages = [{"role": "user", "content": f"Sort these letters: d b a c {i}"}]
            body = {"model": "mock", "messages": messages, "temperature": 1.0, "top_p": 1.0, "seed": i}
            async with gate, session.post(f"{url}/chat/completions", json={**body, "logprobs": True}) as response:
                await response.json()

        await asyncio.gather(*map(chat, range(count)))

    async def main() -> Figures:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONCURRENT)) as session:
            await chats(session, CONCURRENT)
            begun, cpu = time.perf_counter(), time.process_time()
            await chats(session, CHATS)
            return Figures(CHATS, time.perf_counter() - begun, time.process_time() - cpu, peak_memory(os.getpid()))

    return asyncio.run(main())


def sdk(url: str) -> Figures:
    """The openai SDK in an environment of its own."""
    command = [peer_python("openai"), str(ROOT / "benchmarks/peers/openai_chats.py"), url]
    done = subprocess.run([*command, str(CHATS_OF_SDK), str(CONCURRENT)], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return Figures(CHATS_OF_SDK, found["seconds"], found["cpu"], found["peak"])


def main() -> int:
    over_sdk, over_raw = [], []
    with mock_service() as url:
        for _ in range(ROUNDS):
            mine, bare, peer = alone(ours, url), alone(raw, url), sdk(url)
            print(f"Session.chat {mine}\nopenai SDK   {peer}\naiohttp      {bare}", flush=True)
            over_sdk.append(mine.rate / peer.rate)
            over_raw.append(mine.rate / bare.rate)
    return conclude(
        [
            Goal("rollouts_over_openai_sdk", statistics.median(over_sdk), ">=", 4.5),
            Goal("rollouts_over_aiohttp", statistics.median(over_raw), ">=", 0.6),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
