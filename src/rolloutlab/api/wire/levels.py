"""Allowed values of training options, without pydantic: help and completion need them before the first cell."""

from typing import Literal

ImportanceSamplingLevel = Literal["token", "sequence", "average", "geometric_average"]

Credit = Literal["trajectory", "turn"]

LossAggregation = Literal["sequence_mean", "token_mean", "constant"]

MOST_EPOCHS = 16

MOST_GROUPS = 999_999_999
"""Limit of `groups_per_step`: far above the groups of any job, so that a step of all of them can be asked for."""

LARGEST_STEP = 999_999_999
"""Limit of a checkpoint's step, also of a recovered one, as later jobs count on from it."""

OF_STEPS = (
    "groups_per_step", "epochs", "loss_aggregation", "loss_scale_factor", "mask_truncated", "max_grad_norm",
    "weight_decay",
)  # fmt: skip
"""Options that were added together. Older services have none of them, and divide a job into steps in their own way."""
