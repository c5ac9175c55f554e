"""At what level an importance ratio is taken; without pydantic, since help and completion name the levels at once."""

from typing import Literal

ImportanceSamplingLevel = Literal["token", "sequence", "average", "geometric_average"]
