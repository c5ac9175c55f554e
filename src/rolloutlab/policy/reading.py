"""A job as it arrives: each trajectory becomes token sequences and is let go, however long the job is."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rolloutlab.errors import RenderingError, TrainingError
from rolloutlab.objective.advantages import Member
from rolloutlab.objective.preflight import sampling_warnings
from rolloutlab.policy.rendering import Renderer, TokenSequence
from rolloutlab.wire.trajectories import Trajectory


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


def read_job(
    groups: Iterable[Iterable[Trajectory]], renderer: Renderer, context: int, read: Callable[[int], None]
) -> ReadJob:
    """Read groups once, in order; `read` is called after each trajectory with how many there were.

    Raises:
        TrainingError: a trajectory cannot be rendered as it was sampled.
    """
    members: list[list[Member]] = []
    sequences: list[list[TokenSequence]] = []
    digest = hashlib.sha256()

    def trajectories() -> Iterator[Trajectory]:
        for g, group in enumerate(groups):
            members.append([])
            digest.update(b"group")
            for i, trajectory in enumerate(group):
                digest.update(trajectory.to_json().encode())
                member, trains = _read(f"group {g}, trajectory {i}", trajectory, renderer, context)
                members[-1].append(member)
                sequences.append(trains)
                read(len(sequences))
                yield trajectory

    warnings = sampling_warnings(trajectories())
    return ReadJob(members, sequences, warnings + _partly_left_out(members), digest.digest())


def _read(name: str, trajectory: Trajectory, renderer: Renderer, context: int) -> tuple[Member, list[TokenSequence]]:
    try:
        histories = [renderer.sequence(history) for history in trajectory.histories()]
    except RenderingError as error:
        raise TrainingError(f"{name}: {error}") from error
    if any(history.trained[:1] == b"\1" for history in histories):
        raise TrainingError(f"{name}: nothing comes before its first sampled token", hint="another chat template")
    fitting = [history for history in histories if len(history) <= context]
    member = Member(
        name, trajectory.reward, tuple(h.trainable for h in fitting), too_long=len(fitting) < len(histories)
    )
    return member, [history for history in fitting if history.trainable]


def _partly_left_out(members: list[list[Member]]) -> list[str]:
    return [
        f"{member.name}: a history longer than the policy's context is left out"
        for group in members
        for member in group
        if member.too_long and member.tokens
    ]
