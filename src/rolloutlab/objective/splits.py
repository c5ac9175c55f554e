"""Division of conversations into training sequences, by the marks that the service gave to its choices.

A choice with `continues: false` was sampled from a prompt that does not begin with the tokens before it. That happens,
for example, if a chat template drops earlier reasoning. A job trains such a choice as the beginning of a new sequence.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rolloutlab.api.wire.chat import Choice
from rolloutlab.api.wire.reasoning import reasoning_of
from rolloutlab.api.wire.trajectories import History
from rolloutlab.objective.preflight import Seat, count

_DROPPED = "the template drops earlier reasoning"
_REWRITTEN = "the template does not keep earlier turns as they were sampled"


def turns_of(history: History) -> list[list[Choice]]:
    """The choices of a history that train, those of one sequence together."""
    turns: list[list[Choice]] = []
    for item in history.messages_and_choices:
        if isinstance(item, Choice) and item.sampled_tokens():
            if not turns or (item.model_extra or {}).get("continues") is False:
                turns.append([])
            turns[-1].append(item)
    return turns


def sequences_of(histories: Iterable[History]) -> int:
    """The number of sequences in which the histories train. A choice without a mark continues the one before."""
    return sum(map(len, map(turns_of, histories)))


def split_note(histories: Sequence[History]) -> str:
    """`3 sequences: the template drops earlier reasoning`, or nothing where each history is at most one sequence."""
    turns = [turns_of(history) for history in histories]
    if all(len(each) < 2 for each in turns):
        return ""
    # the template has changed the turns before the last split
    reasons = any(_reasons(choice) for each in turns for before in each[:-1] for choice in before)
    return f"{count(sum(map(len, turns)), 'sequence')}: {_DROPPED if reasons else _REWRITTEN}"


def split_warnings(seats: Iterable[Seat]) -> list[str]:
    """How many trajectories train in several sequences: a line per reason."""
    sequences: defaultdict[str, list[int]] = defaultdict(list)
    for seat in seats:
        if seat.split:
            sequences[seat.split.partition(": ")[2]].append(seat.sequences)
    return [
        f"{count(len(each), 'trajectory')} in {count(sum(each), 'sequence')}: {why}" for why, each in sequences.items()
    ]


def _reasons(choice: Choice) -> bool:
    message = choice.message
    return bool(reasoning_of(message.to_wire(), message.content or "")[0])
