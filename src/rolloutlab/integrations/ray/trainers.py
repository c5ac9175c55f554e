"""Trainers on the nodes of a Ray cluster, which take the steps of one task together."""

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayError
from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from rolloutlab.errors import Cancelled, PolicyError, RolloutlabError, ServiceError
from rolloutlab.integrations.ray.nodes import HINT, Loaded, Nodes, error_line, load
from rolloutlab.integrations.ray.plan import ReportOnce
from rolloutlab.policy.checkpoints import State
from rolloutlab.policy.model import Adapter
from rolloutlab.policy.progress import Progress
from rolloutlab.policy.share import Share
from rolloutlab.policy.task import Callbacks, Task
from rolloutlab.policy.trainer import take_steps
from rolloutlab.settings import ModelSettings

LOST = (RayError, GetTimeoutError)
_ANSWER_SECONDS = 30.0
"""The most seconds until a trainer that has loaded the policy and computes nothing counts as hung."""
_POLL_SECONDS = 0.25
_ATTEMPTS = 3
_LEAST_SECONDS = 5.0
"""The least time between two states that rank 0 sends."""
_BATCHES = "batches"
"""The key under which a group counts the batches that its ranks have begun."""
_LONGEST_PAUSE = 0.05
"""The longest pause between two looks for other ranks, which may meet several times a second."""
Event = tuple[str, Any]
"""What a trainer reports, as kind and data: an event of its task, or `progress` with a state to keep."""


@dataclass(frozen=True)
class GroupRank:
    """The place of a trainer in a group.

    key: identifies the group's attempt at its task. address: where rank 0 listens. parts: the number of parts into
    which each step is divided. patience: seconds without a batch of any rank until the group counts as hung.
    least_seconds: the least time between two states that are sent.
    """

    key: str
    rank: int
    size: int
    address: str
    parts: int
    patience: float
    least_seconds: float

    @property
    def keeps(self) -> bool:
        """Whether this rank reports. The others have the same state, so one is enough."""
        return self.rank == 0


