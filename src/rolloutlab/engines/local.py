"""The engine of this process: torch on one device."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Lock

from rolloutlab.engines.engine import OnToken, partial_of
from rolloutlab.policy.base import Base
from rolloutlab.policy.checkpoints import State, read_checkpoint, same_shapes, write_state
from rolloutlab.policy.decode import Completion, CompletionRequest, Finish
from rolloutlab.policy.forward import Scorer
from rolloutlab.policy.model import Adapter, Policy, base_of, read_adapter
from rolloutlab.policy.parsing import CompletionParser
from rolloutlab.policy.progress import Progress
from rolloutlab.policy.sampler import Sampler, Watch
from rolloutlab.policy.share import release_memory
from rolloutlab.policy.task import Callbacks, Task
from rolloutlab.policy.threads import Threads, end_helpers
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.policy.trainer import take_steps

_CACHED_ADAPTERS = 8


class LocalInference:
    """Samples and scores a policy in this process, under the adapter that each call is given."""

    def __init__(self, policy: Policy, base: Base, threads: Threads | None = None) -> None:
        self._threads = threads or Threads()
        self._sampler = Sampler(policy, threads=self._threads)
        self._scorer = Scorer(policy)
        self._parser = CompletionParser(policy.tokenizer, base.renderer(), policy.end_ids)

    def sample(
        self, adapter: Adapter, requests: Sequence[CompletionRequest], on_token: OnToken | None
    ) -> Future[list[Completion]]:
        """Sample as `Engine.sample` does."""
        return self._sampler.submit(adapter, requests, lambda request: self._watch(request.stops, on_token))

    def logprobs(self, adapter: Adapter, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """Score as `Engine.logprobs` does."""
        self._threads.take_for_sampling()
        try:
            return self._scorer.logprobs(adapter, sequences)
        finally:
            end_helpers()

    def close(self) -> None:
        """Stop, and cancel unfinished futures."""
        self._sampler.close()

    def _watch(self, stops: Sequence[str], on_token: OnToken | None) -> Watch | None:
        """Make what passes tokens on and ends a completion at a stop string; None if neither is wanted."""
        if not stops and on_token is None:
            return None
        text = self._parser.stream(stops, ()) if stops else None

        def watch(row: Completion) -> Finish | None:
            if text:
                text.feed(row.tokens[-1])
            if on_token:
                on_token(row)
            return "stop" if text and text.stopped else None

        return watch


class LocalEngine:
    """Samples and trains a policy in this process. Training has its own copy of the model.

    least_seconds: see `Progress`.
    """

    name = "local"
    unsupported: Mapping[str, str] = {}

    def __init__(self, policy: Policy, *, least_seconds: float | None = None) -> None:
        self.base = base_of(policy)
        self._policy = policy
        self._least_seconds = least_seconds
        self._model = policy.training_copy()
        self._initial = State(read_adapter(self._model), {})
        self._adapters: OrderedDict[Path, Adapter] = OrderedDict()
        self._lock = Lock()
        self._threads = Threads()
        self._inference = LocalInference(policy, self.base, self._threads)
        end_helpers()  # loading the policy has started some

    def status(self) -> Mapping[str, str]:
        """See `Engine`."""
        return {"device": str(self._policy.device)}

    def create_initial(self, folder: Path) -> None:
        """See `Engine`."""
        write_state(folder, self._initial, self._policy.lora)

    def fits(self, checkpoint: Path) -> bool:
        """See `Engine`."""
        return same_shapes(read_checkpoint(checkpoint).adapter, self._initial.adapter)

    def sample(
        self, checkpoint: Path | None, requests: Sequence[CompletionRequest], on_token: OnToken | None = None
    ) -> Future[list[Completion]]:
        """See `Engine`."""
        return self._inference.sample(self._adapter(checkpoint), requests, on_token)

    def logprobs(self, checkpoint: Path | None, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """See `Engine`."""
        return self._inference.logprobs(self._adapter(checkpoint), sequences)

    def train(self, source: Path, target: Path, task: Task, callbacks: Callbacks) -> None:
        """See `Engine`. The result is bit-identical for the same task, wherever it was interrupted."""
        start = read_checkpoint(source)
        reference = self._adapter(task.reference) if task.reference else None
        progress = Progress(partial_of(target), task.key(source), self._least_seconds)
        try:
            with self._threads.training():
                state = take_steps(self._policy, self._model, start, task, callbacks, reference, progress)
            write_state(target, state, self._policy.lora)
        finally:
            release_memory()

    def forget(self, checkpoint: Path) -> None:
        """See `Engine`."""
        with self._lock:
            self._adapters.pop(checkpoint, None)

    def close(self) -> None:
        """See `Engine`."""
        self._inference.close()

    def _adapter(self, checkpoint: Path | None) -> Adapter:
        """Return the adapter of a checkpoint, from an LRU cache."""
        if checkpoint is None:
            return self._initial.adapter
        with self._lock:
            if checkpoint not in self._adapters:
                self._adapters[checkpoint] = read_checkpoint(checkpoint).adapter
            self._adapters.move_to_end(checkpoint)
            if len(self._adapters) > _CACHED_ADAPTERS:
                self._adapters.popitem(last=False)
            return self._adapters[checkpoint]
