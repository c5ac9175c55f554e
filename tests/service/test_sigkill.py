"""The real service, killed again and again: every job that was accepted ends once, and nothing is left over."""

import random
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from rolloutlab.api import training
from rolloutlab.api.embedded import Embedded
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.training import ENDINGS, RegisterModel
from rolloutlab.cli.commands import main
from rolloutlab.errors import RolloutlabError
from rolloutlab.settings import Address, Settings
from tests.forked import forkserver

pytestmark = pytest.mark.process

KILLS = 16
PATIENCE = 240.0
"""Seconds after which what is waited for is not coming."""


class Lives:
    """One lab folder whose service lives many times. A life begins in a fraction of a second: its imports are done."""

    def __init__(self, settings: Settings) -> None:
        self.folder = settings.service_folder
        self._http = HttpClient(tries=1)
        self._embedded = Embedded(settings, self._http)
        self._command = ["serve", "--home", str(settings.home), "--policy", settings.policy, "--linger", "30"]
        self._context = forkserver()
        self._process: BaseProcess | None = None

    def begin(self) -> None:
        self._process = self._context.Process(target=main, args=(self._command,), daemon=True)
        self._process.start()

    def goes_on(self, seconds: float) -> bool:
        """Wait so long; whether the service is still alive then."""
        assert self._process
        return not wait([self._process.sentinel], timeout=seconds)

    def end(self, kill: bool = True) -> None:
        assert self._process
        (self._process.kill if kill else self._process.terminate)()
        self._process.join(PATIENCE)
        self._process.close()
        self._process = None

    def close(self) -> None:
        if self._process:
            self.end()
        self._http.close()

    def ask(self, call: Callable[..., Any], *values: Any) -> Any:
        """A call of the client on the service that runs at the moment; RolloutlabError when none does."""
        address = self._embedded.running() or Address("http://127.0.0.1:9", "")
        return self._http.run(call(self._http, address, *values))

    def rows(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "service.db")) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture
def lives(tmp_path: Path, tiny_policy: Path) -> Iterator[Lives]:
    lives = Lives(Settings(home=tmp_path, policy=str(tiny_policy)))
    yield lives
    lives.close()


def insist(lives: Lives, call: Callable[..., Any], *values: Any) -> Any:
    """The answer of the first life of the service that gives one."""
    pause = threading.Event()
    while True:
        try:
            return lives.ask(call, *values)
        except RolloutlabError:
            pause.wait(0.02)


def submit_on(lives: Lives, body: Any, chance: random.Random, accepted: list[str], enough: threading.Event) -> None:
    """Submit jobs, each under one key until it is accepted, as a client does that wants to lose none."""
    while not enough.wait(chance.uniform(0.0, 0.2)):
        key = str(uuid.UUID(int=chance.getrandbits(128)))
        accepted.append(insist(lives, post, body, key))


async def post(http: HttpClient, address: Address, body: Any, key: str) -> str:
    url, headers = f"{address.base_url}/v1/preview/training-jobs", {"Idempotency-Key": key}
    answer = await http.request("POST", url, token=address.token, json=body, headers=headers)
    return str(answer["id"])


def live_and_die(lives: Lives, chance: random.Random) -> list[str]:
    """One life, killed at a moment that is random, or random after a job has reported; the jobs it was running."""
    before = lives.rows("SELECT max(id) FROM events")
    lives.begin()
    if chance.random() < 0.4:
        assert lives.goes_on(chance.uniform(0.0, 1.2))
    else:
        while lives.rows("SELECT max(id) FROM events") == before:
            assert lives.goes_on(0.005)
        assert lives.goes_on(chance.uniform(0.0, 0.5))
    lives.end()
    return [job_id for (job_id,) in lives.rows("SELECT id FROM jobs WHERE status = 'running'")]


def test_whenever_the_service_is_killed_every_accepted_job_ends_once_with_its_checkpoint(lives, body, trajectory):
    from rolloutlab.policy.checkpoints import read_checkpoint  # with torch, which no other worker needs

    chance = random.Random(20)
    lives.begin()
    wanted = RegisterModel(project="lab", name="first", return_existing=True)
    model = insist(lives, training.register_model, wanted)
    lives.end()
    group = {"trajectories": [trajectory(float(i % 2), tokens=40) for i in range(8)]}
    job = body(model.id, trajectory_groups=[group] * 12)
    accepted: list[str] = []
    enough = threading.Event()
    client = threading.Thread(target=submit_on, args=(lives, job, random.Random(21), accepted, enough))
    client.start()
    interrupted = {job_id for _ in range(KILLS) for job_id in live_and_die(lives, chance)}
    lives.begin()
    enough.set()
    client.join()

    events = {}
    for job_id in accepted:
        while not events.get(job_id) or events[job_id][-1].type not in ENDINGS:
            events[job_id] = insist(lives, training.events, job_id)
    listed = insist(lives, training.checkpoints, str(model.id))
    lives.end(kill=False)

    kinds = {job_id: [event.type for event in found] for job_id, found in events.items()}
    assert len(set(accepted)) == len(accepted)
    assert {job_id for (job_id,) in lives.rows("SELECT id FROM jobs")} == set(accepted)
    assert all([kind for kind in found if kind in ENDINGS] == ["training_ended"] for found in kinds.values())
    assert [found[-1].data["step"] for found in events.values()] == list(range(1, len(accepted) + 1))
    assert [checkpoint.step for checkpoint in listed] == list(range(len(accepted) + 1))
    assert interrupted
    assert interrupted == {job_id for job_id, found in kinds.items() if found[0] == "restarted"}
    checkpoints = lives.folder / "models" / str(model.id)
    for checkpoint in listed:
        read_checkpoint(checkpoints / str(checkpoint.step))
    assert sorted(path.name for path in checkpoints.iterdir()) == sorted(str(c.step) for c in listed)
    assert list((lives.folder / "jobs").iterdir()) == []
