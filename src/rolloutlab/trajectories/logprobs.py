"""Token ids and logprobs for imported conversations, which cannot be trained on without them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from rolloutlab.api.inference import score_histories
from rolloutlab.api.wire.chat import AssistantMessage, Choice, CompletionMessage, MessageOrChoice
from rolloutlab.api.wire.trajectories import History, ScoredHistories, ScoredHistory
from rolloutlab.connection import Connector
from rolloutlab.errors import NothingTrainsError, RefusedError
from rolloutlab.objective.preflight import count
from rolloutlab.settings import Address
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Group, Recorded, StoredCollection, StoredTrajectory

Score = Callable[[Sequence[History]], ScoredHistories]
"""A function that requests the logprobs of histories from the service."""

_BATCH = 32
"""Conversations that are scored in one request."""
_OMITTED = {"audio", "name", "weight", "content"}
"""Fields of an assistant message that a completion does not have; the content is converted."""


@dataclass
class Outcome:
    """The result for a collection.

    label: the new generation; empty if none was made.
    scored: the number of conversations that got logprobs.
    refused: the reasons of conversations that the policy cannot read, by name.
    """

    label: str = ""
    scored: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    def words(self) -> list[str]:
        """Describe to the user what was not done, in a line; empty if everything was."""
        if not self.label:
            return ["every conversation has logprobs already"]
        if not self.refused:
            return []
        name, why = next(iter(self.refused.items()))
        return [f"{count(len(self.refused), 'trajectory')} left without logprobs, the first {name}: {why}"]


def add_logprobs(lab: Lab, collection: StoredCollection, score: Score, done: Callable[[int], None]) -> Outcome:
    """Write a new generation of the collection in which every conversation has logprobs; rewards are kept.

    Conversations that have logprobs already are copied unchanged. If all have them, nothing is written, and neither
    after an error.

    Args:
        lab: the lab.
        collection: the collection.
        score: requests logprobs.
        done: called with the number of processed conversations after each batch.

    Raises:
        NothingTrainsError: the policy can read none of them. Errors of `score` are raised as well.
    """
    outcome = Outcome()
    with lab.draft() as draft:
        stored = ((group, each) for group in lab.each_group(collection) for each in group.trajectories)
        written = 0
        while batch := list(islice(stored, _BATCH)):
            draft.add(_score_batch(collection.name, batch, score, outcome))
            done(written := written + len(batch))
        if outcome.refused and not outcome.scored:
            message = f"nothing of {collection.label} gets logprobs: {next(iter(outcome.refused.values()))}"
            raise NothingTrainsError(message, hint=f"%group {collection.label}/0 shows it")
        if outcome.scored:
            (outcome.label,) = draft.publish()
    return outcome


def put_logprobs(items: Sequence[MessageOrChoice], scored: ScoredHistory, given: int = 0) -> Iterator[MessageOrChoice]:
    """Turn the policy's messages of a conversation into Choices that train. The first `given` items do not change."""
    turns = {turn.index: turn.logprobs for turn in scored.turns}
    for i, item in enumerate(items):
        if i < given or i not in turns:
            yield item
        elif isinstance(item, Choice):
            yield item if item.sampled_tokens() else item.model_copy(update={"logprobs": turns[i]})
        else:
            yield Choice(finish_reason="stop", index=0, message=_to_completion(item), logprobs=turns[i])


def _score_batch(
    name: str, batch: Sequence[tuple[Group, StoredTrajectory]], score: Score, outcome: Outcome
) -> Iterable[Recorded]:
    """Make the records of a batch, with the logprobs of conversations that have none yet."""
    scores = _score([trajectory for _, trajectory in batch if not trajectory.tokens], score, outcome)
    outcome.scored += len(scores)
    for group, trajectory in batch:
        copy = Recorded.copy_of(trajectory, group.prompt, name, group.position)
        recorded = replace(copy, position=int(trajectory.name.rpartition("/")[2]))
        yield _join(recorded, trajectory, *scores[trajectory.id]) if trajectory.id in scores else recorded


def _score(
    trajectories: Sequence[StoredTrajectory], score: Score, outcome: Outcome
) -> dict[int, tuple[str, list[ScoredHistory]]]:
    """Request the logprobs of trajectories in one request; if the service refuses that, of each one alone.

    Returns the model that scored each trajectory and its scored histories, by the id of the trajectory.
    """
    if not trajectories:
        return {}
    histories = [trajectory.histories() for trajectory in trajectories]
    try:
        response = score([each for some in histories for each in some])
    except RefusedError as error:
        if len(trajectories) > 1:
            return {key: value for each in trajectories for key, value in _score([each], score, outcome).items()}
        outcome.refused[trajectories[0].name] = error.message
        return {}
    data = iter(response.data)
    return {
        trajectory.id: (response.model, [next(data) for _ in some])
        for trajectory, some in zip(trajectories, histories, strict=True)
    }


def _join(recorded: Recorded, trajectory: StoredTrajectory, model: str, scored: Sequence[ScoredHistory]) -> Recorded:
    """Put logprobs into a record, with the checkpoint that they are from."""
    given = len(recorded.prompt)
    items = list(put_logprobs(trajectory.items, scored[0], given))[given:]
    further = [
        each.model_copy(
            update={"messages_and_choices": list(put_logprobs(each.messages_and_choices, history))}
        ).to_wire()
        for each, history in zip(trajectory.additional, scored[1:], strict=True)
    ]
    rest = {key: value for key, value in trajectory.extra.items() if not key.endswith("_policy_version")}
    extra = {**rest, **({"additional_histories": further} if further else {})}
    name, _, step = model.partition("@")
    own = (name, int(step)) if step.isdecimal() else (model, None)  # another service may call it `NAME@main`
    return replace(recorded, items=items, model=own[0], step=own[1], extra=extra)


def _to_completion(item: Any) -> CompletionMessage:
    """Convert an assistant message to the message of a completion, whose content is a single text."""
    assert isinstance(item, AssistantMessage)
    message = item.to_wire()
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", part.get("refusal", "")) for part in content)
    rest = {key: value for key, value in message.items() if key not in _OMITTED}
    return CompletionMessage.model_validate({**rest, **({} if content is None else {"content": content})})


def ask_service(
    connector: Connector, model: str, histories: Sequence[History], *, address: Address | None = None
) -> ScoredHistories:
    """Request the logprobs of histories under a model's newest checkpoint. address: by default the connector's."""
    return connector.http.run(score_histories(connector.http, address or connector.address(), model, histories))
