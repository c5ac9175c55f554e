"""A reward as a person types it, read alike wherever it is typed."""

from typing import Any

from rolloutlab.errors import RewardError
from rolloutlab.store.rewards import finite
from rolloutlab.views.table import number_of


def reward_of(told: Any, name: str) -> float:
    """A reward as it was given or typed; RewardError where it is no finite number."""
    value = number_of(told) if isinstance(told, str) else told
    try:
        return finite(told if value is None else value, name)
    except RewardError as error:
        meant = told.replace(",", ".") if isinstance(told, str) and "," in told else ""
        hint = meant if number_of(meant) is not None else "a number such as 0.5"
        raise RewardError(error.message, hint=hint) from None
