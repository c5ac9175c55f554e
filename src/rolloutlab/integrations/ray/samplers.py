"""Samplers on the nodes of a Ray cluster: requests go to the least busy node, and again if a node is lost."""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from torch import nn

from rolloutlab.engines.engine import OnToken
from rolloutlab.engines.local import LocalInference
from rolloutlab.errors import PolicyError, ServiceError
from rolloutlab.integrations.ray.nodes import HINT, Loaded, Nodes, error_line, load
from rolloutlab.integrations.ray.plan import Streamed, Token, divide
from rolloutlab.policy.decode import Completion, CompletionRequest
from rolloutlab.policy.model import Adapter
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.settings import ModelSettings

T = TypeVar("T")
CACHED_ADAPTERS = 8
_WATCH_SECONDS = 5.0
"""Seconds between two looks at which nodes there are."""
_LONGEST_PAUSE = 300.0
"""The longest time before a sampler is started again on a node where none starts."""
_TRIES = 4


class RaySampler:
    """Samples and scores on one node; calls run in one event loop.

    adapters: a list with one reference into the object store, because Ray would fetch a bare one before each call.
    """

    def __init__(self) -> None:
        self._adapters: OrderedDict[Any, Adapter] = OrderedDict()
        self._computed = 0

    async def load(self, name: str, settings: ModelSettings, threads: int) -> Loaded:
        """Load the policy. Raises PolicyError."""
        policy, loaded = await asyncio.to_thread(load, name, settings, threads)
        for layer in _layers(policy.base):
            layer.register_forward_hook(self._count())  # copies of the base, which compute, have it too
        self._inference = LocalInference(policy, loaded.base)
        return loaded

    async def sample(
        self, adapters: list[Any], requests: Sequence[CompletionRequest], streamed: bool
    ) -> AsyncIterator[tuple[list[Token], list[Completion]]]:
        """Yield the tokens of each completion in order, if they are streamed, and at last the completions."""
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[Token | None]()

        def put(piece: Token | None) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def on_token(row: Completion) -> None:
            put((row.request.index, row.tokens[-1], row.logprobs[-1], row.top[-1] if row.top else []))

        future = self._inference.sample(await self._adapter(adapters[0]), requests, on_token if streamed else None)
        future.add_done_callback(lambda _: put(None))
        try:
            while piece := await pieces.get():
                waiting = [piece, *(pieces.get_nowait() for _ in range(pieces.qsize()))]
                yield [each for each in waiting if each], []
                if None in waiting:
                    break
            yield [], [replace(row, watch=None) for row in await asyncio.wrap_future(future)]
        finally:
            future.cancel()

    async def logprobs(self, adapters: list[Any], sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """Score as `Engine.logprobs` does."""
        return await asyncio.to_thread(self._inference.logprobs, await self._adapter(adapters[0]), sequences)

    async def count_computed(self) -> int:
        """Return how many layers were computed so far, for all requests."""
        return self._computed

    def _count(self) -> Callable[..., None]:
        def count(*_: object) -> None:
            self._computed += 1

        return count

    async def _adapter(self, reference: Any) -> Adapter:
        if reference not in self._adapters:
            self._adapters[reference] = await reference
        self._adapters.move_to_end(reference)
        adapter = self._adapters[reference]
        if len(self._adapters) > CACHED_ADAPTERS:
            self._adapters.popitem(last=False)
        return adapter


def _layers(base: nn.Module) -> list[nn.Module]:
    layers = [layer for each in base.modules() if isinstance(each, nn.ModuleList) for layer in each]
    return layers or list(base.modules())


class Samplers:
    """A sampler on each node that can load the policy. All methods run in one event loop.

    patience: seconds until a sampler that has work and computes no layer counts as hung, or a request gives up waiting
    for a node.
    """

    def __init__(self, nodes: Nodes, patience: float) -> None:
        self._nodes, self._patience = nodes, patience
        self.ready: dict[str, Any] = {}
        """Actors by node."""
        self._starting: dict[str, asyncio.Task[Loaded | None]] = {}
        self._guards: dict[str, asyncio.Task[None]] = {}
        self._pauses: dict[str, float] = {}
        """Seconds until another try, by node on which no sampler has started."""
        self._work: Counter[str] = Counter()
        """Tokens that each node may yet compute."""
        self._any, self._lost = asyncio.Event(), asyncio.Event()

    async def start(self) -> Loaded:
        """Start a sampler on each node; return what the first one has loaded.

        Raises:
            PolicyError, ServiceError: no node can sample.
        """
        self._recruit(await asyncio.to_thread(self._nodes.living))
        for first in asyncio.as_completed(list(self._starting.values())):
            if loaded := await first:
                return loaded
        raise self._nodes.no_node_error("no node of the cluster can sample")

    async def watch(self) -> None:
        """Keep a sampler on each node that lives, until cancelled."""
        while True:
            self._lost.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), _WATCH_SECONDS)
            with suppress(RayError):
                self._recruit(await asyncio.to_thread(self._nodes.living))

    async def sample(
        self, adapter: Any, requests: Sequence[CompletionRequest], on_token: OnToken | None
    ) -> list[Completion]:
        """As of `Engine`. adapter: a reference into the object store."""
        streamed = Streamed(requests, on_token) if on_token else None
        await self._wait()
        parts = divide([each.max_tokens for each in requests], {node: self._work[node] for node in self.ready})
        tasks = [
            asyncio.create_task(self._sample_part(node, adapter, [requests[i] for i in part], streamed))
            for node, part in parts.items()
        ]
        try:
            rows = chain.from_iterable(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
        return sorted(rows, key=lambda row: row.request.index)

    async def _sample_part(
        self, node: str, adapter: Any, requests: Sequence[CompletionRequest], streamed: Streamed | None
    ) -> list[Completion]:
        async def call(sampler: Any) -> list[Completion]:
            rows: list[Completion] = []
            items: Any = sampler.sample.options(num_returns="streaming").remote(
                [adapter], requests, streamed is not None
            )
            if streamed:
                streamed.begin(requests)
            try:
                async for item in items:
                    tokens, rows = await item
                    if streamed:
                        streamed.add(tokens)
            except asyncio.CancelledError:
                ray.cancel(items)
                raise
            return rows

        return await self._call(sum(each.max_tokens for each in requests), call, node)

    async def logprobs(self, adapter: Any, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """As of `Engine`. adapter: a reference into the object store."""

        async def call(sampler: Any) -> list[list[float]]:
            scored: list[list[float]] = await sampler.logprobs.remote([adapter], sequences)
            return scored

        return await self._call(sum(map(len, sequences)), call)

    async def _call(self, cost: int, function: Callable[[Any], Awaitable[T]], node: str | None = None) -> T:
        """Call the sampler of a node, or of the one with the least to do; if it is lost, call another one.

        Raises:
            ServiceError: there is none, or too many were lost. Other errors: as the function.
        """
        for _ in range(_TRIES):
            await self._wait()
            if node not in self.ready:
                node = min(self.ready, key=lambda each: self._work[each])
            self._work[node] += cost
            sampler = self.ready[node]
            try:
                return await function(sampler)
            except RayActorError as error:
                logging.getLogger(__name__).warning("a sampler was lost: %s", error_line(error))
                if self.ready.get(node) is sampler:
                    self._lose(node)
            except RayTaskError as error:
                raise error.cause from error
            finally:
                self._work[node] -= cost
        raise ServiceError(f"samplers were lost {_TRIES} times in one request", hint=HINT)

    async def _wait(self) -> None:
        """Wait until there is a sampler. Raises ServiceError after `patience` seconds."""
        try:
            await asyncio.wait_for(self._any.wait(), self._patience)
        except TimeoutError:
            raise ServiceError("no node of the cluster samples", hint=HINT) from None

    def _recruit(self, nodes: dict[str, int]) -> None:
        """Forget the samplers of lost nodes, and start one on each node that has none and is not refused."""
        for node in self.ready.keys() - nodes.keys():
            self._lose(node)
        for node in nodes.keys() - self.ready.keys() - self._starting.keys() - self._nodes.refused.keys():
            task = self._starting[node] = asyncio.create_task(self._load(node, nodes[node]))
            task.add_done_callback(partial(self._allow_restart, node))

    async def _load(self, node: str, threads: int) -> Loaded | None:
        """Start a sampler; return what it has loaded, or None if the node is lost or cannot load the policy."""
        sampler = self._nodes.actor(RaySampler, node, threads, max_concurrency=1000)
        try:
            loaded: Loaded = await sampler.load.remote(*self._nodes.policy, threads)
            self._nodes.check(node, "sampler", loaded)
        except PolicyError as error:
            self._nodes.refuse(node, error)
            return None
        except RayError as error:
            self._pauses[node] = min(2 * self._pauses.get(node, _WATCH_SECONDS / 2), _LONGEST_PAUSE)
            self._nodes.fail(node, "sampler", error)
            return None
        self._pauses.pop(node, None)
        self.ready[node] = sampler
        self._guards[node] = asyncio.create_task(self._guard(node, sampler))
        self._any.set()
        return loaded

    def _allow_restart(self, node: str, _task: object) -> None:
        """Allow another start on a node: after a pause if no sampler has started there, else at once."""
        asyncio.get_running_loop().call_later(self._pauses.get(node, 0.0), self._starting.pop, node)

    async def _guard(self, node: str, sampler: Any) -> None:
        """End a sampler that does not answer, or has work and computes nothing, so that its requests go elsewhere."""
        ask, before, since = sampler.count_computed, -1, time.monotonic()
        while self.ready.get(node) is sampler:
            try:
                computed = await asyncio.wait_for(ask.remote(), self._patience)
            except TimeoutError:
                break
            except RayError:
                return
            if computed != before or not self._work[node]:
                before, since = computed, time.monotonic()
            elif time.monotonic() - since >= self._patience:
                break
            await asyncio.sleep(min(_WATCH_SECONDS, self._patience / 4))
        if self.ready.get(node) is not sampler:
            return
        message = "the sampler on node %s has done nothing for %g s, and is started again"
        logging.getLogger(__name__).warning(message, self._nodes.addresses.get(node, node), self._patience)
        self._lose(node)
        ray.kill(sampler)

    def _lose(self, node: str) -> None:
        self.ready.pop(node)
        self._lost.set()
        if not self.ready:
            self._any.clear()
