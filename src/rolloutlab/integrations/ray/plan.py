"""Decisions of the Ray engine that need no cluster: how to divide requests, which nodes fit, what to report."""

from collections.abc import Iterable, Mapping, Sequence

from rolloutlab.engines.engine import OnToken
from rolloutlab.errors import Cancelled, InputError, PolicyError
from rolloutlab.policy.base import Base
from rolloutlab.policy.decode import Completion, CompletionRequest
from rolloutlab.policy.task import Callbacks
from rolloutlab.settings import ModelSettings

Token = tuple[int, int, float, list[tuple[int, float]]]
"""The index of a completion, a sampled token, its logprob, and the most likely tokens at its position."""


def divide(costs: Sequence[int], loads: Mapping[str, int]) -> dict[str, list[int]]:
    """Assign requests, in order, to the node with the least to do; return their positions by node."""
    work, parts = dict(loads), {node: list[int]() for node in loads}
    for position, cost in enumerate(costs):
        node = min(work, key=lambda each: work[each])
        parts[node].append(position)
        work[node] += cost
    return {node: part for node, part in parts.items() if part}


def check_address(url: str) -> None:
    """Raise InputError for the URL of another engine: a cluster is at HOST:PORT of its head."""
    if "://" in url:
        raise InputError(f"{url!r} is not the address of a Ray cluster", hint="HOST:PORT of its head, as 10.0.0.1:6379")


def with_dtype(settings: ModelSettings, *, gpus: bool) -> ModelSettings:
    """Set one precision for all nodes, because devices have different defaults. gpus: whether any node has a GPU."""
    on_gpu = gpus if settings.device is None else settings.device == "cuda"
    dtype = settings.dtype or ("bfloat16" if on_gpu else "float32")
    return settings.model_copy(update={"dtype": dtype})


def check_same(base: Base, first: Base) -> None:
    """Raise PolicyError if a node has loaded another policy than the first node, or the same with other options."""
    if base.bound_options != first.bound_options:
        loaded, others = (" ".join(each.bound_options) or "the default settings" for each in (base, first))
        message = f"the policy {base.name!r} has {loaded} there, and {others} on other nodes"
        raise PolicyError(message, hint="the same rolloutlab on each node, and --dtype")
    if base.fingerprint != first.fingerprint:
        raise PolicyError(f"the policy {base.name!r} is another there", hint="the same files and versions on each node")


class ReportOnce:
    """Passes on each gradient step once, although trainers that begin again report earlier steps as well.

    steps: how many were passed on.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self.steps = self._step = 0

    def begin(self) -> None:
        """Begin an attempt, whose steps are counted from 0."""
        self._step = 0

    def report(self, kind: str, data: dict[str, object]) -> None:
        """Pass on an event of this attempt, unless it was passed on before. Raises Cancelled."""
        if kind == "step_progress" and self._step < self.steps:
            return
        if kind == "gradient_step":
            self._step += 1
            if self._step <= self.steps:
                return
            self.steps = self._step
        self._callbacks.report(kind, data)

    def raise_if_cancelled(self) -> None:
        """Raises Cancelled."""
        if self._callbacks.cancelled():
            raise Cancelled


class Streamed:
    """Completions that grow by the tokens of a stream. One that begins again passes no token on twice."""

    def __init__(self, requests: Sequence[CompletionRequest], on_token: OnToken) -> None:
        self._rows = {request.index: Completion(request) for request in requests}
        self._on_token = on_token
        self._position = dict.fromkeys(self._rows, 0)

    def begin(self, requests: Sequence[CompletionRequest]) -> None:
        """Begin an attempt at some of the completions."""
        self._position.update({request.index: 0 for request in requests})

    def add(self, tokens: Iterable[Token]) -> None:
        for index, token_id, logprob, top in tokens:
            row, self._position[index] = self._rows[index], self._position[index] + 1
            if self._position[index] > len(row.tokens):
                row.tokens.append(token_id)
                row.logprobs.append(logprob)
                row.top.append(top)
                self._on_token(row)
