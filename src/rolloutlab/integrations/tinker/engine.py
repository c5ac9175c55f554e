"""The engine for a server of the Tinker API: a hosted one, or your own, such as SkyRL's.

Losses are exactly those of this package, because they depend on the model only through its logprobs. The gradient by
the logprobs is computed here, and sent as the advantages of the server's importance sampling, whose ratio is 1.
"""

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby, starmap
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel
from torch import Tensor

from rolloutlab.engines.engine import OnToken, partial_of
from rolloutlab.engines.received import Receiver, SampledToken, seed_of
from rolloutlab.errors import CheckpointError, InputError, PolicyError, RefusedError, RenderingError
from rolloutlab.integrations.tinker.client import Cancel, LostModelError, NoRoomError, Sampling, TinkerClient
from rolloutlab.integrations.tinker.trainer import (
    Capabilities,
    SavedProgress,
    TinkerTrainer,
    TinkerTrial,
    measure,
    select_trained,
)
from rolloutlab.policy.base import Base
from rolloutlab.policy.checkpoints import check_checkpoint, map_read_errors, map_write_errors
from rolloutlab.policy.decode import Completion, CompletionRequest
from rolloutlab.policy.model import describe
from rolloutlab.policy.source import source_of
from rolloutlab.policy.task import Callbacks, Task
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.settings import ModelSettings

PLACE, KEY = "tinker.json", "TINKER_API_KEY"
_WORKERS, _ATTEMPTS = 64, 3  # as many as the requests of a `%%chat`; the threads only wait
_LEAST_SECONDS = 30.0
_ROOM_SECONDS, _PAUSE = 600.0, 2.0
"""How long to wait for room in the server's memory: models of a killed service stay until their session ends."""
_UNSUPPORTED = {
    "lora_alpha": "a Tinker server chooses the scale of its adapters",
    "lora_targets": "a Tinker server chooses the layers of its adapters",
    "dtype": "a Tinker server chooses the precision",
    "device": "the weights are the Tinker server's",
    "gradient_checkpointing": "the weights are the Tinker server's",
    "sampler_url": "the adapters are on the Tinker server, which samples itself",
    "top_logprobs": "the Tinker API gives the logprobs of sampled tokens alone",
}


def open_engine(policy: str, settings: ModelSettings, *, least_seconds: float | None = None) -> "TinkerEngine":
    """See `engines.open.open_engine`. The API key is in the environment variable `TINKER_API_KEY`, if there is one."""
    if not settings.engine_url:
        hint = "--engine-url http://127.0.0.1:8000, or https:// and the host of a hosted service"
        raise InputError("the engine tinker needs the URL of a server", hint=hint)
    base, rank = describe(policy, settings)
    client = TinkerClient(settings.engine_url, os.environ.get(KEY) or None, source_of(policy), rank)
    bound = replace(base, bound_options=("--engine=tinker", *base.bound_options))  # checkpoints are on the server
    return TinkerEngine(bound, client, least_seconds=least_seconds)


class Place(BaseModel):
    """The content of a checkpoint's folder. state: where the server has it; None is a new adapter, checkpoint 0.

    sampler: the path of the weights without AdamW's moments, for other programs.
    """

    model: str
    rank: int
    state: str | None = None
    sampler: str | None = None


class _Slot(NamedTuple):
    """A model of one checkpoint in the server's memory, which is never trained. steps: see `TinkerClient`."""

    model: Any
    sampler: Any
    steps: int


