"""Environments of tinker_cookbook, whose protocol works on tokens."""

from typing import Any

from rolloutlab.environments.adapters import packages_of


def advice(environment: Any) -> str | None:
    """Say what to write for an environment of tinker_cookbook."""
    if "tinker_cookbook" not in packages_of(environment):
        return None
    return "a class with reset(seed) and step(answer) around it: docs/environments.md"
