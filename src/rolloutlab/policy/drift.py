"""Turns that were sampled after other tokens than they are trained after: found by their ratios before the first step.

A service that has forgotten an earlier answer, or never knew its tokens, reads its text: tokenized again, it is often
not the same tokens. A client seldom keeps whether that was so, and what was sampled after the right tokens has the same
text. What tells is the recorded logprobs: before the first step those of fresh turns are those of the policy.
"""

from collections.abc import Sequence

import torch

from rolloutlab.objective.preflight import count
from rolloutlab.policy.forward import Forward
from rolloutlab.policy.packing import trained_positions
from rolloutlab.policy.steps import Step, recorded
from rolloutlab.policy.task import Callbacks
from rolloutlab.policy.token_sequence import TokenSequence

_MOST = 256
"""Conversations that are looked at: each costs a third of its training."""
_AT_ONCE = 16
_LEAST = 0.1
"""Nats between two logprobs of a token that rounding does not explain."""


def report_drift(forward: Forward, steps: Sequence[Step], callbacks: Callbacks) -> None:
    """Report `drift` if later turns have other logprobs than recorded, and the turns before them have those."""
    every = [s.tokens for step in steps for s in step.sequences if s.tokens.reread is not None]
    sequences, drifted = every[:_MOST], list[int]()
    for first in range(0, len(sequences), _AT_ONCE):
        callbacks.raise_if_cancelled()
        part = sequences[first : first + _AT_ONCE]
        drifted += [_drifted(tokens, new_T) for tokens, new_T in zip(part, forward.logprobs(part), strict=True)]
    if any(drifted):
        conversations = sum(map(bool, drifted))
        of = f"{conversations:,} of {count(len(sequences), 'conversation')}" + " looked at" * (len(every) > _MOST)
        tokens = count(sum(drifted), "token")
        what = f"{tokens} of later turns, in {of}, were sampled after other tokens than they train after"
        why = "the service had forgotten an earlier answer, and read its text"
        warning = f"{what}: {why}. Their ratios are not 1 -> send token_ids back with earlier answers, or sample again"
        report = {"tokens": sum(drifted), "conversations": conversations, "warnings": [warning]}
        callbacks.report("drift", report)


def _drifted(tokens: TokenSequence, new_T: torch.Tensor) -> int:
    """How many tokens of the turns in question are off by more than any token before them."""
    delta_T = (new_T.cpu() - recorded(tokens)).abs().nan_to_num(0.0)
    assert tokens.reread is not None
    later_T = trained_positions(tokens) >= tokens.reread
    before_T = delta_T[~later_T]
    limit = max(_LEAST, 2 * float(before_T.max())) if len(before_T) else _LEAST  # of another checkpoint, all are off
    return int((delta_T[later_T] > limit).sum())
