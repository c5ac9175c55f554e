"""Prompts of groups: the common beginning of a group's trajectories, and the key that identifies a prompt."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from sqlite3 import Connection
from typing import Any

from rolloutlab.api.wire.chat import Message
from rolloutlab.store.models import Group, dump_items


def fit_prompt(connection: Connection, group: Group, beginning: Sequence[Message]) -> Group:
    """Shorten the prompt of a group to what its trajectories and a new one share; return the group with it.

    The rest of a shortened prompt becomes a part of the stored trajectories. A group without trajectories takes the
    whole beginning. beginning: the messages before the first answer of the new trajectory.
    """
    (text,) = connection.execute("SELECT prompt FROM groups WHERE id = ?", (group.id,)).fetchone()
    members = connection.execute("SELECT id, items FROM trajectories WHERE group_id = ?", (group.id,)).fetchall()
    before: list[Any] = json.loads(text)
    own: list[Any] = json.loads(dump_items(beginning))
    shared = next((i for i, pair in enumerate(zip(before, own, strict=False)) if pair[0] != pair[1]), None)
    length = min(len(before), len(own)) if shared is None else shared
    if not members:
        length = len(own)
    elif length < len(before):
        rest = before[length:]
        moved = [(json.dumps([*rest, *json.loads(items)]), row_id) for row_id, items in members]
        connection.executemany("UPDATE trajectories SET items = ? WHERE id = ?", moved)
    if not members or length < len(before):
        prompt = dump_items(beginning[:length])
        connection.execute("UPDATE groups SET prompt = ? WHERE id = ?", (prompt, group.id))
    return replace(group, prompt=tuple(beginning[:length]))


def prompt_key(prompt: str, row: Mapping[str, Any], position: int, plan: Mapping[str, Any]) -> str:
    """Return the key that tells the prompts of groups apart.

    - Usually it is the messages as JSON.
    - With an environment, also its row; without a row the seed, because with one seed it begins in the same state.
    - With a program, the row alone, or else the seed: a program may put the task into any message, and text that
      changes from call to call into the first.

    prompt: the messages as JSON. row: the row of the group. position: its position. plan: the plan of the collection.
    """
    own = row or plan.get("seed", 0) + position
    if program := plan.get("program"):
        return json.dumps([program, own], sort_keys=True)
    return json.dumps([prompt, plan["env"], own], sort_keys=True) if plan.get("env") else prompt
