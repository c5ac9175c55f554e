"""Labs with collections that no policy has sampled."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rolloutlab.api.wire.chat import Choice, UserMessage
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, CollectionSummary, NewGroup, Score


def completion(answer: str, tokens: Iterable[str] = ("a", "a"), **overrides: Any) -> Choice:
    """A sampled completion; its tokens need not be those of its text."""
    content = [{"token": token, "logprob": -0.5, "top_logprobs": []} for token in tokens]
    return without_logprobs(answer, **{"logprobs": {"content": content}, **overrides})


def without_logprobs(answer: str, **overrides: Any) -> Choice:
    """A completion without its tokens, so that nothing of it trains."""
    message = {"role": "assistant", "content": answer}
    return Choice.model_validate({"finish_reason": "stop", "index": 0, "message": message, **overrides})


def lab_with(
    lab: Lab,
    *groups: Sequence[Any],
    name: str = "capitals",
    prompts: Sequence[NewGroup] | None = None,
    rewards: Iterable[float | None] = (),
    make: Callable[[str], Choice] = completion,
    model: str = "lab/practice",
    step: int = 0,
    sampling: dict[str, Any] | None = None,
    **arrival: Any,
) -> CollectionSummary:
    """Put a new collection into a lab: the answers of each group, which are texts, choices or lists of items.

    rewards: of its trajectories in their order, None for one that has none. make: the completion of a text.
    arrival: further fields of every `Arrival`.
    """
    collection = lab.open_collection(name)
    lab.keep_name(name, collection.id)  # as sampling does
    if prompts is None:
        prompts = [NewGroup([UserMessage(role="user", content=f"Question {i}?")], {}) for i in range(len(groups))]
    for group, answers in zip(lab.add_groups(collection, prompts), groups, strict=True):
        items = [[make(each)] if isinstance(each, str) else each for each in answers]
        items = [[each] if isinstance(each, Choice) else each for each in items]
        arrivals = [Arrival(i, each, **arrival) for i, each in enumerate(items)]
        lab.put(group, arrivals, model=model, step=step, sampling=sampling or {})
    trajectories = [t for group in lab.groups(collection, unfinished=True) for t in group.trajectories]
    scores = [Score(t, r) for t, r in zip(trajectories, rewards, strict=False) if r is not None]
    if scores:
        lab.rewards.give(scores, "function")
    return lab.collection(collection.label)
