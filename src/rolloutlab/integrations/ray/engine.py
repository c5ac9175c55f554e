"""The engine on a Ray cluster: trainers take a job's steps together, and samplers share requests."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import ray

from rolloutlab.engines.engine import OnToken, partial_of
from rolloutlab.integrations.ray.nodes import Nodes, connect
from rolloutlab.integrations.ray.plan import ReportOnce
from rolloutlab.integrations.ray.samplers import CACHED_ADAPTERS, Samplers
from rolloutlab.integrations.ray.trainers import Trainers
from rolloutlab.policy.checkpoints import read_checkpoint, same_shapes, write_state
from rolloutlab.policy.decode import Completion, CompletionRequest
from rolloutlab.policy.progress import Progress
from rolloutlab.policy.task import Callbacks, Task
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.runtime import LoopThread
from rolloutlab.settings import ModelSettings


class RayEngine:
    """Samples and trains a policy on the nodes of a Ray cluster, each of which can load it under the same name.

    `settings.engine_url` is HOST:PORT of a running cluster; None starts one on 127.0.0.1, which ends with the engine.

    patience: seconds until trainers count as hung if none of them begins a batch, until a sampler counts as hung if it
    has work and computes nothing, and until a request gives up waiting for a node. least_seconds: the least time
    between two saves of a job's state; None is five seconds.

    Raises:
        InputError: the URL is not that of a cluster. ServiceError: the cluster cannot be reached. PolicyError: as
        `load_policy`.
    """

    name = "ray"
    unsupported: Mapping[str, str] = {}

    def __init__(
        self,
        policy_name: str,
        settings: ModelSettings,
        *,
        patience: float = 120.0,
        least_seconds: float | None = None,
    ) -> None:
        connect(settings.engine_url)
        self._nodes = nodes = Nodes(policy_name, settings)
        self.trainers = Trainers(nodes, patience, least_seconds)
        self.samplers = Samplers(nodes, patience)
        self._adapters: OrderedDict[Path, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._loop = LoopThread("ray")
        self._closed = False
        try:
            loaded = self._loop.submit(self.samplers.start()).result()
        except BaseException:
            self.close()
            raise
        self._loop.submit(self.samplers.watch())
        self.base = loaded.base
        self._initial, self._lora = loaded.initial, loaded.lora
        self._initial_adapter = ray.put(self._initial.adapter)

    def status(self) -> Mapping[str, str]:
        """See `Engine`. The status has the nodes that sample, and those that are not used."""
        ready = list(self.samplers.ready)
        devices = sorted({self._nodes.loaded[node].device for node in ready})
        addresses = sorted(self._nodes.addresses.get(node, node) for node in ready)
        status = {"device": ", ".join(devices), "nodes": f"{len(ready)} ({', '.join(addresses)})"}
        return {**status, "not used": unused} if (unused := self._nodes.unused()) else status

    def create_initial(self, folder: Path) -> None:
        """See `Engine`."""
        write_state(folder, self._initial, self._lora)

    def fits(self, checkpoint: Path) -> bool:
        """See `Engine`."""
        return same_shapes(read_checkpoint(checkpoint).adapter, self._initial.adapter)

    def sample(
        self, checkpoint: Path | None, requests: Sequence[CompletionRequest], on_token: OnToken | None = None
    ) -> Future[list[Completion]]:
        """See `Engine`. Which node samples a completion does not change its randomness."""
        return self._loop.submit(self.samplers.sample(self._adapter(checkpoint), requests, on_token))

    def logprobs(self, checkpoint: Path | None, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """See `Engine`."""
        return self._loop.submit(self.samplers.logprobs(self._adapter(checkpoint), sequences)).result()

    def train(self, source: Path, target: Path, task: Task, callbacks: Callbacks) -> None:
        """See `Engine`. If a trainer or its node is lost, training goes on from the last steps that were kept."""
        progress = Progress(partial_of(target), task.key(source))
        start = ray.put(read_checkpoint(source))
        reference = self._adapter(task.reference) if task.reference else None
        state = self.trainers.train(start, ray.put(task), reference, progress, ReportOnce(callbacks))
        write_state(target, state, self._lora)

    def forget(self, checkpoint: Path) -> None:
        """See `Engine`."""
        with self._lock:
            self._adapters.pop(checkpoint, None)

    def close(self) -> None:
        """See `Engine`. In a cluster that was joined, only the actors of this engine end."""
        if self._closed:  # another engine may have connected since
            return
        self._closed = True
        self._loop.close()
        ray.shutdown()

    def _adapter(self, checkpoint: Path | None) -> Any:
        """Return a reference to the adapter of a checkpoint in the object store, from an LRU cache."""
        if checkpoint is None:
            return self._initial_adapter
        with self._lock:
            if checkpoint not in self._adapters:
                self._adapters[checkpoint] = ray.put(read_checkpoint(checkpoint).adapter)
            self._adapters.move_to_end(checkpoint)
            if len(self._adapters) > CACHED_ADAPTERS:
                self._adapters.popitem(last=False)
            return self._adapters[checkpoint]
