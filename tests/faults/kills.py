"""Kills the service and its client at random moments: nothing that either reported as stored may be lost.

    kills.py [--kills 60] [--seed 0] [--home DIR]

The client samples, captures a program, scores, trains, fine-tunes, trains with a loss of its own and searches in a loop
on the embedded service of one lab folder, and journals what each call returned. SIGKILL ends the client, the service or
both, in the middle of a start as well as later; what was killed is started again. After each kill both databases must
be whole, free of a transaction, and hold what the journal says, and uploaded data and losses must be whole. At the end
every job that was accepted must end (one killed while its own loss ran, as failed), and no draft may be left.

Service and client are forked from one process that has imported everything, so that a start takes a second. The client
finds the service as any kernel does; only where it would start one itself does it wait for the one of this script. Exit
status 0 when nothing was lost and no call ended in anything but a deliberate error.
"""

import argparse
import random
import re
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from journal import Journal, digest, halves, read, stored
from processes import end, fork, published, serve, strays, until, wait_for_services

from rolloutlab.errors import JobFailedError, RolloutlabError
from rolloutlab.policy.checkpoints import read_checkpoint
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.store.lab import Lab

IN_LOSS = "ended while the loss of this job ran"
"""The error of a job with a loss of its own, if a kill came while that ran: it might have ended the service."""
PROMPT = "user: Sort the letters: d b a c"
MODEL = "lab/kills"
LONGEST_START, LONGEST_JOBS = 120.0, 300.0


def loss(new: Any, old: Any, advantage: Any, weight: Any, history: Any) -> Any:
    """Like the options' own, without a bound."""
    return -(weight * advantage * (new - old).exp()).sum() / len(new)


async def solve(row: dict[str, Any], client: Any) -> float:
    """Two turns, and a sub-agent."""
    create = partial(client.chat.completions.create, max_tokens=4)
    messages, again = (
        [{"role": "user", "content": f"Sort the letters: {row['i']}"}],
        {"role": "user", "content": "Again"},
    )
    first = await create(messages=messages)
    await create(messages=[*messages, first.choices[0].message, again])
    await create(messages=[again])
    return float(row["i"])


_RAISED = re.compile(r"^Traceback.*?^(\S.*?)$", re.MULTILINE | re.DOTALL)


class Client:
    """One life of a client: a loop of small calls, each journalled once it has returned."""

    def __init__(self, home: Path, seed: int, life: int) -> None:
        wait_for_services()
        self._random = random.Random(seed)
        self._journal = Journal(home / "journal")
        self._lab = Session(Settings(home=home))
        self._lab._models._chosen = MODEL
        self._round = 1000 * life  # so that newer rewards are larger ones

    def run(self) -> None:
        calls = [self._sample, self._sample, self._score, self._train, self._search, self._resume]
        calls += [self._fine_tune, self._own_loss, self._capture, self._play_on]
        self._label = ""
        while True:
            call = self._random.choice(calls) if self._label else self._sample
            try:
                call()
                self._journal.write("done", call=call.__name__)
            except RolloutlabError as error:
                self._journal.write("refused", call=call.__name__, error=type(error).__name__, message=str(error))
                time.sleep(0.02)
            except Exception:  # noqa: BLE001 - a bug of ours, which is what is looked for
                self._journal.write("bug", call=call.__name__, error=traceback.format_exc())

    def _sample(self) -> None:
        name = f"c{self._random.randrange(5)}"
        options: dict[str, Any] = {"n": 4, "max_tokens": 6, "over": [{"i": 0}, {"i": 1}], "model": None}
        found = self._lab.chat(name, PROMPT, **options)
        self._label = found.label
        self._journal.trajectories(found.label, found.trajectories)

    def _resume(self) -> None:
        """The newest collection that was sampled by prompts, which a kill may have cut short."""
        newest = next(each for each in self._lab.store.collections() if not each.plan.get("program"))
        collection = self._lab.resume(newest.label)
        self._journal.trajectories(collection.label, collection.trajectories)

    def _capture(self) -> None:
        made = self._lab.rollouts("agent", solve, over=[{"i": i} for i in range(4)], n=4, concurrency=4)
        self._captured(made)

    def _play_on(self) -> None:
        """The rollouts that the newest capture lacks; each of its rewards is that of its row."""
        if [each for each in self._lab.store.collections() if each.name == "agent"]:
            self._captured(self._lab.resume("agent", program=solve, concurrency=4))

    def _captured(self, made: Any) -> None:
        members = made.trajectories
        done = [t for t in members if t.episode_end == "done"]
        assert len(members) == 16, f"{len(members)} of 16 rollouts"
        assert all((t.reward, len(t.choices), len(t.additional)) == (t.row["i"], 2, 1) for t in done)
        self._journal.trajectories(made.label, members)

    def _score(self) -> None:
        """All of a collection in one change, with the number of the round before the point."""
        self._round += 1
        places: dict[int, int] = {}
        scored = self._lab.reward(
            self._label, lambda trajectory, *_: self._round + places.setdefault(trajectory.id, len(places)) % 4 / 4
        )
        self._journal.write("rewards", label=scored.label, rewards={t.id: t.reward for t in scored.trajectories})

    def _train(self, **options: Any) -> None:
        self._score()
        job = self._lab.train(self._label, wait=False, say=lambda _: None, **options)
        self._journal.write("job", id=job.id)
        if self._random.random() < 0.7:
            job.wait(progress=False)
            self._journal.write("checkpoint", step=job.step, job=job.id)

    def _fine_tune(self) -> None:
        self._train(sft=True, options={"batch_size": 1})

    def _own_loss(self) -> None:
        self._train(loss=loss)

    def _search(self) -> None:
        result = self._lab.search("letters", k=3)
        self._journal.write("search", hits=len(result))


