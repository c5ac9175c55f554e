"""The loss against numbers that the reference implementation computed; `tools/loss_vectors.py` makes them."""

import json
import math
from pathlib import Path

import pytest
import torch

from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.objective.options import settle
from rolloutlab.policy.loss import kl_penalty, step_loss

GOLDEN = json.loads((Path(__file__).parent / "loss_vectors.json").read_text())
_CLOSE = 1e-7  # the reference adds 1e-8 to the number of tokens of a history's mean
ROW = {
    name: torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)
    for name, values in GOLDEN["row"].items()
}


@pytest.mark.parametrize("vector", GOLDEN["vectors"], ids=lambda vector: json.dumps(vector["options"]))
def test_loss_and_gradient_are_those_of_the_reference(vector):
    options = settle(ExperimentalTrainingConfig.model_validate(vector["options"]))
    new_T = ROW["new"].clone().requires_grad_()
    result = step_loss(
        new_T,
        ROW["old"],
        ROW["advantage"],
        ROW["weight"],
        ROW["history"].long(),
        options,
        reference_T=ROW["reference"] if options.kl_penalty_coef else None,
        original_T=ROW["original"] if options.truncated_importance_sampling else None,
    )
    (gradient_T,) = torch.autograd.grad(result.loss, new_T)
    assert result.loss.item() == pytest.approx(vector["loss"], rel=_CLOSE)
    assert gradient_T.tolist() == pytest.approx(vector["gradient"], rel=_CLOSE, abs=1e-9)
    if options.kl_penalty_coef:
        penalty_T = kl_penalty(ROW["new"], ROW["reference"], 1.0)
        assert (penalty_T + ROW["new"] - ROW["reference"]).tolist() == pytest.approx([vector["kl"]] * 9, rel=1e-9)


def test_the_vectors_are_of_every_option_on_and_off():
    used = [vector["options"] for vector in GOLDEN["vectors"]]
    for name in ("kl_penalty_coef", "truncated_importance_sampling", "kimi_k2_tau", "mask_prob_ratio", "ppo"):
        assert {bool(options.get(name)) for options in used} == {False, True}
    assert len({vector["loss"] for vector in GOLDEN["vectors"]}) > len(used) / 2
