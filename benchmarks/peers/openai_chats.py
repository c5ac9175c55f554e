"""Chats through the openai SDK, as its documentation writes them.

Run it with the Python of the SDK's own environment (tests/acceptance/openai.txt):

    openai_chats.py BASE_URL CHATS CONCURRENT > figures.json

The answer has the seconds of all chats, the CPU seconds they took, and the peak of the process in bytes of memory.
"""

import asyncio
import json
import resource
import sys
import time

from openai import AsyncOpenAI, __version__


async def chats(client, count, concurrent):
    """Seconds and CPU seconds of so many chats."""
    gate = asyncio.Semaphore(concurrent)

    async def chat(i):
        async with gate:
            done = await client.chat.completions.create(
                model="mock",
                messages=[{"role": "user", "content": f"Sort these letters: d b a c {i}"}],
                temperature=1.0,
                top_p=1.0,
                seed=i,
                logprobs=True,
            )
            return len(done.choices[0].logprobs.content)

    begun, cpu = time.perf_counter(), time.process_time()
    counts = await asyncio.gather(*map(chat, range(count)))
    assert set(counts) == {50}
    return time.perf_counter() - begun, time.process_time() - cpu


async def main():
    url, count, concurrent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        await chats(client, concurrent, concurrent)  # connections and imports
        seconds, cpu = await chats(client, count, concurrent)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    json.dump({"seconds": seconds, "cpu": cpu, "peak": peak, "version": __version__}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
