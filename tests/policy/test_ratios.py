"""Predicted importance ratios are those of the loss, token by token."""

import pytest
import torch

from rolloutlab.objective.options import Options
from rolloutlab.policy.loss import step_loss
from rolloutlab.training.lag import importance_ratios

DELTAS = [[0.0, 0.5, -2.0], [0.25], [100.0, -3.0], []]


@pytest.mark.parametrize("level", ["token", "sequence", "average", "geometric_average"])
def test_the_ratios_are_those_of_the_loss_before_any_bound(level):
    sequences = [delta_T for delta_T in DELTAS if delta_T]
    new_T = torch.tensor([delta for delta_T in sequences for delta in delta_T], requires_grad=True)
    history_T = torch.arange(len(sequences)).repeat_interleave(torch.tensor([*map(len, sequences)]))
    ones_T = torch.ones(len(new_T))
    loss = step_loss(
        new_T, torch.zeros(len(new_T)), ones_T, ones_T, history_T, Options(importance_sampling_level=level)
    )
    ratios = [ratio for delta_T in DELTAS for ratio in importance_ratios(delta_T, level)]
    assert ratios == pytest.approx(loss.ratio_T.tolist(), rel=1e-4)