class Campaign:
    """Kills, and what is checked after each."""

    def __init__(self, home: Path, seed: int) -> None:
        self._home = home
        self._random = random.Random(seed)
        self._pids: dict[str, int] = {}
        self._lives: Counter[str] = Counter()
        self._offset = 0
        self._rewards: dict[tuple[str, str], float] = {}
        self.counts: Counter[str] = Counter()
        self.refusals: dict[str, str] = {}
        self.losses: list[str] = []
        home.mkdir(parents=True, exist_ok=True)

    def run(self, kills: int) -> None:
        self._start("service", "client")
        while sum(self.counts[f"kills of {each}"] for each in ("service", "client")) < kills:
            victims = self._random.choice([["service"], ["service"], ["client"], ["client"], ["service", "client"]])
            if self._random.random() < 0.8:
                self._wait_for_service()
            time.sleep(self._random.expovariate(2.0))
            for each in victims:
                self._kill(each)
            self._check(quiet=len(victims) == 2)
            self._start(*victims)
            if self.losses:
                return
        self._end()
        self._read_client_log()

    def _read_client_log(self) -> None:
        """A client that cannot begin would lose nothing: errors of its calls are in the journal, others are here."""
        text = (self._home / "client.log").read_text(errors="replace")
        self.losses += [f"a traceback in client.log: {raised}" for raised in _RAISED.findall(text)[:1]]

    def _start(self, *which: str) -> None:
        for each in which:
            self._lives[each] += 1
            seed = self._random.randrange(2**32)
            client = partial(Client, self._home, seed, self._lives[each])
            work = partial(serve, self._home) if each == "service" else lambda client=client: client().run()
            self._pids[each] = fork(work, self._home / f"{each}.log")

    def _kill(self, each: str) -> None:
        end(self._pids[each])
        self.counts[f"kills of {each}"] += 1

    def _wait_for_service(self) -> None:
        self._require(lambda: published(self._home, self._pids["service"]), LONGEST_START, "the service does not start")

    def _require(self, condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
        if not until(condition, seconds):
            self.losses.append(f"{otherwise} within {seconds:.0f} s")

    def _check(self, quiet: bool) -> None:
        """Both databases whole, unlocked where nothing runs, and with all that the journal got since the last check."""
        for path in (self._home / "lab.db", self._home / "service" / "service.db"):
            if path.exists():
                connection = sqlite3.connect(path, timeout=20.0, isolation_level=None)
                [[verdict]] = connection.execute("PRAGMA quick_check").fetchall()
                if verdict != "ok":
                    self.losses.append(f"{path.name}: {verdict}")
                if quiet:
                    connection.execute("PRAGMA busy_timeout = 0")
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
                connection.close()
        facts = [fact for self._offset, fact in read(self._home / "journal", self._offset)]
        self.losses += halves(self._home / "service")
        if not facts:
            return
        lab = Lab(self._home / "lab.db")
        for fact in facts:
            getattr(self, f"_check_{fact['kind']}")(fact, lab)
        for label in {label for label, _ in self._rewards}:
            self._check_rewards_of(label, lab)
        lab.close()
        self._check_log()

    def _check_log(self) -> None:
        """Every reward is as its newest edit says: both are written at once. One statement, as the client goes on."""
        connection = sqlite3.connect(self._home / "lab.db", timeout=20.0)
        sql = (
            "SELECT t.id, t.reward, e.new FROM trajectories t JOIN edits e ON e.id ="
            " (SELECT max(id) FROM edits WHERE trajectory_id = t.id) WHERE t.reward IS NOT e.new"
        )
        for number, reward, logged in connection.execute(sql).fetchall():
            self.losses.append(f"the reward of trajectory {number} is {reward}, its log ends with {logged}")
        connection.close()

    def _check_trajectories(self, fact: dict[str, Any], lab: Lab) -> None:
        here = stored(lab, fact["label"])
        for key, expected in fact["digests"].items():
            self.counts["trajectories"] += 1
            if int(key) not in here or digest(here[int(key)]) != expected:
                self.losses.append(f"trajectory {key} of {fact['label']} is not as it was reported")

    def _check_rewards(self, fact: dict[str, Any], lab: Lab) -> None:
        self.counts["rewards"] += len(fact["rewards"])
        self._rewards |= {(fact["label"], key): reward for key, reward in fact["rewards"].items()}

    def _check_rewards_of(self, label: str, lab: Lab) -> None:
        """None older than reported; of a change that was killed as many are there as were stored."""
        here = stored(lab, label)
        mine = {key: reward for (of, key), reward in self._rewards.items() if of == label}
        for key, reward in mine.items():
            if (here[int(key)].reward or 0.0) < reward:
                self.losses.append(f"the reward of {label} {key} is {here[int(key)].reward}, reported was {reward}")

    def _check_job(self, fact: dict[str, Any], lab: Lab) -> None:
        self.counts["jobs"] += 1
        if not self._service_rows("SELECT 1 FROM jobs WHERE id = ?", fact["id"]):
            self.losses.append(f"job {fact['id']} is gone")

    def _check_checkpoint(self, fact: dict[str, Any], lab: Lab) -> None:
        self.counts["checkpoints"] += 1
        rows = self._service_rows("SELECT model_id FROM checkpoints WHERE step = ?", fact["step"])
        if not rows:
            self.losses.append(f"checkpoint {fact['step']} is not listed")
        for [model_id] in rows:
            try:
                read_checkpoint(self._home / "service" / "models" / model_id / str(fact["step"]))
            except RolloutlabError as error:
                self.losses.append(str(error))

    def _check_search(self, fact: dict[str, Any], lab: Lab) -> None:
        self.counts["searches"] += 1

    def _check_done(self, fact: dict[str, Any], lab: Lab) -> None:
        self.counts["calls that returned"] += 1

    def _check_refused(self, fact: dict[str, Any], lab: Lab) -> None:
        self.counts["calls that were refused"] += 1
        kind = f"{fact['call']} {fact['error']}"
        self.counts[kind] += 1
        self.refusals.setdefault(kind, fact["message"])
        if fact["error"] == JobFailedError.__name__ and IN_LOSS not in fact["message"]:
            self.losses.append(f"a job failed: {fact['message']}")

    def _check_bug(self, fact: dict[str, Any], lab: Lab) -> None:
        self.losses.append(f"{fact['call']} ended in {fact['error']}")

    def _service_rows(self, sql: str, *values: object) -> list[Any]:
        connection = sqlite3.connect(self._home / "service" / "service.db", timeout=20.0)
        rows = connection.execute(sql, values).fetchall()
        connection.close()
        return rows

    def _end(self) -> None:
        """Every accepted job ends; then service and client stop, and no draft is left."""
        self._wait_for_service()
        self._kill("client")
        self.counts["kills of client"] -= 1  # this one is no part of the campaign
        waiting = "SELECT id FROM jobs WHERE status IN ('queued', 'running')"
        self._require(lambda: not self._service_rows(waiting), LONGEST_JOBS, "the jobs do not end")
        failed = self._service_rows("SELECT id, error FROM jobs WHERE status NOT IN ('succeeded', 'queued', 'running')")
        self.counts["jobs killed in their loss"] = sum(IN_LOSS in str(error) for _, error in failed)
        self.losses += [f"job {job_id} failed: {error}" for job_id, error in failed if IN_LOSS not in str(error)]
        end(self._pids["service"], signal.SIGTERM)
        self._check(quiet=True)
        counts, self._offset = self.counts.copy(), 0
        self._check(quiet=True)  # once more from the beginning
        self.counts = counts
        self.losses += [f"{path.relative_to(self._home)} was left behind" for path in strays(self._home)]
        self._check_steps()

    def _check_steps(self) -> None:
        """AdamW has counted each gradient step of the jobs that ended once: a job that goes on repeats none of them."""
        for model_id, newest in self._service_rows("SELECT model_id, max(step) FROM checkpoints GROUP BY model_id"):
            optimizer = read_checkpoint(self._home / "service" / "models" / model_id / str(newest)).optimizer
            counted = {int(value) for name, value in optimizer.items() if name.endswith(".step")} or {0}
            [[reported]] = self._service_rows(
                "SELECT count(*) FROM events JOIN jobs ON jobs.id = job_id"
                " WHERE type = 'gradient_step' AND status = 'succeeded' AND model_id = ?",
                model_id,
            )
            self.counts["gradient steps"] += reported
            if counted != {reported}:
                self.losses.append(f"checkpoint {newest} has {counted} gradient steps, of {reported} reported")
        [[self.counts["jobs that were restarted"]]] = self._service_rows(
            "SELECT count(DISTINCT job_id) FROM events WHERE type = 'restarted'"
        )

    def stop(self) -> None:
        """End what still runs."""
        for pid in self._pids.values():
            end(pid)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path, help="an empty folder, which is kept; by default one that is removed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        begun = time.monotonic()
        campaign = Campaign(options.home or Path(folder) / "lab", options.seed)
        try:
            campaign.run(options.kills)
        finally:
            campaign.stop()
        for name, count in sorted(campaign.counts.items()):
            print(f"{count:8} {name}" + (f": {campaign.refusals[name]}" if name in campaign.refusals else ""))
        print("\n".join(f"LOST {loss}" for loss in campaign.losses[:20]) or "nothing was lost")
        print(f"seed {options.seed}, {time.monotonic() - begun:.0f} s")
    return 1 if campaign.losses else 0


if __name__ == "__main__":
    sys.exit(main())
