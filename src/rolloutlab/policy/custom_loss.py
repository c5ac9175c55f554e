"""A loss of one's own: torch code of a notebook cell, run in the place of `row_loss` by the embedded service.

`fn(new, old, advantage, weight, history) -> loss` gets the trained tokens of one row as tensors T: logprobs under the
weights being trained (with gradients) and when sampled, advantage and weight of each token, and the index of its
history. Its scalar is minimised, one AdamW step a row. The source runs as the user whose lab folder it lies in; what
may name one is decided in `rolloutlab.service.loss_files`.
"""

import __future__

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rolloutlab.errors import TrainingError
from rolloutlab.policy.loss import RowLoss

_STEP = 1e-6
_TOLERANCE = 1e-3
_DETACHING = {"detach", "detach_"}
_HINT = "a differentiable torch function of `new`; .detach() what counts as constant"


@dataclass(frozen=True)
class CustomLoss:
    """A loss function of a row, by its source."""

    function: Callable[..., Any]

    def of_row(self, new_T: Tensor, old_T: Tensor, advantage_T: Tensor, weight_T: Tensor, history_T: Tensor) -> RowLoss:
        """The loss of a row, with the ratios of its tokens. An old logprob that is not known is the detached new one.

        Raises:
            TrainingError: it raises, or returns anything but a scalar tensor that depends on `new_T`.
        """
        old_T = torch.where(old_T.isnan(), new_T.detach(), old_T)
        try:
            loss = self.function(new_T, old_T, advantage_T, weight_T, history_T)
        except Exception as error:  # code of a user
            raise TrainingError(f"the loss failed: {type(error).__name__}: {error}", hint=_HINT) from error
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            detached = ", which does not depend on `new`" if isinstance(loss, Tensor) and loss.numel() == 1 else ""
            raise TrainingError(f"the loss is {what}{detached}, not a scalar to differentiate", hint=_HINT)
        none_T = torch.zeros_like(new_T, dtype=torch.bool)
        return RowLoss(loss.reshape(()), (new_T - old_T).detach().clamp(max=80.0).exp(), none_T, none_T)


def checked_loss(source: str) -> CustomLoss:
    """The last function of a source, once its gradient is that of finite differences.

    Raises:
        TrainingError: it is not Python, fails, or its gradient differs.
    """
    scope: dict[str, Any] = {"torch": torch}
    try:
        names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        # annotations are not evaluated: they may name what only the notebook has
        exec(compile(source, "<loss>", "exec", __future__.annotations.compiler_flag), scope)
        loss = CustomLoss(scope[names[-1]])
    except Exception as error:  # code of a user
        raise TrainingError(f"the loss cannot be loaded: {type(error).__name__}: {error}", hint=_HINT) from error
    for seed in range(3):
        _check_gradient(loss, seed)
    return loss


def _check_gradient(loss: CustomLoss, seed: int) -> None:
    """Compare autograd with central differences in double precision, on a row of three histories."""
    generator = torch.Generator().manual_seed(seed)
    history_T = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    new_T, delta_T, advantage_T, weight_T = torch.randn(4, 8, generator=generator, dtype=torch.float64)
    new_T, weight_T = -new_T.abs() - 0.1, weight_T.abs() + 0.1
    rest = (new_T - 0.3 * delta_T, advantage_T, weight_T, history_T)
    held = _Constants()
    moving_T = new_T.clone().requires_grad_()
    with held.record():
        value = loss.of_row(moving_T, *rest).loss
    (gradient_T,) = torch.autograd.grad(value, moving_T)
    if not value.isfinite() or not gradient_T.isfinite().all():
        raise TrainingError("the loss or its gradient is not a finite number", hint=_HINT)
    for t in range(len(new_T)):
        ends = []
        for step in (_STEP, -_STEP):
            moved_T = new_T.clone()
            moved_T[t] += step
            with held.replay():
                end = loss.of_row(moved_T.requires_grad_(), *rest).loss
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
