"""Prompts of groups: the common beginning of a group's trajectories, and the key that identifies a prompt."""

import json
from collections.abc import Mapping, Sequence
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


def prompt_key(prompt: str, row: Mapping[str, Any], position: int, plan: Mapping[str, Any]) -> str:
    """What tells the prompts of groups apart: their messages as JSON; with an environment, also the row it was made of.

    Without a row it is the seed: environments of one seed begin in the same state. Of a program it is the row alone: it
    may put the task into any message, and what changes from call to call into the first.
    """
    own = row or plan.get("seed", 0) + position
    if program := plan.get("program"):
        return json.dumps([program, own], sort_keys=True)
    return json.dumps([prompt, plan["env"], own], sort_keys=True) if plan.get("env") else prompt
