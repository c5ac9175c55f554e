"""Ask models of the session's service about trajectories, for reward functions that judge with one."""

import threading
from collections.abc import Callable
from functools import partial

from rolloutlab.api.inference import complete
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.connection import Connector
from rolloutlab.sampling.metering import Meter
from rolloutlab.scoring.estimate import ModelUsage
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredTrajectory

Ask = Callable[[StoredTrajectory, ChatRequest], ChatCompletion]
"""Asks a model about a trajectory."""


class ModelAsker:
    """Asks models of the session's service, in many threads at once; their tokens count as those of the collection.

    meter: of the cell that scores now, if any.
    """

    def __init__(
        self, connector: Connector, lab: Callable[[], Lab], meter: Callable[[], Meter | None] = lambda: None
    ) -> None:
        self._connector, self._lab, self._meter = connector, lab, meter
        self._lock = threading.Lock()
        self.usage: dict[str, ModelUsage] = {}
        """By model, the requests and tokens so far."""

    def __call__(self, trajectory: StoredTrajectory, request: ChatRequest) -> ChatCompletion:
        """The completion, after its cost is stored in the lab. Raises the errors of `api.inference.complete`."""
        with self._lock:
            address = self._connector.address()
        send = partial(complete, self._connector.http, address, request)
        meter = self._meter()
        try:
            completion = self._connector.http.run(meter.complete(request, send) if meter else send())
        finally:
            if meter:  # what failed may have been paid for, too
                with self._lock:
                    meter.record(self._lab().find(trajectory.name.partition("/")[0]))
        usage = completion.usage
        with self._lock:
            spent = ModelUsage(1, usage.prompt_tokens, usage.completion_tokens) if usage else ModelUsage(1, None, None)
            self.usage[request.model] = self.usage.get(request.model, ModelUsage()) + spent
        if usage:
            with self._lock:
                collection = self._lab().find(trajectory.name.partition("/")[0])
                self._lab().spend(collection, usage.prompt_tokens, usage.completion_tokens)
        return completion
