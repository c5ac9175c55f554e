"""Search hits for further use: a conversation to continue, or a new collection to train on."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from rolloutlab.api.wire.chat import Choice
from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.prompt import parse_chat
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Group, Recorded, StoredTrajectory

_NAME = re.compile(r"(.+)/(\d{1,15})/(\d{1,15})")


class Branch(list[dict[str, Any]]):
    """The messages of a conversation up to a turn, as `chat` takes them."""

    def cell(self, name: str = "branch") -> str:
        """Return a cell that samples from these messages: a `%%chat` if it can express them, else a call of `lab.chat`.

        Raises:
            InputError: `name` is not a valid collection name.
        """
        Lab.check_name(name)
        text = "\n".join(f"{message['role']}: {message.get('content', '')}" for message in self)
        plain = all(set(message) == {"role", "content"} and isinstance(message["content"], str) for message in self)
        with suppress(InputError):
            if plain and "{{" not in text and parse_chat(text) == list(self):
                return f"%%chat {name} -n 8\n{text}"
        # only a function's messages are left as they are: elsewhere `{{name}}` is replaced by a value
        made = "lambda row: " if "{{" in text else ""
        return f"lab.chat({name!r}, {made}{list(self)!r}, n=8)"


def take_branch(lab: Lab, name: Any, turn: int | None = None) -> Branch:
    """Return the messages of a trajectory before one of its answers.

    turn: the index of that answer, from 0; by default the last.

    Raises:
        NotFoundError: no such trajectory. InputError: it has fewer answers.
    """
    stored = find_trajectory(lab, name)
    answers = [i for i, item in enumerate(stored.items) if isinstance(item, Choice)]
    if not answers:
        return Branch(stored.messages)
    keep = len(answers) - 1 if turn is None else turn
    if not isinstance(keep, int) or isinstance(keep, bool) or not 0 <= keep < len(answers):
        message = f"{stored.name} has {count(len(answers), 'answer')}, and none with the number {turn!r}"
        raise InputError(message, hint=f"turn={len(answers) - 1}")
    return Branch(stored.messages[: answers[keep]])


def find_trajectory(lab: Lab, name: Any) -> StoredTrajectory:
    """Find the trajectory of a name, such as `letters:1/0/3`; raise NotFoundError if there is none."""
    return _find_member(_find_group(lab, name), name)


def copy_trajectories(lab: Lab, names: Sequence[str], collection: str) -> str:
    """Copy trajectories, with their rewards, into a new generation of a collection; return its label.

    Trajectories of one group stay in one group, because they answer the same prompt.

    Raises:
        NotFoundError: a trajectory no longer exists, or there is none to copy. InputError: the name is not valid.
    """
    lab.check_name(collection)
    if not names:
        raise NotFoundError(f"the search has no hits to copy into {collection}", hint="another search")
    with lab.draft() as draft:
        draft.add(_copy(lab, names, collection))
        (label,) = draft.publish()
    return label


def _copy(lab: Lab, names: Sequence[str], collection: str) -> Iterator[Recorded]:
    groups: dict[str, Group] = {}
    for name in names:
        label = str(name).rpartition("/")[0]
        group = groups[label] = groups.get(label) or _find_group(lab, name)
        yield Recorded.copy_of(_find_member(group, name), group.prompt, collection, label)


def _find_group(lab: Lab, name: Any) -> Group:
    """Find the group that a trajectory's name begins with."""
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if not match:
        hint = "letters:1/0/3: the collection, the group, the position in it"
        raise InputError(f"{name!r} is not a trajectory name", hint=hint)
    groups = lab.groups(lab.find(match[1]), int(match[2]))
    if not groups:
        raise NotFoundError(f"there is no trajectory {name!r}", hint=f"%group {match[1]}/0")
    return groups[0]


def _find_member(group: Group, name: str) -> StoredTrajectory:
    for each in group.trajectories:
        if each.name.rpartition("/")[2] == name.rpartition("/")[2]:
            return each
    raise NotFoundError(f"there is no trajectory {name!r}", hint=f"%group {group.name}")
