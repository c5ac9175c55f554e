"""Prompts of groups: what tells them apart."""

import json
from collections.abc import Mapping
from typing import Any


def prompt_key(prompt: str, row: Mapping[str, Any], position: int, plan: Mapping[str, Any]) -> str:
    """What tells the prompts of groups apart: their messages as JSON; with an environment, also the row it was made of.

    Without a row it is the seed: environments of one seed begin in the same state. Of a program it is the row alone: it
    may put the task into any message, and what changes from call to call into the first.
    """
    own = row or plan.get("seed", 0) + position
    if program := plan.get("program"):
        return json.dumps([program, own], sort_keys=True)
    return json.dumps([prompt, plan["env"], own], sort_keys=True) if plan.get("env") else prompt
