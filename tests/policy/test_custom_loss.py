"""Losses of the user's own: checked by finite differences, and trained with as the options' own loss is."""

import threading
from contextlib import suppress

import pytest
import torch

from rolloutlab.errors import Cancelled, TrainingError
from rolloutlab.policy import user_code
from rolloutlab.policy.checkpoints import State
from rolloutlab.policy.custom_loss import load_checked_loss
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


DEFINITIONS = """
class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, new):
        return new * 1

    @staticmethod
    def backward(ctx, gradient):
        raise SystemExit("in backward")


class WrongBy20Percent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, new):
        return new * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.2


ONES = torch.ones(8)


class Unprintable(Exception):
    def __str__(self):
        raise SystemExit
"""


def loss(body: str) -> str:
    return f"import torch\n{DEFINITIONS}\ndef mine(new, old, advantage, weight, history):\n    {body}\n"


@pytest.mark.parametrize(
    "body",
    [
        "return -(weight * advantage * (new - old).exp()).sum() / len(new)",
        "return -((new - old).exp().detach() * advantage * new).mean()",
        "return (new - new.mean().detach()).pow(2).sum() + torch.minimum(new, old).sum()",
        "\n    with torch.no_grad():\n        scale = (new - old).exp() * 2\n    return (scale * new).sum()",
        "return torch.stack([new[history == h].mean().exp() for h in range(3)]).sum()",
        "\n    with torch.no_grad():\n        top = torch.max(new, dim=0).values\n    return (new - top).exp().sum()",
        "\n    with torch.no_grad():\n        ranked, order = torch.sort(new)\n    return (ranked * new[order]).sum()",
        "\n    with torch.no_grad():\n        parts = new.split(4)\n    return (torch.cat(parts) * new).sum()",
        "return ((new - old).exp().data * advantage * new).sum()",
        "return ((new - old) * 40).exp().sum()",
    ],
)
def test_a_differentiable_loss_passes_whatever_it_detaches(body):
    load_checked_loss(loss(body))


IN_SINGLE_PRECISION = [
    "\n    sums = torch.zeros(3).index_add(0, history, new - old)\n    return -sums.exp()[history].mean()",
    "return torch.zeros(3).scatter_add(0, history, new).pow(2).mean()",
    "return ((weight * new) @ torch.nn.functional.one_hot(history).float()).exp().sum()",
    "return -torch.dot(new, torch.ones(len(new)))",
    "return -torch.dot(new, torch.ones(len(new), dtype=torch.float32))",
    "return torch.dot(new.exp(), torch.zeros_like(history).to(torch.float32) + 1)",
    "return (advantage * new.float()).exp().sum()",
    "return (torch.dot(new, ONES) * new.exp()).mean()",
]
"""Of one tensor of this precision and one of `new`; ONES was made before the function was called."""


@pytest.mark.parametrize("body", IN_SINGLE_PRECISION)
def test_a_loss_that_makes_tensors_of_single_precision_passes(body):
    load_checked_loss(loss(body))


@pytest.mark.parametrize("body", IN_SINGLE_PRECISION)
def test_a_wrong_gradient_is_refused_also_beside_tensors_of_single_precision(body):
    wrong = body.replace("return ", "return WrongBy20Percent.apply(new).sum() + ")
    with pytest.raises(TrainingError, match="the gradient of the loss is"):
        load_checked_loss(loss(wrong))


def test_a_loss_that_fails_in_single_precision_is_refused_in_the_words_of_its_job():
    with pytest.raises(TrainingError, match="expected both vectors to have same dtype, but found Float and Double"):
        load_checked_loss(loss("return torch.dot(new, torch.ones(len(new), dtype=torch.float64))"))


def test_the_check_leaves_the_precision_of_other_threads_as_it_is():
    body = "THREADS.append(dtype_in_a_thread())\n    return torch.dot(new, torch.ones(8))"
    load_checked_loss(f"from tests.policy.test_custom_loss import THREADS, dtype_in_a_thread\n{loss(body)}")
    assert set(THREADS) == {torch.float32}


THREADS = []


