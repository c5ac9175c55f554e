"""Completions that another server samples, in the form of those that are sampled in this process."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rolloutlab.engines.engine import OnToken
from rolloutlab.errors import ServiceError
from rolloutlab.policy.base import Base
from rolloutlab.policy.decode import Completion, CompletionRequest
from rolloutlab.policy.parsing import CompletionParser


class SampledToken(NamedTuple):
    """A token of a completion. top: the most likely tokens at its position with their logprobs, best first."""

    id: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()


def seed_of(request: CompletionRequest) -> int:
    """Compute a completion's seed, below 2**31. Like servers for the choices of a request, add 1 for each index."""
    return (int.from_bytes(hashlib.sha256(str(request.seed).encode()).digest()[:4]) >> 2) + request.index


class Receiver:
    """Makes completions of the tokens that arrive. Each ends at the first end token or stop string.

    Servers cut the text at a stop string, but return the tokens after it as well, and some go on sampling.
    """

    def __init__(self, base: Base) -> None:
        self._base = base
        self._parser = CompletionParser(base.tokenizer, base.renderer(), base.end_ids)

    def open(self, request: CompletionRequest, on_token: OnToken | None) -> "ReceivedCompletion":
        """Begin a completion that is fed with its tokens as they arrive. on_token: see `Engine.sample`."""
        return ReceivedCompletion(self._base, self._parser, request, on_token)

    def completion(
        self, request: CompletionRequest, tokens: Iterable[SampledToken], on_token: OnToken | None
    ) -> Completion:
        """Make a completion of all of its tokens. If nothing in them ends it, the server had no room for more."""
        received = self.open(request, on_token)
        if not received.feed(tokens):
            received.row.finish = "length"
        return received.row


class ReceivedCompletion:
    """A completion whose tokens arrive one after another."""

    def __init__(
        self, base: Base, parser: CompletionParser, request: CompletionRequest, on_token: OnToken | None
    ) -> None:
        self.row = Completion(request)
        self._base, self._on_token = base, on_token
        self._text = parser.stream(request.stops, ()) if request.stops else None

    def feed(self, tokens: Iterable[SampledToken]) -> bool:
        """Add tokens; return whether the completion has ended, so that further tokens are not part of it.

        Raises:
            ServiceError: the policy does not have a token.
        """
        row = self.row
        for token in tokens:
            if row.finish:
                break
            if not 0 <= token.id < self._base.vocabulary:
                raise ServiceError(
                    f"the server sampled token {token.id}, which the policy does not have", hint="another --policy"
                )
            row.tokens.append(token.id)
            row.logprobs.append(token.logprob)
            if row.request.top:
                row.top.append(list(token.top))
            if self._text:
                self._text.feed(token.id)
            if self._on_token:
                self._on_token(row)
            if token.id in self._base.end_ids or (self._text and self._text.stopped):
                row.finish = "stop"
            elif len(row.tokens) >= row.request.max_tokens:
                row.finish = "length"
        return row.finish is not None
