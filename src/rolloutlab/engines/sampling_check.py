"""Check whether an engine samples from the right distribution, by its tokens and scored logprobs alone.

The rank of a token is the probability of all likelier ones, plus a random part of its own. If tokens are drawn from the
distribution that they are scored by, ranks are uniform from 0 to 1 (Rosenblatt 1952, doi 10.1214/aoms/1177729394).
"""

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random

import torch

from rolloutlab.engines.engine import Engine
from rolloutlab.objective.options import Options
from rolloutlab.objective.steps import TINY
from rolloutlab.policy.decode import Completion, CompletionRequest
from rolloutlab.policy.steps import Step, TrainingSequence
from rolloutlab.policy.token_sequence import TokenSequence

TIMEOUT = 600.0
"""The most seconds for one request: an engine elsewhere may load or compile first."""
_KNOWN, _DRAWS = 128, 384
"""Of the `_DRAWS` single tokens after each prompt, the first `_KNOWN` choose the tokens that are scored; the others are
ranked by these scores."""
_PLACES = (0.25, 0.5, 0.75, 0.95)
_FALSE_ALARM = 5e-5


def sequence(prompt: tuple[int, ...], ids: list[int], logprobs: list[float] | None = None) -> TokenSequence:
    """Make a sequence of a prompt and the trained tokens after it. logprobs: of the trained tokens; None is all 0."""
    trained = bytearray(len(prompt)) + bytearray([1] * len(ids))
    return TokenSequence(
        array("i", [*prompt, *ids]), trained, array("f", [0.0] * len(prompt) + (logprobs or [0.0] * len(ids)))
    )


def sequences(rows: Sequence[Completion]) -> list[TokenSequence]:
    """Make sequences of completions, with the logprobs that they were sampled with."""
    return [sequence(row.request.prompt, row.tokens, row.logprobs) for row in rows]


def step_of(row: list[TrainingSequence]) -> Step:
    """Make a step of one group. All of it trains, so that its loss is a mean over tokens."""
    return Step(row, sum(each.tokens.trainable for each in row) + TINY, 1)


def sampled_step(rows: Sequence[Completion]) -> Step:
    """Make a step of completions with the advantages 1 and -1 in turn."""
    return step_of([TrainingSequence(each, (1.0, -1.0)[i % 2], 1.0) for i, each in enumerate(sequences(rows))])


def aggregate(step: Step, options: Options) -> Step:
    """Give a step the weights and the divisor of another aggregation, as if more of its group did not train."""
    if options.loss_aggregation == "sequence_mean":
        return step
    members = len(step.sequences) + 2
    by_token = options.loss_aggregation == "token_mean"
    divisor = step.trained + 11.0 if by_token else members * (options.loss_scale_factor or 1.0)
    return Step([replace(each, weight=1.0) for each in step.sequences], divisor, step.groups)


def in_turns(step: Step) -> Step:
    """Give each answer of a step another advantage from its middle on, as if it had two turns."""
    first = [torch.arange(each.trainable) < each.trainable // 2 for each in step.tokens]
    pairs = zip(step.sequences, first, strict=True)
    return replace(step, sequences=[replace(s, advantage=torch.where(at_T, s.advantage, -0.5)) for s, at_T in pairs])


def sampled_divergence(engine: Engine, prompts: Sequence[tuple[int, ...]]) -> tuple[float, float]:
    """Sample single tokens after prompts; return the divergence of their ranks, and its limit."""
    uniform, random = list[float](), Random(0)
    for seed, prompt in enumerate(prompts):
        requests = [CompletionRequest(prompt, 1, seed=seed, index=i) for i in range(_DRAWS)]
        draws = [row.tokens[0] for row in engine.sample(None, requests).result(TIMEOUT)]
        known = list(dict.fromkeys(draws[:_KNOWN]))
        scored = engine.logprobs(None, [sequence(prompt, [token]) for token in known])
        logprobs = {token: logprob for token, (logprob,) in zip(known, scored, strict=True)}
        uniform += ranks(draws[_KNOWN:], logprobs, random)
    return divergence(uniform), limit(len(uniform))


def ranks(draws: Sequence[int], logprobs: Mapping[int, float], random: Random) -> list[float]:
    """Rank each draw. logprobs: of the tokens that are known; all other tokens are one class, which comes last."""
    likeliest = sorted(logprobs, key=lambda token: -logprobs[token])
    ends = [0.0, *accumulate(math.exp(logprobs[token]) for token in likeliest), 1.0]
    spans = dict(zip(likeliest, pairwise(ends), strict=False))
    return [random.uniform(*spans.get(draw, ends[-2:])) for draw in draws]


def divergence(ranks: Sequence[float]) -> float:
    """Compute the largest Kullback-Leibler divergence, over some places, of the share of ranks below from the place."""
    ordered = sorted(ranks)
    shares = [bisect_left(ordered, place) / len(ordered) for place in _PLACES]
    return max(_divergence(share, place) for share, place in zip(shares, _PLACES, strict=True))


def limit(count: int) -> float:
    """Return what the divergence of so many uniform ranks exceeds in less than 1 of 20,000 cases (Chernoff's bound)."""
    return math.log(2 * len(_PLACES) / _FALSE_ALARM) / count


def stop_of(texts: Sequence[str]) -> str | None:
    """Choose a stop string at which some completions will end: their most frequent letter; None if they have none."""
    letters = Counter(each for text in texts for each in text if each.isalpha())
    return max(letters, key=lambda letter: letters[letter], default=None)


def stop_fault(engine: Engine, rows: Sequence[Completion]) -> str:
    """Say how completions show that they do not end at an end token or a stop string; "" if they do not show it."""
    text, end_ids = engine.base.renderer().text, engine.base.end_ids
    stopped = 0
    for row in rows:
        if end_ids & {*row.tokens[:-1]}:
            return "a completion goes on after an end token"
        for stop in row.request.stops:
            if stop in text(row.tokens[:-1]):
                return f"a completion goes on after the stop string {stop!r}"
            if stop in text(row.tokens) and row.finish != "stop":
                return f"a completion that ends with the stop string {stop!r} is not finished by it"
        stopped += row.finish == "stop" and row.tokens[-1] not in end_ids
    return "" if stopped else "no completion ended with the stop string"


def _divergence(share: float, place: float) -> float:
    """Compute the Kullback-Leibler divergence of two distributions over two outcomes."""
    pairs = (share, place), (1 - share, 1 - place)
    return sum(p * math.log(p / q) for p, q in pairs if p > 0)
