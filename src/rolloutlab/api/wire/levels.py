"""Levels of importance sampling; without pydantic, as help and completion need them before a first cell."""

from typing import Literal

ImportanceSamplingLevel = Literal["token", "sequence", "average", "geometric_average"]
