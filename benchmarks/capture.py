"""Capture: calls a second of a program through the gateway, next to the same program straight at the service.

A program is a conversation of four turns by aiohttp alone, 512 of them at a time, each in a thread of its own. They
talk to the service, or they are the rollouts of `lab.rollouts`: its gateway records every call with its tokens and puts
those of earlier turns into the requests, and the lab stores them. The service is the embedded one with the practice
policy, in a process of its own.
"""

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
from goals import Goal, conclude

from rolloutlab.runtime import ThreadCall
from rolloutlab.session import Session
from rolloutlab.settings import Settings

CONCURRENT = 512
ROLLOUTS = 1024
WARM_UP = 64
TURNS = 4
ROUNDS = 3


async def converse(row: dict[str, Any], client: Any) -> float:
    """Four turns; the answers are sent back as they came."""
    messages: list[dict[str, Any]] = []
    headers = {"Authorization": f"Bearer {client.api_key}"}
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as http:
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"Sort these letters: d b a {row['i']} {turn}"})
            body = {"model": client.model, "messages": messages, "max_tokens": 8, "seed": row["i"]}
            async with http.post(f"{client.base_url}/chat/completions", json=body) as answer:
                answer.raise_for_status()
                message = (await answer.json())["choices"][0]["message"]
            messages.append({"role": "assistant", "content": message.get("content") or ""})
    return 1.0


def rows(count: int) -> list[dict[str, int]]:
    return [{"i": i} for i in range(count)]


def straight(client: Any, count: int) -> float:
    """Calls a second."""

    def play(row: dict[str, int]) -> None:
        _, error = ThreadCall(partial(converse, row, client), "straight").outcome.result()
        if error:
            raise error

    begun = time.perf_counter()
    with ThreadPoolExecutor(min(count, CONCURRENT)) as pool:
        list(pool.map(play, rows(count)))
    return count * TURNS / (time.perf_counter() - begun)


def captured(lab: Session, count: int) -> float:
    """Calls a second."""
    begun = time.perf_counter()
    made = lab.rollouts("captured", converse, over=rows(count), concurrency=CONCURRENT, model="practice")
    seconds = time.perf_counter() - begun
    stored = lab.store.collection(made.label)
    assert (stored.trajectories, stored.scored) == (count, count)
    return count * TURNS / seconds


def measure(lab: Session) -> list[Goal]:
    address = lab.embedded.address()
    token = (lab.settings.service_folder / "token").read_text()
    client = SimpleNamespace(base_url=address.inference_base_url, api_key=token, model="practice")
    straight(client, WARM_UP), captured(lab, WARM_UP)  # imports and connections
    ratios = []
    for _ in range(ROUNDS):
        alone, through = straight(client, ROLLOUTS), captured(lab, ROLLOUTS)
        print(f"straight {alone:.0f} calls/s, captured {through:.0f} calls/s", flush=True)
        ratios.append(through / alone)
    return [Goal("capture_calls_ratio", sorted(ratios)[ROUNDS // 2], ">=", 0.8)]


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        lab = Session(Settings(home=Path(home)))
        goals = measure(lab)
        lab.close()
    return conclude(goals)


if __name__ == "__main__":
    sys.exit(main())
