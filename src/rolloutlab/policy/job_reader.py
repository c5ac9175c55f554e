"""A job as it arrives: each trajectory becomes token sequences and is let go, however long the job is."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rolloutlab.api.wire.trajectories import History, Trajectory
from rolloutlab.errors import RenderingError
from rolloutlab.objective.advantages import Member
from rolloutlab.objective.preflight import sampling_warnings
from rolloutlab.policy.rendering import Renderer, TokenSequence


@dataclass(frozen=True)
class ReadJob:
    """What is kept of a job's trajectories: about nine bytes a token.

    members: per group, each trajectory as the objective sees it. sequences: per trajectory, over all groups, its
    histories that can train. digest: sha256 of all that the job says.
    """

    members: list[list[Member]]
    sequences: list[list[TokenSequence]]
    warnings: list[str]
    digest: bytes


@dataclass(frozen=True)
class Garbled:
    """A trajectory in which bytes are no text, with marks in their place; it is left out. place: of the first."""

    trajectory: Trajectory
    place: str


def read_job(
    groups: Iterable[Iterable[Trajectory | Garbled]], renderer: Renderer, context: int, read: Callable[[int], None]
) -> ReadJob:
    """Read groups once, in order; `read` is called after each trajectory with how many there were."""
    members: list[list[Member]] = []
    sequences: list[list[TokenSequence]] = []
    digest = hashlib.sha256()

    def trajectories() -> Iterator[Trajectory]:
        for g, group in enumerate(groups):
            members.append([])
            digest.update(b"group")
            for i, sent in enumerate(group):
                trajectory = sent.trajectory if isinstance(sent, Garbled) else sent
                digest.update(trajectory.to_json().encode())
                member, trains = _read(f"group {g}, trajectory {i}", sent, renderer, context)
                members[-1].append(member)
                sequences.append(trains)
                read(len(sequences))
                yield trajectory

    warnings = sampling_warnings(trajectories())
    return ReadJob(members, sequences, warnings + _partly_left_out(members), digest.digest())


def _read(
    name: str, sent: Trajectory | Garbled, renderer: Renderer, context: int
) -> tuple[Member, list[TokenSequence]]:
    """The trajectory as the objective sees it, and its histories that can train; none where a part is unreadable."""
    if isinstance(sent, Garbled):
        return Member(name, sent.trajectory.reward, (), unreadable=f"{sent.place}: its bytes are no text"), []
    histories: list[TokenSequence] = []
    for h, history in enumerate(sent.histories()):
        try:
            histories.append(_sequence(history, renderer))
        except RenderingError as error:
            place = f"additional_histories.{h - 1}." if h else ""
            return Member(name, sent.reward, (), unreadable=f"{place}{error.message}"), []
    fitting = [history for history in histories if len(history) <= context]
    member = Member(name, sent.reward, tuple(h.trainable for h in fitting), too_long=len(fitting) < len(histories))
    return member, [history for history in fitting if history.trainable]


def _sequence(history: History, renderer: Renderer) -> TokenSequence:
    sequence = renderer.sequence(history)
    if sequence.trained[:1] == b"\1":
        raise RenderingError("messages_and_choices: nothing comes before its first sampled token")
    return sequence


def _partly_left_out(members: list[list[Member]]) -> list[str]:
    return [
        f"{member.name}: a history longer than the policy's context is left out"
        for group in members
        for member in group
        if member.too_long and member.tokens
    ]
