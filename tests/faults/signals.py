"""Signals in small writes: thousands of interrupts between any two instructions of a kernel that writes all the time.

    python tests/faults/signals.py --signals 6000 --seed 1

A timer raises KeyboardInterrupt in the main thread after random times, again and again, as it scores, samples and
notes jobs in a lab. After each interrupt another connection, which never waits, takes the file for itself; whatever a
call had reported as stored is looked for on disk. Prints figures; exits with 1 when anything was lost or a transaction
left open.
"""

import argparse
import random
import signal
import sqlite3
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rolloutlab.api.wire.chat import AssistantMessage, UserMessage
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, Group, NewGroup, Score, StoredTrajectory, SubmittedJob

LONGEST = 0.004
"""Seconds until a signal, at most: about as long as a few writes take."""
AGAIN = 0.1
"""Seconds until the next signal: pydantic passes over an interrupt that comes inside one of its own callbacks."""
PATIENCE = 5.0
"""Seconds after which a file that another connection cannot take counts as locked for good."""


@dataclass
class Kernel:
    """Writes to a lab and knows what was reported as stored. reward: the last one. jobs, places: all of them."""

    lab: Lab
    group: Group
    trajectory: StoredTrajectory
    reward: float | None = None
    tried: float = 0.0
    jobs: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=lambda: [0])
    writes: int = 0
    interrupts: bool = False
    """Whether a signal is one, just now."""

    def signalled(self, *_: object) -> None:
        if self.interrupts:
            raise KeyboardInterrupt

    def write(self) -> None:
        """One small write after the other, until it is interrupted."""
        while True:
            self.tried += 1.0
            self.lab.rewards.give([Score(self.trajectory, self.tried)], "function")
            self.reward = self.tried
            job = f"job {len(self.jobs)} {self.tried}"
            self.lab.jobs.add(SubmittedJob(job, "embedded", "m", ("capitals",), {}, ""))
            self.jobs.append(job)
            place = int(self.tried)
            self.lab.put(self.group, [Arrival(place, [ANSWER])], model="m", step=0, sampling={})
            self.places.append(place)
            self.writes += 3


ANSWER = AssistantMessage(role="assistant", content="Paris")


def kernel(path: Path) -> Kernel:
    lab = Lab(path)
    collection = lab.open_collection("capitals")
    (group,) = lab.add_groups(collection, [NewGroup([UserMessage(role="user", content="?")], {})])
    lab.put(group, [Arrival(0, [ANSWER])], model="m", step=0, sampling={})
    ((trajectory,),) = (each.trajectories for each in lab.groups(collection))
    return Kernel(lab, group, trajectory)


def interrupted(work: Kernel, seconds: float) -> bool:
    """Let it write until a signal comes; whether the interrupt came out of a write."""
    try:
        work.interrupts = True
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
        work.write()
    except KeyboardInterrupt:
        work.interrupts = False  # on a busy machine the next signal may come before the timer is off
        signal.setitimer(signal.ITIMER_REAL, 0)
        return True
    return False


def taken(other: sqlite3.Connection) -> bool:
    """Whether another kernel can have the file at once, or as soon as the write that was interrupted is undone."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            time.sleep(0.001)
        else:
            other.execute("ROLLBACK")
            return True
    return False


def lost(work: Kernel, other: sqlite3.Connection) -> list[str]:
    """What was reported as stored and is not on disk, and what the lab shows that the disk does not have."""
    ((reward,),) = other.execute("SELECT reward FROM trajectories WHERE id = ?", (work.trajectory.id,))
    known = {row[0] for row in other.execute("SELECT id FROM jobs")}
    places = {row[0] for row in other.execute("SELECT position FROM trajectories WHERE group_id = ?", (work.group.id,))}
    (shown,) = work.lab.outlines.refresh(
        {o.id: o for o in work.lab.outlines.of(work.lab.find("capitals"), None, 1)}
    ).values()
    troubles = [f"job {job!r}" for job in work.jobs if job not in known]
    troubles += [f"completion {place}" for place in work.places if place not in places]
    if work.reward is not None and not work.reward <= (reward or 0.0) <= work.tried:  # each that is tried is larger
        troubles.append(f"reward {work.reward}: the disk has {reward}")
    if shown.reward != reward:
        troubles.append(f"reward {shown.reward} is shown, the disk has {reward}")
    return troubles


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--signals", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    begun, came, open_, gone = time.monotonic(), 0, 0, []
    with tempfile.TemporaryDirectory() as folder:
        work = kernel(Path(folder) / "lab.db")
        signal.signal(signal.SIGALRM, work.signalled)
        other = sqlite3.connect(Path(folder) / "lab.db", timeout=0, isolation_level=None)
        for number in range(options.signals):
            came += interrupted(work, chance.uniform(0.00002, LONGEST))
            open_ += not taken(other)
            if number % 100 == 99 or number == options.signals - 1:
                gone += lost(work, other)
        other.close()
        work.lab.close()
    print(
        f"{came:,} signals in {work.writes:,} whole writes, {time.monotonic() - begun:.0f} s, seed {options.seed}: "
        f"{open_} transactions left open, {len(gone)} losses"
    )
    for trouble in gone[:20]:
        print(f"  lost: {trouble}")
    return 1 if open_ or gone or came < options.signals else 0


if __name__ == "__main__":
    sys.exit(main())
