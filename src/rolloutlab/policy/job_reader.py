"""Streaming reader of a training job: each trajectory is tokenized and dropped, so that memory stays bounded."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from rolloutlab.api.wire.chat import Choice
from rolloutlab.api.wire.trajectories import History, Trajectory
from rolloutlab.errors import RenderingError
from rolloutlab.objective.advantages import Member
from rolloutlab.objective.credit import turns
from rolloutlab.objective.preflight import is_truncated, odd_settings, sampling_warnings
from rolloutlab.policy.rendering import Renderer
from rolloutlab.policy.token_sequence import TokenSequence


@dataclass(frozen=True)
class ReadJob:
    """What training needs of a job, without its texts: about nine bytes per token.

    members: per group, the trajectories for the objective. sequences: per trajectory, over all groups, its trainable
    histories. at_one: per trajectory, whether it was sampled at temperature and top_p 1. digest: SHA-256 of the
    trajectories.
    """

    members: list[list[Member]]
    sequences: list[list[TokenSequence]]
    at_one: list[bool]
    warnings: list[str]
    digest: bytes


@dataclass(frozen=True)
class Garbled:
    """A trajectory with undecodable text, replaced by marks; it does not train. path: where the first mark is."""

    trajectory: Trajectory
    path: str


Item = Trajectory | Garbled
Groups = Iterable[Iterable[Item]]


def read_job(groups: Groups, renderer: Renderer, context: int, progress: Callable[[int], None]) -> ReadJob:
    """Read groups once, in order. progress: called after each trajectory with their number so far."""
    members: list[list[Member]] = []
    sequences: list[list[TokenSequence]] = []
    at_one: list[bool] = []
    digest = hashlib.sha256()

    def trajectories() -> Iterator[Trajectory]:
        for g, group in enumerate(groups):
            members.append([])
            digest.update(b"group")
            for i, item in enumerate(group):
                trajectory = item.trajectory if isinstance(item, Garbled) else item
                digest.update(trajectory.to_json().encode())
                member, histories = _tokenize(f"group {g}, trajectory {i}", item, renderer, context)
                members[-1].append(member)
                sequences.append(histories)
                at_one.append(not odd_settings(trajectory))
                progress(len(sequences))
                yield trajectory

    warnings = sampling_warnings(trajectories())
    cut = (member.name for group in members for member in group if member.too_long and member.tokens)
    warnings += [f"{name}: a history longer than the policy's context is left out" for name in cut]
    return ReadJob(members, sequences, at_one, warnings, digest.digest())


def _tokenize(name: str, item: Item, renderer: Renderer, context: int) -> tuple[Member, list[TokenSequence]]:
    """Return a trajectory as the objective needs it, and its trainable histories; none if a part is unreadable."""
    if isinstance(item, Garbled):
        return _unreadable(name, item.trajectory, f"{item.path}: its bytes are not valid text")
    histories: list[TokenSequence] = []
    for h, history in enumerate(item.histories()):
        try:
            sequences = _read_history(history, renderer)
        except RenderingError as error:
            return _unreadable(name, item, f"{f'additional_histories.{h - 1}.' if h else ''}{error.message}")
        histories += [replace(each, turns=[]) for each in sequences] if h else sequences
    fitting = [history for history in histories if len(history) <= context]
    tokens_K = Counter[int]()
    for sequence in fitting:
        tokens_K.update({turn: sum(sequence.trained[part]) for turn, part in sequence.spans()})
    answers = _answers(item)
    turns_K = turns(item.reward, item.metrics, [tokens_K[k] for k in range(len(answers))])
    tokens_H = tuple(h.trainable for h in fitting)
    too_long, truncated = len(fitting) < len(histories), is_truncated(answers)
    member = Member(name, item.reward, tokens_H, too_long=too_long, turns=turns_K, truncated=truncated)
    return member, [history for history in fitting if history.trainable]


def _unreadable(name: str, item: Trajectory, what: str) -> tuple[Member, list[TokenSequence]]:
    turns_K = turns(item.reward, item.metrics, [0] * len(_answers(item)))
    return Member(name, item.reward, (), unreadable=what, turns=turns_K), []


def _answers(item: Trajectory) -> list[Choice]:
    """Return the sampled answers of the main history."""
    return [each for each in item.messages_and_choices if isinstance(each, Choice)]


def _read_history(history: History, renderer: Renderer) -> list[TokenSequence]:
    """Return a history as sequences. Raises RenderingError if nothing is before a sequence's first sampled token."""
    sequences = renderer.sequences(history)
    if any(sequence.trained[:1] == b"\1" for sequence in sequences):
        raise RenderingError("messages_and_choices: the first sampled token has no context")
    return sequences