class TinkerEngine:
    """Samples and trains models of a Tinker server.

    base: see `policy.model.describe`. client: closed with the engine, or if it cannot be made. slots: how many
    checkpoints stay in the server's memory for sampling. least_seconds: between two saved states of a job; None is 30.

    Raises PolicyError: the server does not serve the client's model. Others, as all methods: see `TinkerClient`.
    """

    name = "tinker"

    def __init__(self, base: Base, client: TinkerClient, *, slots: int = 4, least_seconds: float | None = None) -> None:
        self.base = base
        self._client = client
        self._made_for: dict[str, Any] = {"model": client.model, "rank": client.rank}
        self._most, self._least_seconds = slots, _LEAST_SECONDS if least_seconds is None else least_seconds
        self._slots: OrderedDict[str | None, _Slot] = OrderedDict()
        self._states: dict[Path, str | None] = {}
        self._lock, self._making = threading.Lock(), threading.Lock()
        with ExitStack() as failing:
            failing.callback(client.close)
            client.check_answers()
            _check_served(client)
            self._capabilities = measure(client, partial(self._create, None))
            failing.pop_all()
        self.unsupported: Mapping[str, str] = _unsupported(self._capabilities)
        self._pool = ThreadPoolExecutor(_WORKERS, "tinker-sample")
        self._unfinished: set[Future[list[Completion]]] = set()
        self._receiver = Receiver(base)

    def status(self) -> Mapping[str, str]:
        """See `Engine`."""
        return {"device": f"of the server at {self._client.url}", "model": self._client.model}

    def create_initial(self, folder: Path) -> None:
        """See `Engine`. The server is not asked: the adapter is made from a seed when it is used first."""
        self._write(folder, Place(**self._made_for))

    def fits(self, checkpoint: Path) -> bool:
        """See `Engine`."""
        check_checkpoint(checkpoint)
        if not (checkpoint / PLACE).exists():
            return False
        place = _read(checkpoint)
        return place.model_dump(include={*self._made_for}) == self._made_for

    def sample(
        self, checkpoint: Path | None, requests: Sequence[CompletionRequest], on_token: OnToken | None = None
    ) -> Future[list[Completion]]:
        """See `Engine`. Tokens arrive at a completion's end; forced ones are scored, and the rest sampled after them.

        Raises InputError: `top`, which the API does not have. RenderingError: as of `logprobs`.
        """
        for request in requests:
            self._check([*request.prompt, *request.forced])
            if request.top:
                raise InputError(_UNSUPPORTED["top_logprobs"], hint="top_logprobs: 0")
        state = self._state(checkpoint)
        future: Future[list[Completion]] = Future()
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)

        def run() -> None:
            try:
                rows = self._with_slot(state, lambda slot: self._complete(slot, requests, on_token, future.cancelled))
            except BaseException as error:  # noqa: BLE001 - it is the future's outcome
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            else:
                if future.set_running_or_notify_cancel():
                    future.set_result(rows)

        self._pool.submit(run)
        return future

    def logprobs(self, checkpoint: Path | None, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """See `Engine`."""
        return [scored_T.tolist() for scored_T in self._score(self._state(checkpoint), sequences)]

    def train(self, source: Path, target: Path, task: Task, callbacks: Callbacks) -> None:
        """See `Engine`. Results equal those of `LocalEngine` up to rounding. Outages are waited for."""
        for step in task.steps:
            for each in step.tokens:
                self._check(each.ids)
        start, reference = self._state(source), self._state(task.reference)
        score = partial(partial, self._score, cancelled=callbacks.cancelled)
        scores = score(start), score(None), score(reference)
        make = partial(self._create, optimizer=True, cancelled=callbacks.cancelled)
        trainer = TinkerTrainer(self._client, self._capabilities, start, make, scores, task, callbacks)
        made = trainer.train(SavedProgress(partial_of(target), task.key(source), self._least_seconds))
        self._keep(made.state, _Slot(made.model, made.sampler, self._client.steps))
        self._write(target, Place(**self._made_for, state=made.state, sampler=made.path))

    @contextmanager
    def trial(self, checkpoint: Path) -> Iterator[TinkerTrial]:
        """See `HasTrials`."""
        model = self._create(self._state(checkpoint))
        try:
            yield TinkerTrial(self._client, self._capabilities, model)
        finally:
            self._client.unload(model)

    def place(self, checkpoint: Path) -> str:
        """See `KeepsElsewhere`."""
        check_checkpoint(checkpoint)
        path = _read(checkpoint).sampler
        of_server = f"by the Tinker server at {self._client.url}"
        return f"{of_server}: !tinker checkpoint download {path}" if path else f"{of_server}, and is not trained yet"

    def forget(self, checkpoint: Path) -> None:
        """See `Engine`. The state stays on the server: a copy of the model may need it."""
        with self._lock:
            slot = self._slots.pop(self._states.pop(checkpoint, ""), None)
        if slot:
            self._client.unload(slot.model)

    def close(self) -> None:
        """See `Engine`. A second call does nothing."""
        for future in list(self._unfinished):
            future.cancel()
        self._client.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            slots = list(self._slots.values())
            self._slots.clear()
        for slot in slots:
            self._client.unload(slot.model)
        self._client.close()

    def _check(self, ids: Sequence[int]) -> None:
        """Raise RenderingError for ids that no server checks, although they make its results NaN."""
        if len(ids) > self.base.context:
            limit = f"the policy's context of {self.base.context:,}"
            raise RenderingError(f"a conversation of {len(ids):,} tokens is longer than {limit}")
        if not ids or min(ids) < 0 or max(ids) >= self.base.vocabulary:
            raise RenderingError(f"a conversation has no tokens, or some that are not below {self.base.vocabulary:,}")

    def _write(self, folder: Path, place: Place) -> None:
        with map_write_errors(folder):
            (folder / PLACE).write_text(place.model_dump_json())

    def _state(self, checkpoint: Path | None) -> str | None:
        if checkpoint is None:
            return None
        if checkpoint not in self._states:
            check_checkpoint(checkpoint)
            self._states[checkpoint] = _read(checkpoint).state
        return self._states[checkpoint]

    def _with_slot(self, state: str | None, work: Callable[[_Slot], Any]) -> Any:
        """Do some work with the model of a state, and again with a new model if the server has lost it."""
        for _ in range(_ATTEMPTS - 1):
            slot = self._slot(state)
            try:
                return work(slot)
            except LostModelError:
                with self._lock:
                    if self._slots.get(state) is slot:
                        del self._slots[state]
        return work(self._slot(state))

    def _slot(self, state: str | None) -> _Slot:
        if slot := self._find_slot(state):
            return slot
        with self._making:
            if slot := self._find_slot(state):
                return slot
            steps = self._client.steps
            model = self._create(state)
            slot = _Slot(model, self._client.sampler(model)[1], steps)
            self._keep(state, slot)
            return slot

    def _find_slot(self, state: str | None) -> _Slot | None:
        """Find the model of a state, unless steps of other models have shrunk it. A new adapter is 0, shrunk or not."""
        with self._lock:
            if not (slot := self._slots.get(state)):
                return None
            if state is None or slot.steps == self._client.steps or not self._capabilities.leaks:
                self._slots.move_to_end(state)
                return slot
            del self._slots[state]
        self._client.unload(slot.model)
        return None

    def _create(self, state: str | None, *, optimizer: bool = False, cancelled: Cancel = lambda: False) -> Any:
        """Make a model of a state. If there is no room, unload one that can be made again, or wait for sessions."""
        end, waits = time.monotonic() + _ROOM_SECONDS, False
        while True:
            try:
                return self._client.create(state, optimizer=optimizer, cancelled=cancelled)
            except NoRoomError as error:
                with self._lock:
                    oldest = self._slots.popitem(last=False)[1] if self._slots else None
                if oldest:
                    self._client.unload(oldest.model)
                elif time.monotonic() > end:
                    raise
                else:
                    if not waits:
                        waits = True
                        what = f"{self._client.url} has no room: waiting up to {_ROOM_SECONDS:g} s for sessions to end"
                        logging.getLogger(__name__).warning("%s, or give it %s", what, error.hint)
                    self._client.pause(_PAUSE, cancelled)
            except RefusedError as error:
                what = f"has no {state}" if state else "makes no new model"
                raise CheckpointError(f"the server {what}: {error.message}", hint=error.hint) from error

    def _keep(self, state: str | None, slot: _Slot) -> None:
        with self._lock:
            self._slots[state] = slot
            over = [self._slots.popitem(last=False)[1] for _ in range(len(self._slots) - self._most)]
        for each in over:
            self._client.unload(each.model)

    def _score(
        self, state: str | None, sequences: Sequence[TokenSequence], cancelled: Cancel | None = None
    ) -> list[Tensor]:
        """Score each trained token of each sequence; a sequence may have none."""
        scored = [torch.zeros(0) for _ in sequences]
        some = [i for i, sequence in enumerate(sequences) if sequence.trainable]
        ids = [list(sequences[i].ids) for i in some]
        for each in ids:
            self._check(each)
        answers = self._with_slot(state, lambda slot: self._client.logprobs(slot.model, ids, cancelled))
        for i, logprobs in zip(some, answers, strict=True):
            scored[i] = select_trained(logprobs, sequences[i])
        return scored

    def _complete(
        self, slot: _Slot, requests: Sequence[CompletionRequest], on_token: OnToken | None, cancelled: Cancel
    ) -> list[Completion]:
        starts = [request.forced[: request.max_tokens] for request in requests]
        forced = {(r.prompt, start) for r, start in zip(requests, starts, strict=True) if start}
        scored = {pair: self._client.logprobs(slot.model, [[*pair[0], *pair[1]]], cancelled)[0] for pair in forced}
        groups = _group_requests(requests)
        posted = [self._post(slot, group) for group in groups]
        try:
            sampled = [
                row
                for group, each in zip(groups, posted, strict=True)
                for row in (
                    self._client.await_samples(each, len(group), cancelled) if each else [([], [])] * len(group)
                )
            ]
        finally:
            for each in filter(None, posted):
                each.cancel()
        rows = []
        for request, start, (tokens, logprobs) in zip(requests, starts, sampled, strict=True):
            first = scored[request.prompt, start][len(request.prompt) - 1 :] if start else []
            pairs = zip([*start, *tokens], [*first, *logprobs], strict=True)
            rows.append(self._receiver.completion(request, starmap(SampledToken, pairs), on_token))
        return rows

    def _post(self, slot: _Slot, group: Sequence[CompletionRequest]) -> Any:
        """Post one request for the tokens of completions after their forced ones; None if there are no others."""
        first = group[0]
        start = first.forced[: first.max_tokens]
        if (room := first.max_tokens - len(start)) < 1:
            return None
        settings = Sampling(room, first.temperature, first.top_p, seed_of(first), sorted(self.base.end_ids))
        return self._client.sample(slot.sampler, [*first.prompt, *start], settings, len(group))


def _group_requests(requests: Sequence[CompletionRequest]) -> list[list[CompletionRequest]]:
    """Group requests that differ only in their index, which counts up by 1 as servers count up seeds."""
    numbered = enumerate(requests)
    alike = groupby(numbered, key=lambda each: (replace(each[1], index=0), each[1].index - each[0]))
    return [[request for _, request in group] for _, group in alike]


def _check_served(client: TinkerClient) -> None:
    if client.model not in (offered := client.models()):
        raise PolicyError(f"{client.url} serves {', '.join(offered) or 'no model'}, not {client.model}")


def _read(checkpoint: Path) -> Place:
    with map_read_errors(checkpoint):
        return Place.model_validate_json((checkpoint / PLACE).read_bytes())


def _unsupported(capabilities: Capabilities) -> dict[str, str]:
    if capabilities.clips:
        return _UNSUPPORTED
    if capabilities.clips is False:
        return {**_UNSUPPORTED, "max_grad_norm": "the Tinker server does not clip gradients"}
    return {**_UNSUPPORTED, "gradient clipping": "the Tinker server reports no gradient norm to see it by"}
