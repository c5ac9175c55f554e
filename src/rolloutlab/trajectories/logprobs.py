"""Token ids and logprobs for imported conversations, which have none and need them to be trained on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from rolloutlab.api.logprobs import score as scored_by
from rolloutlab.api.wire.chat import AssistantMessage, Choice, CompletionMessage, MessageOrChoice
from rolloutlab.api.wire.trajectories import History, ScoredHistories, ScoredHistory
from rolloutlab.connection import Connector
from rolloutlab.errors import NothingTrainsError, RefusedError
from rolloutlab.objective.preflight import count
from rolloutlab.settings import Address
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Group, Recorded, StoredCollection, StoredTrajectory

Score = Callable[[Sequence[History]], ScoredHistories]
"""Asks the service about some histories."""

_BATCH = 32
_NOT_SAID = {"audio", "name", "weight", "content"}


@dataclass
class Outcome:
    """What became of a collection. label: its new generation, empty when there is none. refused: conversations that the
    policy cannot read, and why.
    """

    label: str = ""
    scored: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    def words(self) -> list[str]:
        """A line for a person about what is not as expected, if anything is."""
        if not self.label:
            return ["every conversation has logprobs already"]
        if not self.refused:
            return []
        name, why = next(iter(self.refused.items()))
        return [f"{count(len(self.refused), 'trajectory')} left without logprobs, the first {name}: {why}"]


def add_logprobs(lab: Lab, collection: StoredCollection, score: Score, done: Callable[[int], None]) -> Outcome:
    """Write a new generation of the collection in which every conversation has logprobs; rewards are kept.

    Conversations that have some already are kept as they are; where all have, nothing is written. `done` gets how many
    are looked at, again and again.

    Raises:
        NothingTrainsError: the policy can read none of them; and all that `score` raises. Nothing is written then.
    """
    outcome = Outcome()
    with lab.draft() as draft:
        stored = ((group, each) for group in lab.each_group(collection) for each in group.trajectories)
        written = 0
        while batch := list(islice(stored, _BATCH)):
            draft.add(_scored(collection.name, batch, score, outcome))
            done(written := written + len(batch))
        if outcome.refused and not outcome.scored:
            raise NothingTrainsError(
                f"nothing of {collection.label} gets logprobs: {next(iter(outcome.refused.values()))}",
                hint=f"%group {collection.label}/0 shows it",
            )
        if outcome.scored:
            (outcome.label,) = draft.publish()
    return outcome


def with_logprobs(items: Sequence[MessageOrChoice], scored: ScoredHistory, given: int = 0) -> Iterator[MessageOrChoice]:
    """The conversation with what the policy said as Choices that train. The first `given` items stay as they are."""
    turns = {turn.index: turn.logprobs for turn in scored.turns}
    for i, item in enumerate(items):
        if i < given or i not in turns:
            yield item
        elif isinstance(item, Choice):
            yield item if item.sampled_tokens() else item.model_copy(update={"logprobs": turns[i]})
        else:
            yield Choice(finish_reason="stop", index=0, message=_said(item), logprobs=turns[i])


def _scored(
    name: str, batch: Sequence[tuple[Group, StoredTrajectory]], score: Score, outcome: Outcome
) -> Iterable[Recorded]:
    """The batch for a new generation, scored together or, when the service refuses that, each alone."""
    wanted = [trajectory for _, trajectory in batch if not trajectory.tokens]
    answers = _asked(wanted, score, outcome)
    outcome.scored += len(answers)
    for group, trajectory in batch:
        recorded = _recorded(name, group, trajectory)
        yield _joined(recorded, trajectory, *answers[trajectory.id]) if trajectory.id in answers else recorded


def _asked(
    wanted: Sequence[StoredTrajectory], score: Score, outcome: Outcome
) -> dict[int, tuple[str, list[ScoredHistory]]]:
    """By the id of each trajectory, the model that answered and what it said of its histories."""
    if not wanted:
        return {}
    histories = [trajectory.histories() for trajectory in wanted]
    try:
        answer = score([each for some in histories for each in some])
    except RefusedError as error:
        if len(wanted) > 1:
            return {key: found for each in wanted for key, found in _asked([each], score, outcome).items()}
        outcome.refused[wanted[0].name] = error.message
        return {}
    data = iter(answer.data)
    return {
        trajectory.id: (answer.model, [next(data) for _ in some])
        for trajectory, some in zip(wanted, histories, strict=True)
    }


def _recorded(name: str, group: Group, trajectory: StoredTrajectory) -> Recorded:
    copy = Recorded.copy_of(trajectory, group.prompt, name, group.position)
    return replace(copy, position=int(trajectory.name.rpartition("/")[2]))


def _joined(recorded: Recorded, trajectory: StoredTrajectory, model: str, scored: Sequence[ScoredHistory]) -> Recorded:
    given = len(recorded.prompt)
    items = list(with_logprobs(trajectory.items, scored[0], given))[given:]
    further = [
        each.model_copy(
            update={"messages_and_choices": list(with_logprobs(each.messages_and_choices, found))}
        ).to_wire()
        for each, found in zip(trajectory.additional, scored[1:], strict=True)
    ]
    kept = {key: value for key, value in trajectory.extra.items() if not key.endswith("_policy_version")}
    extra = {**kept, **({"additional_histories": further} if further else {})}
    name, _, step = model.partition("@")
    return replace(recorded, items=items, model=name, step=int(step) if step else None, extra=extra)


def _said(item: Any) -> CompletionMessage:
    """An assistant's message as a model says it: its content one text."""
    assert isinstance(item, AssistantMessage)
    message = item.to_wire()
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", part.get("refusal", "")) for part in content)
    kept = {key: value for key, value in message.items() if key not in _NOT_SAID}
    return CompletionMessage.model_validate({**kept, **({} if content is None else {"content": content})})


def ask_service(
    connector: Connector, model: str, histories: Sequence[History], *, address: Address | None = None
) -> ScoredHistories:
    """The logprobs of some histories under a model's newest checkpoint; address: by default the present service's."""
    return connector.http.run(scored_by(connector.http, address or connector.address(), model, histories))
