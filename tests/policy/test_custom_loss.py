"""Losses of the user's own: checked by finite differences, and trained with as the options' own loss is."""

import pytest

from rolloutlab.errors import TrainingError
from rolloutlab.policy.custom_loss import checked_loss
from rolloutlab.policy.trainer import State
from tests.policy.test_trainer import as_job, large_groups, run, same, steps

SAME_AS_DEFAULT = """
import torch
def loss(new, old, advantage, weight, history):
    ratio = (new - old).exp().detach().clamp(0, 5)
    return -(weight * ratio * advantage * new).sum() / (len(new) + 1e-6)
"""


@pytest.fixture(scope="module")
def start(policy, adapter_of) -> State:
    return State(adapter_of(policy), {})


def loss(body: str) -> str:
    return f"import torch\ndef mine(new, old, advantage, weight, history):\n    {body}\n"


@pytest.mark.parametrize(
    "body",
    [
        "return -(weight * advantage * (new - old).exp()).sum() / len(new)",
        "return -((new - old).exp().detach() * advantage * new).mean()",
        "return (new - new.mean().detach()).pow(2).sum() + torch.minimum(new, old).sum()",
        "\n    with torch.no_grad():\n        scale = (new - old).exp() * 2\n    return (scale * new).sum()",
        "return torch.stack([new[history == h].mean().exp() for h in range(3)]).sum()",
    ],
)
def test_a_differentiable_loss_passes_whatever_it_detaches(body):
    checked_loss(loss(body))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return (new * (new - old).exp().mean().item()).sum()", "the gradient of the loss is"),
        ("return new", "a tensor of shape"),
        ("return 1.0", "is a float"),
        ("return (advantage * weight).sum()", "does not depend on `new`"),
        ("return (new.sum() * 0).log()", "not a finite number"),
        ("raise KeyError('x')", "the loss failed: KeyError"),
        ("return undefined.sum()", "the loss failed: NameError"),
    ],
)
def test_a_wrong_loss_is_refused_before_anything_trains(body, why):
    with pytest.raises(TrainingError, match=why) as refused:
        checked_loss(loss(body))
    assert refused.value.hint


@pytest.mark.parametrize("source", ["", "x = 1", "def ("])
def test_a_source_without_a_function_is_refused(source):
    with pytest.raises(TrainingError, match="cannot be loaded"):
        checked_loss(source)


def test_the_loss_of_the_options_written_as_ones_own_trains_alike(policy, start):
    job = as_job(large_groups())
    plain, own = (steps(run(policy, start, job, loss_source=source)[1])[0] for source in (None, SAME_AS_DEFAULT))
    for name in ("loss", "grad_norm", "ratio_mean", "entropy", "kl_base"):
        assert own[name] == pytest.approx(plain[name], rel=1e-3, abs=1e-5), name


def test_another_loss_trains_to_another_adapter_and_reports_no_clipping(policy, start):
    source = loss("return -(weight * advantage * (new - old).exp()).sum() / len(new)")
    (plain, _), (own, events) = (run(policy, start, as_job(large_groups()), loss_source=s) for s in (None, source))
    assert not same(plain.adapter, own.adapter)
    assert all((data["clipped"], data["masked"]) == (0, 0) for data in steps(events))