class RayTrainer:
    """A rank of training groups. It outlives tasks and groups. Methods run in several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._training = threading.Lock()
        self._key = self._stopped = ""
        self._events: list[Event] = []
        self._taken = 0
        self._loaded: Loaded | None = None

    def load(self, name: str, settings: ModelSettings, threads: int) -> Loaded:
        """Load the policy unless it is loaded. Raises PolicyError."""
        if self._loaded is None:
            self._policy, self._loaded = load(name, settings, threads)
            self._threads = torch.get_num_threads()
            self._model = self._policy.training_copy()
        return self._loaded

    def address(self) -> str:
        """Find a free port of this node, for the next group."""
        with socket.socket() as free:
            host = ray.util.get_node_ip_address()
            free.bind((host, 0))
            return f"{host}:{free.getsockname()[1]}"

    def train(
        self, seat: GroupRank, start: State, kept: tuple[State, list[dict[str, object]]] | None, task: Task,
        reference: Adapter | None,
    ) -> State | RolloutlabError | Cancelled | None:  # fmt: skip
        """Take a task's steps as one of a group; rank 0 returns the state afterwards. Return why the task itself ended.

        Raises:
            RuntimeError: another rank has died, or hangs.
        """
        with self._training:
            with self._changed:
                self._key, self._events, self._taken = seat.key, [], 0
            torch.set_num_threads(self._threads)
            callbacks = Callbacks(partial(self._send, seat), lambda: self._stopped == seat.key)
            progress = _SentProgress(seat, kept, partial(self._send, seat), self._all_kept)
            group = _Group(seat, callbacks.cancelled) if seat.size > 1 else None
            share = Share(seat.rank, seat.size, seat.parts)
            if group:
                share = replace(share, add=group.add, beat=group.beat)
            try:
                state = take_steps(self._policy, self._model, start, task, callbacks, reference, progress, share)
            except (RolloutlabError, Cancelled) as error:
                return error
            finally:
                if group:
                    group.close()  # the others would wait for this rank
        return state if seat.keeps else None

    def events(self, key: str, taken: int, seconds: float) -> list[Event]:
        """Return the events of an attempt after the first `taken`; wait for one, for at most so many seconds."""
        with self._changed:
            if self._key == key:
                del self._events[: taken - self._taken]
                self._taken = taken
            self._changed.wait_for(lambda: self._key == key and self._events, seconds)
            return list(self._events) if self._key == key else []

    def _all_kept(self) -> bool:
        """Whether the engine has taken every state that was sent. States may be large, so only one waits here."""
        with self._changed:
            return all(kind != "progress" for kind, _ in self._events)

    def stop(self, key: str) -> None:
        """End an attempt before the next batch, or in a custom loss."""
        self._stopped = key

    def _send(self, seat: GroupRank, kind: str, data: Any) -> None:
        if seat.keeps:
            with self._changed:
                self._events.append((kind, data))
                self._changed.notify_all()


class _SentProgress(Progress):
    """Progress that is sent to the engine, which may be on another machine. taken: whether it has the last state."""

    def __init__(self, seat: GroupRank, kept: Any, send: Callable[[str, Any], None], taken: Callable[[], bool]) -> None:
        super().__init__(Path(), seat.key, seat.least_seconds)
        self._keeps, self._kept, self._send, self._taken = seat.keeps, kept, send, taken

    def due(self) -> bool:
        return self._keeps and self._taken() and super().due()

    def read(self) -> tuple[State, list[dict[str, object]]] | None:
        return self._kept and (self._kept[0], list(self._kept[1]))

    def _save(self, state: State, reported: list[dict[str, object]]) -> None:
        self._send("progress", (state, list(reported)))


class _Group:
    """The ranks of an attempt, which meet at each sum. stopped: whether the attempt is to end.

    A long step has one sum after minutes of batches, and its ranks do not end them together. So a rank waits for the
    others as long as any of them begins batches, which are counted in a store of rank 0. The time-out of gloo applies
    only to the sum itself.
    """

    def __init__(self, seat: GroupRank, stopped: Callable[[], bool]) -> None:
        host, port = seat.address.rsplit(":", 1)
        patience = timedelta(seconds=seat.patience)
        self._size, self._patience, self._stopped, self._sums = seat.size, seat.patience, stopped, 0
        self._store = TCPStore(host, int(port), seat.size, is_master=seat.keeps, timeout=patience)
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        # the address of this node: by default gloo takes the one that the host's name resolves to
        options._devices = [gloo.create_device(hostname=ray.util.get_node_ip_address())]
        options._timeout = patience
        self._gloo = gloo(self._store, seat.rank, seat.size, options)

    def beat(self) -> None:
        """Count a batch."""
        self._store.add(_BATCHES, 1)

    def add(self, flat: Tensor) -> None:
        """See `policy.share.Add`. Raises Cancelled. RuntimeError: a rank is gone, or none begins a batch any more."""
        self._meet()
        self._gloo.allreduce([flat]).wait()

    def _meet(self) -> None:
        """Wait until all ranks are here."""
        self._sums += 1
        name, batches, moved, pause = f"sum {self._sums}", -1, 0.0, 0.001
        self._store.add(name, 1)
        while self._store.add(name, 0) < self._size:
            if self._stopped():
                raise Cancelled
            now, before, batches = time.monotonic(), batches, self._store.add(_BATCHES, 0)
            moved = now if batches != before else moved
            if now - moved > self._patience:
                raise RuntimeError(f"no rank has begun a batch for {self._patience:g} s")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def close(self) -> None:
        self._gloo.shutdown()


@dataclass
class _Rank:
    """The trainer of a node. loaded: what it has loaded; None until then."""

    actor: Any
    loaded: Loaded | None = None


class Trainers:
    """A trainer on each node, which outlives tasks.

    patience: seconds until a group counts as hung if none of its batches begins. least_seconds: see `Progress`.
    """

    def __init__(self, nodes: Nodes, patience: float, least_seconds: float | None = None) -> None:
        self._nodes, self._patience, self._answer_seconds = nodes, patience, min(patience, _ANSWER_SECONDS)
        self._least_seconds = _LEAST_SECONDS if least_seconds is None else least_seconds
        self.ranks: dict[str, _Rank] = {}
        """By node."""

    def train(self, start: Any, task: Any, reference: Any, progress: Progress, once: ReportOnce) -> State:
        """Take the steps of a task. If a trainer or its node is lost, the others go on from what was kept.

        Steps are divided into as many parts as the first group has workers, so that a loss does not change the result.

        Args:
            start: A reference to the state to start from, in the object store.
            task: A reference to the task.
            reference: A reference to the adapter of the KL penalty; None is checkpoint 0.
            progress: Keeps finished steps on disk, to resume from.
            once: Passes the events on.

        Raises:
            ServiceError: there is no node, or trainers were lost in every attempt at a step. Others: as `take_steps`.
        """
        lost = parts = 0
        while True:
            reported = once.steps
            try:
                group = self._group()
                parts = parts or sum(rank.loaded.workers for rank in group.values() if rank.loaded)
                return self._attempt(group, parts, (start, progress.read(), task, reference), progress, once)
            except LOST as error:
                lost = lost + 1 if once.steps == reported else 1
                logging.getLogger(__name__).warning("a trainer was lost at step %d: %s", once.steps, error_line(error))
                if lost >= _ATTEMPTS:
                    message = f"trainers were lost {lost} times at step {once.steps}: {error_line(error)}"
                    raise ServiceError(message, hint=HINT) from error

    def _group(self) -> dict[str, _Rank]:
        """Return the trainers of all living nodes; make missing ones. Raises ServiceError if no node has one."""
        before = self.ranks
        while self._load() < len(before):  # some were lost meanwhile: new ones on the nodes that live
            before = {}
        if not self.ranks:
            raise self._nodes.no_node_error("no node of the cluster trains")
        return dict(self.ranks)

    def _load(self) -> int:
        """Make and load trainers on living nodes, and forget those that are lost; return how many there are."""
        nodes = self._nodes.living()
        self.ranks = {node: rank for node, rank in self.ranks.items() if node in nodes}
        bad = {node for node, what in list(self._nodes.failed) if what == "sampler"} | self._nodes.refused.keys()
        for node in nodes.keys() - self.ranks.keys() - bad:
            self.ranks[node] = _Rank(self._nodes.actor(RayTrainer, node, nodes[node], max_concurrency=4))
        answers = {node: rank.actor.load.remote(*self._nodes.policy, nodes[node]) for node, rank in self.ranks.items()}
        for node, answer in answers.items():
            rank = self.ranks[node]
            try:
                rank.loaded = self._wait_for_load(node, answer, first=rank.loaded is None)
                self._nodes.check(node, "trainer", rank.loaded)
            except PolicyError as error:
                self._nodes.refuse(node, error)
                self._lose(node)
            except LOST as error:
                self._nodes.fail(node, "trainer", error)
                self._lose(node)
        return len(self.ranks)

    def _wait_for_load(self, node: str, answer: Any, *, first: bool) -> Loaded:
        """Wait for what a trainer has loaded. The first time there is no limit, as long as its node lives."""
        while True:
            try:
                loaded: Loaded = ray.get(answer, timeout=self._answer_seconds)
            except GetTimeoutError:
                if not first or node not in self._nodes.living():
                    raise
            else:
                return loaded

    def _attempt(
        self, group: dict[str, _Rank], parts: int, of_task: Sequence[Any], progress: Progress, once: ReportOnce
    ) -> State:
        """Train with one group until the task ends. Raises as `train` does, and LOST if a rank or its node is lost."""
        actors, key = [rank.actor for rank in group.values()], uuid.uuid4().hex
        address = ray.get(actors[0].address.remote(), timeout=self._answer_seconds)
        seats = [
            GroupRank(key, rank, len(actors), address, parts, self._patience, self._least_seconds)
            for rank in range(len(actors))
        ]
        once.begin()
        answers = [actor.train.remote(seat, *of_task) for actor, seat in zip(actors, seats, strict=True)]
        taken, ended = 0, False
        try:
            while not ended:
                once.raise_if_cancelled()
                done = ray.wait(answers, num_returns=len(answers), timeout=0)[0]
                ray.get(done)  # raises what ended any of them
                ended = answers[0] in done
                events = actors[0].events.remote(key, taken, 0 if ended else _POLL_SECONDS)
                for kind, data in ray.get(events, timeout=self._answer_seconds):
                    taken += 1
                    progress.write(*data) if kind == "progress" else once.report(kind, data)
            outcome: State | BaseException = ray.get(answers[0])
        finally:
            self._release(group, answers, key)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _release(self, group: dict[str, _Rank], answers: Sequence[Any], key: str) -> None:
        """End an attempt. A trainer that is not free soon afterwards counts as hung, and is lost."""
        for rank in group.values():
            rank.actor.stop.remote(key)
        busy = ray.wait(list(answers), num_returns=len(answers), timeout=self._answer_seconds)[1]
        for node, answer in zip(group, answers, strict=True):
            if answer in busy:
                self._lose(node)

    def _lose(self, node: str) -> None:
        with suppress(RayError):
            ray.kill(self.ranks.pop(node).actor)
