"""What is known of a base model without its weights."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

from transformers import PreTrainedTokenizerBase

from rolloutlab.policy.parsing import CompletionParser
from rolloutlab.policy.rendering import Renderer
from rolloutlab.policy.template_date import DATE

_CONTEXT = "max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length"


def context_of(config: Any) -> int:
    """Return how many tokens a model can read, by any name that configurations have for it; 0 if none is there."""
    return next((int(most) for name in _CONTEXT if (most := getattr(config, name, None))), 0)


@dataclass(frozen=True)
class Base:
    """A base model, as what is above the engines needs it.

    fingerprint: differs for other weights under the same name. context: maximum tokens of a conversation, prompt and
    completion together. vocabulary: the number of different tokens that can be sampled. end_ids: tokens that end a
    turn. learning_rate, groups_per_step: defaults of a job. batch_tokens: maximum tokens of a batch, unless a single
    sequence has more. bound_options: options of `rolloutlab serve` without which checkpoints would have other tensors
    or another scale, or prompts another date. template_date: what the chat template prints as the current date. about:
    lines about how it was loaded. source: what `transformers` loads, a folder or a hub name; empty if that is not
    known. merged: the source is an adapter folder, merged into its base.
    """

    name: str
    fingerprint: str
    tokenizer: PreTrainedTokenizerBase
    context: int
    vocabulary: int
    end_ids: frozenset[int]
    learning_rate: float
    batch_tokens: int
    groups_per_step: int = 8
    bound_options: tuple[str, ...] = ()
    template_date: date = DATE
    about: tuple[str, ...] = ()
    source: str = ""
    merged: bool = False

    def notes(self) -> list[str]:
        """Return lines about the policy that its user should know at the start of a service."""
        marks = CompletionParser(self.tokenizer, self.renderer(), self.end_ids).unread_marks
        unread = (
            f"{self.name} may write reasoning with {marks[0]!r}, which is not read: it is part of the answer"
            if marks
            else ""
        )
        return [*self.about, *([unread] if unread else [])]

    def renderer(self, context: int | None = None, check: Callable[[], None] = lambda: None) -> Renderer:
        """Make a renderer of conversations for this base. context, check: see `Renderer`."""
        return Renderer(self.tokenizer, self.end_ids, self.vocabulary, context, self.template_date, check)
