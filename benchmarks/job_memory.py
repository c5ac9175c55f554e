"""Memory: what the service needs beyond its own to take in and to read a job, as the job grows.

The peer is the body itself: to hold it once would be a ratio of 1. A real service in a process of its own; the bodies
are made while they are sent, and the rewards are equal, so that they are read whole and nothing trains.
"""

import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from goals import Goal, conclude
from measure import forget_peak, peak_memory

from rolloutlab.api import training
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings

MEGABYTES = 12.5
TIMES = (1, 4, 16)


def trajectory(tokens: int = 60) -> bytes:
    """One completion with logprobs, as a service answers it."""
    entries = [
        {"token": chr(97 + i % 26), "token_id": 20 + i, "bytes": [97 + i % 26], "logprob": -1.5, "top_logprobs": []}
        for i in range(tokens)
    ]
    choice = {
        "finish_reason": "length",
        "index": 0,
        "message": {"role": "assistant", "content": "a" * tokens},
        "logprobs": {"content": entries},
    }
    asked = {"role": "user", "content": "Say something."}
    return json.dumps({"messages_and_choices": [asked, choice], "reward": 1.0}).encode()


async def body(model_id: str, count: int) -> AsyncIterator[bytes]:
    """Groups of eight trajectories, `count` of them."""
    group = b'{"trajectories": [' + b",".join([trajectory()] * 8) + b"]}"
    yield b'{"model_id": "' + model_id.encode() + b'", "trajectory_groups": ['
    for i in range(count):
        yield b"," * bool(i) + group
    yield b"]}"


async def send(lab: Session, address: Address, model_id: str, count: int) -> str:
    url = f"{address.base_url}/v1/preview/training-jobs"
    http, content = lab._connector.http, body(model_id, count)
    job = await http.request("POST", url, token=address.token, content=content, timeout=600.0)
    return str(job["id"])


def ended(lab: Session, address: Address, job_id: str) -> None:
    while lab._connector.http.run(training.job(lab._connector.http, address, job_id)).status in {"queued", "running"}:
        time.sleep(0.2)


def grown(lab: Session, address: Address, model_id: str, times: int) -> tuple[float, float]:
    """Growth of the service's peak over the body's size: while it takes the job in, and until the job has ended."""
    count = round(times * MEGABYTES * 1e6 / (8 * len(trajectory())))
    size, pid = 8 * count * len(trajectory()), lab.embedded.pid()
    forget_peak(pid)
    before, begun = peak_memory(pid), time.perf_counter()
    job_id = lab._connector.http.run(send(lab, address, model_id, count), every=1.0)
    accepted, taken = peak_memory(pid), time.perf_counter() - begun
    ended(lab, address, job_id)
    read, whole = peak_memory(pid), time.perf_counter() - begun
    print(
        f"x{times:2} {size / 1e6:6.1f} MB: accepted in {taken:5.1f} s, peak +{(accepted - before) / 1e6:6.1f} MB; "
        f"read and ended after {whole:5.1f} s, peak +{(read - before) / 1e6:6.1f} MB"
    )
    return (accepted - before) / size, (read - before) / size


def measure(lab: Session) -> list[Goal]:
    model, address = lab.model("lab/large"), lab.embedded.address()
    grown(lab, address, model.id, 1)  # what the first job needs once
    ratios = {times: grown(lab, address, model.id, times) for times in TIMES}
    return [
        *(Goal(f"peak_growth_over_body_x{times}_accepting", ratios[times][0], "<=", 1) for times in TIMES),
        *(Goal(f"peak_growth_over_body_x{times}_until_its_end", ratios[times][1], "<=", 1) for times in TIMES),
    ]


def main() -> int:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        lab = Session(Settings(home=Path(home), linger=5.0))
        goals = measure(lab)
        lab.embedded.stop()
        lab.close()
    return conclude(goals)


if __name__ == "__main__":
    sys.exit(main())