def dtype_in_a_thread():
    return in_a_thread(lambda: torch.zeros(1).dtype)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return (new * (new - old).exp().mean().item()).sum()", "the gradient of the loss is"),
        ("return new", "a tensor of shape"),
        ("return 1.0", "is a float"),
        ("return (advantage * weight).sum()", "does not depend on `new`"),
        ("return (new.sum() * 0).log()", "not a finite number"),
        ("return (new + 1j).prod()", "the loss is a complex number, not a real one"),
        ("raise KeyError('x')", "the loss failed: KeyError"),
        ("raise SystemExit(3)", "the loss failed: SystemExit: 3"),
        ("raise KeyboardInterrupt", "the loss failed: KeyboardInterrupt"),
        ("raise GeneratorExit", "the loss failed: GeneratorExit"),
        ("return Backward.apply(new).sum()", "the loss failed: SystemExit: in backward"),
        ("raise Unprintable", "the loss failed: "),
        ("return undefined.sum()", "the loss failed: NameError"),
    ],
)
def test_a_wrong_loss_is_refused_before_anything_trains(body, why):
    with pytest.raises(TrainingError, match=why) as refused:
        load_checked_loss(loss(body))
    assert refused.value.hint


@pytest.mark.parametrize("source", ["", "x = 1", "def (", "raise SystemExit"])
def test_a_source_without_a_function_is_refused(source):
    with pytest.raises(TrainingError, match="cannot be loaded"):
        load_checked_loss(source)


@pytest.mark.parametrize("source", [loss("while True: pass"), "while True: pass"])
def test_a_loss_that_never_returns_is_ended_when_its_job_is_cancelled(source):
    with pytest.raises(Cancelled):
        load_checked_loss(source, lambda: True)
    for each in users():
        each.join()  # on a busy machine, it may end after it was left behind


def users():
    return [each for each in threading.enumerate() if each.name == "user-code"]


def test_a_loss_that_does_not_end_is_left_behind(monkeypatch, caplog):
    ends = threading.Event()
    monkeypatch.setattr(user_code, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(user_code.ThreadCall, "interrupt", lambda self: None)  # as in a function that waits in C
    with pytest.raises(Cancelled):
        user_code.run_user_code(ends.wait, lambda: True, "the loss failed", "")
    [left] = users()
    assert "runs until this process does" in caplog.text
    assert left.daemon
    ends.set()
    left.join()


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ("torch.set_grad_enabled(False)", torch.is_grad_enabled),
        ("torch.set_default_dtype(torch.float64)", torch.get_default_dtype),
        ("torch.set_default_device('meta')", torch.get_default_device),
        ("torch.set_num_threads(torch.get_num_threads() + 3)", lambda: in_a_thread(torch.get_num_threads)),
        ("torch.use_deterministic_algorithms(True)", torch.are_deterministic_algorithms_enabled),
        ("torch.set_float32_matmul_precision('medium')", torch.get_float32_matmul_precision),
        ("torch.autograd.set_detect_anomaly(True)", torch.is_anomaly_enabled),
        ("torch.manual_seed(7)", lambda: torch.get_rng_state().tolist()),
    ],
)
@pytest.mark.parametrize("end", ["return value", "raise KeyError"])
def test_what_a_loss_changes_in_torch_ends_with_it(change, state, end):
    before = state()
    with suppress(TrainingError):
        load_checked_loss(loss(f"value = (weight * new).sum()\n    {change}\n    {end}"))
    assert state() == before


def test_a_loss_that_writes_into_its_arguments_trains_as_one_that_does_not(policy, start):
    plain = "return -(weight * advantage * (new - old).exp()).sum() / len(new)"
    writing = f"value = {plain.removeprefix('return ')}\n    new.data.zero_(), old.zero_()\n    return value"
    job = as_job(large_groups())
    ends = [run(policy, start, job, loss_source=loss(body)) for body in (plain, writing)]
    assert steps(ends[0][1])[0]["ratio_mean"] == steps(ends[1][1])[0]["ratio_mean"]


def in_a_thread(function):
    values = []
    thread = threading.Thread(target=lambda: values.append(function()))
    thread.start()
    thread.join()
    return values[0]


def test_the_loss_of_the_options_written_as_ones_own_trains_alike(policy, start):
    # members that do not train count in the divisor of the options' loss: here all of them do
    groups = large_groups()
    job = as_job([groups[0][:4], groups[3][::2]])
    plain, own = (steps(run(policy, start, job, loss_source=source)[1])[0] for source in (None, SAME_AS_DEFAULT))
    for name in ("loss", "grad_norm", "ratio_mean", "entropy", "kl_base"):
        assert own[name] == pytest.approx(plain[name], rel=1e-3, abs=1e-5), name


def test_another_loss_trains_to_another_adapter_and_reports_no_clipping(policy, start):
    source = loss("return -(weight * advantage * (new - old).exp()).sum() / len(new)")
    (plain, _), (own, events) = (run(policy, start, as_job(large_groups()), loss_source=s) for s in (None, source))
    assert not same(plain.adapter, own.adapter)
    assert all((data["clipped"], data["masked"]) == (0, 0) for data in steps(events))
