"""A tokenized history: its token ids, and which of them were sampled, with their logprobs."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from rolloutlab.api.wire.chat import TokenLogprob


@dataclass(frozen=True)
class TokenSequence:
    """A tokenized history. All arrays have one entry per token, nine bytes together.

    trained: 1 where the token was sampled and carries a logprob, else 0. logprobs: as sampled, in nats and rounded to
    fp32; 0 where not trained. turns: of a main history, the number of each sampled turn and the position of its first
    token; empty for other histories. reread: the position from which on turns may have been sampled after other tokens
    than these: the text of an earlier turn has other tokens, and no mark of the service says which were read.
    """

    ids: "array[int]" = field(default_factory=lambda: array("i"))
    trained: bytearray = field(default_factory=bytearray)
    logprobs: "array[float]" = field(default_factory=lambda: array("f"))
    turns: list[tuple[int, int]] = field(default_factory=list, compare=False)
    reread: int | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def trainable(self) -> int:
        """The number of trained tokens."""
        return sum(self.trained)

    def spans(self) -> list[tuple[int, slice]]:
        """Return each turn with its part, up to the next turn. Without turns, the whole sequence is the turn -1."""
        starts = [start for _, start in self.turns[1:]]
        parts = zip(self.turns, [*starts, len(self)], strict=True) if self.turns else [((-1, 0), len(self))]
        return [(turn, slice(start, end)) for (turn, start), end in parts]

    def extend(self, context: Sequence[int], ids: Sequence[int], sampled: Sequence[TokenLogprob]) -> None:
        """Append a turn: the ids of its context, and its sampled tokens with their ids. Forced ones are not trained."""
        self.ids.extend([*context, *ids])
        self.trained.extend([False] * len(context) + [not entry.forced for entry in sampled])
        self.logprobs.extend([0.0] * len(context) + [0.0 if entry.forced else entry.logprob for entry in sampled])
