"""Kills loops at random moments: what goes on must become what a loop becomes that nothing ends.

    loops.py [--kills 20] [--seed 0] [--seeds 0] [--home DIR]

A client runs a loop of a few rounds on the embedded service of a lab folder; with `--seeds 3`, three loops in one call.
SIGKILL ends the client or the service, which are then started again, until the call has returned. The completions with
their logprobs, the rewards, the jobs and the adapters must be those of the same call in another folder, where nothing
was killed. Requests are sent one at a time, as rounding depends on what else is in a batch. Exit status 0 if they are,
and no call ended in anything but a deliberate error.
"""

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from processes import end, fork, published, serve, until, wait_for_services

from rolloutlab.api.job_state import ENDED
from rolloutlab.errors import JobFailedError, RolloutlabError
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.store.lab import Lab

NAME, PROMPT = "letters", "Sort the letters: {{letters}}"
ROWS = [{"letters": "d b a c"}, {"letters": "c a b"}, {"letters": "b d a"}]
ROUNDS = 4
LONGEST_START, LONGEST_CALL = 120.0, 600.0
REFUSED = 3
"""The status of a client whose call ended in a deliberate error, as it does when the service is killed."""


def reward(answer: str, trajectory: Any) -> float:
    """Of the answer, and always another one within a group, so that each round trains."""
    time.sleep(0.01)  # so that some kills come while it scores
    return float(trajectory.position) + sum(map(ord, answer)) % 7 / 10


def rounds_left(lab: Lab) -> int:
    """How many rounds a loop of `ROUNDS` lacks; one that goes on is one of them."""
    trained = {label for job in lab.jobs.newest_first() if job.status in ENDED for label in job.collections}
    return ROUNDS - sum(f"{NAME}:{each.generation}" in trained for each in lab.generations(NAME))


def call(home: Path, seeds: int) -> int:
    """What a client does in one life."""
    wait_for_services()
    lab = Session(Settings(home=home))
    given: dict[str, Any] = {"over": ROWS, "n": 2, "max_tokens": 8, "seed": 1, "every": 2, "concurrency": 1}
    given |= {"held_out": ROWS[:2], "say": partial(print, flush=True), "options": {"learning_rate": 1e-3}}
    try:
        if seeds:
            lab.loop(NAME, PROMPT, reward, jobs=2, seeds=seeds, **given)
        elif left := rounds_left(lab.store):
            lab.loop(NAME, PROMPT, reward, jobs=left, **given)
    except JobFailedError:
        raise
    except RolloutlabError:
        traceback.print_exc()
        return REFUSED
    return 0


def completions(lab: Lab, name: str, generation: int) -> list[Any]:
    """All that must be equal of a generation; the service numbers each choice, which says nothing of it."""
    stored = lab.collection(f"{name}:{generation}")
    return [
        (t.name.partition("/")[2], t.reward, t.step, dict(t.sampling), [_plain(c.to_wire()) for c in t.choices])
        for group in lab.groups(stored)
        for t in group.trajectories
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if key != "id"}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def outcome(home: Path, seeds: int) -> dict[str, Any]:
    """What the calls in a folder have made."""
    lab = Lab(home / "lab.db")
    # a plain loop that is killed after its last round has no call that would measure once more
    last = {f"held_out.{NAME}": 2, f"best.{NAME}": 0} if not seeds else {}
    made: dict[str, Any] = {
        f"{each.name}:{each.generation}": completions(lab, each.name, each.generation)
        for each in lab.collections()
        if each.generation <= last.get(each.name, each.generation)
    }
    made["jobs"] = sorted((j.model, j.collections, sorted(j.options.items()), j.step) for j in lab.jobs.newest_first())
    lab.close()
    files = (home / "service" / "models").glob("*/*/*.safetensors")
    made["adapters"] = sorted((path.parent.name, path.name, sha256(path.read_bytes()).hexdigest()) for path in files)
    return made


class LoopCampaign:
    """One call in a folder, with so many kills until it has returned."""

    def __init__(self, home: Path, seeds: int, number: int) -> None:
        self._home, self._seeds, self._random = home, seeds, random.Random(number)
        self.counts: Counter[str] = Counter()
        self.losses: list[str] = []
        home.mkdir(parents=True, exist_ok=True)

    def run(self, kills: int) -> dict[str, Any]:
        service = self._start_service()
        client = self._start_client()
        while True:
            seconds = self._random.expovariate(2.5) if kills else LONGEST_CALL
            status = self._wait(client, seconds)
            if status == 0:
                break
            victim = self._random.choice(["client", "client", "service"]) if status is None else "nothing"
            if status is None and not kills:
                self.losses.append(f"the call did not return within {LONGEST_CALL:.0f} s")
                end(client)
                break
            kills -= status is None
            self.counts[f"kills of {victim}"] += status is None
            if status not in {None, REFUSED}:
                self.losses.append(f"a call ended with the status {status}: see {self._home}/client.log")
                break
            if victim == "service":
                end(service)
                service = self._start_service()
            elif victim == "client":
                end(client)
                client = self._start_client()
            else:
                self.counts["calls that were refused"] += 1
                client = self._start_client()
        end(service)
        return outcome(self._home, self._seeds)

    def _start_service(self) -> int:
        pid = fork(partial(serve, self._home), self._home / "service.log")
        if not until(partial(published, self._home, pid), LONGEST_START):
            self.losses.append("the service does not start")
        return pid

    def _start_client(self) -> int:
        self._status: int | None = None
        return fork(partial(call, self._home, self._seeds), self._home / "client.log")

    def _wait(self, pid: int, seconds: float) -> int | None:
        """The status of a client that ends in time, else None."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended == pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--home", type=Path, help="an empty folder, which is kept; by default one that is removed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return compare(given.home or Path(folder), given)


def compare(home: Path, given: argparse.Namespace) -> int:
    """Make the loops twice, once with kills; report what differs."""
    whole = LoopCampaign(home / "whole", given.seeds, given.seed)
    expected = whole.run(0)
    killed = LoopCampaign(home / "killed", given.seeds, given.seed)
    made = killed.run(given.kills)
    different = [name for name in expected.keys() | made.keys() if expected.get(name) != made.get(name)]
    losses = [*whole.losses, *killed.losses, *(f"{name} is not as without kills" for name in sorted(different))]
    for name, number in sorted(killed.counts.items()):
        print(f"{number:6,} {name}")
    print(f"{len(expected) - 2:6,} generations, {len(expected['jobs'])} jobs, {len(expected['adapters'])} files")
    print("\n".join(losses) or "all as without kills")
    return int(bool(losses))


if __name__ == "__main__":
    sys.exit(main())
