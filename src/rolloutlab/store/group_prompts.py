"""Prompts of groups whose trajectories begin by themselves: what all of them begin with."""

import json
from collections.abc import Sequence
from dataclasses import replace
from sqlite3 import Connection
from typing import Any

from rolloutlab.api.wire.chat import Message
from rolloutlab.store.models import Group, dumped


def fit_prompt(connection: Connection, group: Group, beginning: Sequence[Message]) -> Group:
    """The group with the longest prompt that its trajectories and one with this beginning share.

    Where it gets shorter, the rest of it becomes a part of the trajectories that are there.
    """
    (text,) = connection.execute("SELECT prompt FROM groups WHERE id = ?", (group.id,)).fetchone()
    members = connection.execute("SELECT id, items FROM trajectories WHERE group_id = ?", (group.id,)).fetchall()
    before: list[Any] = json.loads(text)
    own: list[Any] = json.loads(dumped(beginning))
    shared = next((i for i, pair in enumerate(zip(before, own, strict=False)) if pair[0] != pair[1]), None)
    length = min(len(before), len(own)) if shared is None else shared
    if not members:
        length = len(own)
    elif length < len(before):
        rest = before[length:]
        moved = [(json.dumps([*rest, *json.loads(items)]), row_id) for row_id, items in members]
        connection.executemany("UPDATE trajectories SET items = ? WHERE id = ?", moved)
    if not members or length < len(before):
        prompt = dumped(beginning[:length])
        connection.execute("UPDATE groups SET prompt = ? WHERE id = ?", (prompt, group.id))
    return replace(group, prompt=tuple(beginning[:length]))
