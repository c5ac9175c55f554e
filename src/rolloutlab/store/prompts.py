"""Prompts of groups: what tells them apart."""

import json
from collections.abc import Mapping
from typing import Any


def prompt_key(prompt: str, row: Mapping[str, Any], position: int, plan: Mapping[str, Any]) -> str:
    """What tells the prompts of groups apart: their messages as JSON; with an environment, also the row it was made of.

    Without a row it is the seed: environments of one seed begin in the same state.
    """
    if not plan.get("env"):
        return prompt
    return json.dumps([prompt, plan["env"], row or plan.get("seed", 0) + position], sort_keys=True)
