"""Logprobs of sequences that exist already, under any adapter."""

import threading
from collections.abc import Sequence

from rolloutlab.errors import RenderingError
from rolloutlab.policy.forward import Forward
from rolloutlab.policy.model import Adapter, Policy, write_adapter
from rolloutlab.policy.rendering import TokenSequence


class Scorer:
    """Scores on a copy of the policy of its own, beside sampling and training; one call at a time, others wait."""

    def __init__(self, policy: Policy) -> None:
        self._context = policy.context
        self._model = policy.carrier()
        self._forward = Forward(policy, self._model)
        self._lock = threading.Lock()

    def logprobs(self, adapter: Adapter, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """The logprob of each trained token of each sequence, in nats, of the unscaled full-vocabulary distribution.

        Raises:
            RenderingError: a sequence is longer than the policy's context.
        """
        longest = max(map(len, sequences), default=0)
        if longest > self._context:
            raise RenderingError(
                f"a conversation of {longest:,} tokens is longer than the policy's context of {self._context:,}"
            )
        with self._lock:
            write_adapter(self._model, adapter)
            return [scored_T.tolist() for scored_T in self._forward.logprobs(sequences)]
