"""A reward as a person types it, read alike wherever it is typed."""

import math
from typing import Any

from rolloutlab.errors import RewardError
from rolloutlab.store.rewards import finite
from rolloutlab.views.table import number_of


def reward_of(told: Any, name: str) -> float:
    """A reward as it was given or typed; RewardError where it is no finite number."""
    typed = number_of(told) if isinstance(told, str) else None
    try:
        return finite(told if typed is None or math.isinf(typed) else typed, name)
    except RewardError as error:
        meant = told.replace(",", ".") if isinstance(told, str) and "," in told else ""
        hint = meant if number_of(meant) is not None else "a number such as 0.5"
        raise RewardError(error.message, hint=hint) from None
