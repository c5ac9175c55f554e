"""A loss of one's own: torch code of a notebook cell, run in the place of `row_loss` by the embedded service.

`fn(new, old, advantage, weight, history) -> loss` gets the trained tokens of one row as tensors T: logprobs under the
weights being trained (with gradients) and when sampled, advantage and weight of each token, and the index of its
history. Its scalar is minimised, one AdamW step a row. The source runs as the user whose lab folder it lies in; what
may name one is decided in `rolloutlab.service.loss_files`.
"""

import __future__

import ast
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rolloutlab.errors import TrainingError
from rolloutlab.policy.loss import RowLoss
from rolloutlab.policy.user_code import run_user_code

_STEP = 1e-6
_TOLERANCE = 1e-3
_DETACHING = {"detach", "detach_"}
Running = Callable[[], AbstractContextManager[None]]
_HINT = "a differentiable torch function of `new`; .detach() what counts as constant"


@dataclass(frozen=True)
class CustomLoss:
    """A loss function of a row, by its source. cancelled: whether the job is to stop, also while the function runs.

    running: see `run_user_code`.
    """

    function: Callable[..., Any]
    cancelled: Callable[[], bool] = lambda: False
    running: Running = nullcontext

    def of_row(self, new_T: Tensor, old_T: Tensor, advantage_T: Tensor, weight_T: Tensor, history_T: Tensor) -> RowLoss:
        """The loss of a row, with the ratios of its tokens. An old logprob that is not known is the detached new one.

        Raises:
            TrainingError: it raises, or returns anything but a real scalar that depends on `new_T`. Cancelled: see
            `run_user_code`.
        """
        old_T = torch.where(old_T.isnan(), new_T.detach(), old_T)
        ratio_T = (new_T - old_T).detach().clamp(max=80.0).exp()
        arguments = new_T, old_T, advantage_T, weight_T, history_T
        value_T, slope_T = run_user_code(
            lambda: _value_and_gradient(self.function, *arguments),
            self.cancelled,
            "the loss failed",
            _HINT,
            self.running,
        )
        none_T = torch.zeros_like(new_T, dtype=torch.bool)
        # of the same value and gradient, so that none of the user's code runs in a backward pass
        loss_T = value_T + (slope_T * (new_T - new_T.detach())).sum()
        return RowLoss(loss_T, ratio_T, none_T, none_T)


def checked_loss(
    source: str, cancelled: Callable[[], bool] = lambda: False, running: Running = nullcontext
) -> CustomLoss:
    """As `load_loss`, once the gradient is that of finite differences.

    Raises:
        TrainingError: as of `load_loss`, or it fails, or its gradient differs. Cancelled: see `run_user_code`.
    """
    loss = load_loss(source, cancelled, running)
    for seed in range(3):
        run_user_code(partial(_check_gradient, loss.function, seed), cancelled, "the loss failed", _HINT, running)
    return loss


def load_loss(source: str, cancelled: Callable[[], bool] = lambda: False, running: Running = nullcontext) -> CustomLoss:
    """The last function of a source. Arguments are of `CustomLoss`.

    Raises:
        TrainingError: it is not Python. Cancelled: see `run_user_code`.
    """

    def load() -> Callable[..., Any]:
        scope: dict[str, Any] = {"torch": torch}
        names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        # annotations are not evaluated: they may name what only the notebook has
        exec(compile(source, "<loss>", "exec", __future__.annotations.compiler_flag), scope)
        function: Callable[..., Any] = scope[names[-1]]
        return function

    function = run_user_code(load, cancelled, "the loss cannot be loaded", _HINT, running)
    return CustomLoss(function, cancelled, running)


def _value_and_gradient(function: Callable[..., Any], new_T: Tensor, *rest_T: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient by `new_T`. The function gets copies, since it may write into them."""
    moving_T = new_T.detach().clone().requires_grad_()
    loss = _scalar(function, moving_T, *(each_T.clone() for each_T in rest_T))
    (gradient_T,) = torch.autograd.grad(loss, moving_T, allow_unused=True)
    if gradient_T is None:
        raise TrainingError("the loss does not depend on `new`", hint=_HINT)
    return loss.detach().to(new_T.device), gradient_T


def _scalar(function: Callable[..., Any], *arguments_T: Tensor) -> Tensor:
    """The loss, checked to be a real scalar with a gradient."""
    with torch.enable_grad():
        loss = function(*arguments_T)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        detached = ", which does not depend on `new`" if isinstance(loss, Tensor) and loss.numel() == 1 else ""
        raise TrainingError(f"the loss is {what}{detached}, not a scalar to differentiate", hint=_HINT)
    if loss.is_complex():
        raise TrainingError("the loss is a complex number, not a real one", hint=f"loss.real or loss.abs(): {_HINT}")
    return loss.reshape(())


def _check_gradient(function: Callable[..., Any], seed: int) -> None:
    """Compare autograd with central differences in double precision, on a row of three histories."""
    generator = torch.Generator().manual_seed(seed)
    history_T = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    new_T, delta_T, advantage_T, weight_T = torch.randn(4, 8, generator=generator, dtype=torch.float64)
    new_T, weight_T = -new_T.abs() - 0.1, weight_T.abs() + 0.1
    rest = (new_T - 0.3 * delta_T, advantage_T, weight_T, history_T)
    held = _Constants()

    def recorded(*arguments_T: Tensor) -> Any:
        with held.record():
            return function(*arguments_T)

    def replayed(*arguments_T: Tensor) -> Any:
        with held.replay():
            return function(*arguments_T)

    value, gradient_T = _value_and_gradient(recorded, new_T, *rest)
    if not value.isfinite() or not gradient_T.isfinite().all():
        raise TrainingError("the loss or its gradient is not a finite number", hint=_HINT)
    for t in range(len(new_T)):
        ends = []
        for step in (_STEP, -_STEP):
            moved_T = new_T.clone()
            moved_T[t] += step
            end = _scalar(replayed, moved_T.requires_grad_(), *(each_T.clone() for each_T in rest))
            ends.append(float(end.detach()))
        slope, expected = (ends[0] - ends[1]) / (2 * _STEP), float(gradient_T[t])
        if abs(slope - expected) > _TOLERANCE * (1 + abs(expected)):
            message = f"the gradient of the loss is {expected:.6g}, its finite difference {slope:.6g}"
            raise TrainingError(message, hint=_HINT)


class _Constants(TorchFunctionMode):
    """Values that a function detaches, recorded by one call and replayed by others, as constants of its gradient.

    A finite difference of a loss with a detached factor would otherwise differ from its gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self._values: list[Any] = []
        self._next: int | None = None

    def record(self) -> "_Constants":
        self._values, self._next = [], None
        return self

    def replay(self) -> "_Constants":
        self._next = 0
        return self

    def __torch_function__(
        self, function: Any, _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        value = function(*args, **(kwargs or {}))
        if not isinstance(value, Tensor) or (function.__name__ not in _DETACHING and torch.is_grad_enabled()):
            return value
        if self._next is None:
            self._values.append(value.clone())
            return value
        self._next += 1
        constant: Tensor = self._values[self._next - 1]
        return constant.clone()
