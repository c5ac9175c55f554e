"""A custom loss: torch code of a notebook cell, which the embedded service calls instead of `step_loss`.

`fn(new, old, advantage, weight, history) -> loss` gets the trained tokens of one step as tensors T: logprobs under the
weights being trained (with gradients) and when sampled, advantage and weight of each token, and the index of its
history. The scalar that it returns is minimised, by one AdamW step for each step of the job. The source runs as the
user whose lab folder it lies in; `rolloutlab.service.loss_files` decides which requests may name a source.
"""

import __future__

import ast
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rolloutlab.errors import TrainingError
from rolloutlab.policy.loss import StepLoss
from rolloutlab.policy.user_code import run_user_code

_DETACHING = {"detach", "detach_"}
_DATA = Tensor.data.__get__  # type: ignore[attr-defined]  # a property in C
Running = Callable[[], AbstractContextManager[None]]
_HINT = "a differentiable torch function of `new`; .detach() what counts as constant"


class _Precision(NamedTuple):
    """The dtype of a gradient check, the change of a logprob for finite differences, and how far they may be off."""

    dtype: torch.dtype
    step: float
    tolerance: float


_DOUBLE, _SINGLE = _Precision(torch.float64, 1e-6, 1e-3), _Precision(torch.float32, 1e-3, 2e-2)
_ROUNDING = 8
"""Units in the last place that a loss may be rounded by."""


@dataclass(frozen=True)
class CustomLoss:
    """A loss function of the user. cancelled: whether to stop; asked while the function runs.

    running: see `run_user_code`.
    """

    function: Callable[..., Any]
    cancelled: Callable[[], bool] = lambda: False
    running: Running = nullcontext

    def of_step(
        self, new_T: Tensor, old_T: Tensor, advantage_T: Tensor, weight_T: Tensor, history_T: Tensor
    ) -> StepLoss:
        """Compute the loss of a step, and the ratios of its tokens. No token counts as clipped or masked.

        Args:
            new_T: Logprobs under the weights being trained, with gradients.
            old_T: Logprobs when sampled. NaN if unknown: the detached new logprob replaces it.
            advantage_T: Advantages.
            weight_T: Weights.
            history_T: The index of each token's history.

        Raises:
            TrainingError: the loss raises, or returns anything but a real scalar that depends on `new_T`.
            Cancelled: as in `run_user_code`.
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
        # linear in new_T, with the same value and gradient, so that no code of the user runs in the backward pass
        loss_T = value_T + (slope_T * (new_T - new_T.detach())).sum()
        return StepLoss(loss_T, ratio_T, none_T, none_T)


def load_checked_loss(
    source: str, cancelled: Callable[[], bool] = lambda: False, running: Running = nullcontext
) -> CustomLoss:
    """Load a loss as `load_loss` does, and compare its gradient with finite differences, with three random steps.

    Raises:
        TrainingError: it cannot be loaded, or it fails, or its gradient differs. Cancelled: see `run_user_code`.
    """
    loss = load_loss(source, cancelled, running)
    for seed in range(3):
        run_user_code(partial(_check_gradient, loss.function, seed), cancelled, "the loss failed", _HINT, running)
    return loss


def load_loss(source: str, cancelled: Callable[[], bool] = lambda: False, running: Running = nullcontext) -> CustomLoss:
    """Load the last function of a source. cancelled, running: see `CustomLoss`.

    Raises:
        TrainingError: it is not Python, or fails, or has no function. Cancelled: see `run_user_code`.
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
    """Compute the loss, and its gradient by `new_T`. The function gets copies, since it may write into them."""
    moving_T = new_T.detach().clone().requires_grad_()
    loss = _scalar(function, moving_T, *(each_T.clone() for each_T in rest_T))
    (gradient_T,) = torch.autograd.grad(loss, moving_T, allow_unused=True)
    if gradient_T is None:
        raise TrainingError("the loss does not depend on `new`", hint=_HINT)
    return loss.detach().to(new_T.device), gradient_T


def _scalar(function: Callable[..., Any], *arguments_T: Tensor) -> Tensor:
    """Call the loss; return its value if that is a real scalar with a gradient, else raise TrainingError."""
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
    """Compare autograd with central differences, on a step of three histories.

    They are computed in double precision. If the function fails in double precision but not in single precision, in
    which jobs train, they are computed in single precision.
    """
    _value_and_gradient(function, *_make_arguments(seed, torch.float32))  # raises what it would raise in a job
    try:
        _compare_gradient(function, seed, _DOUBLE)
    except TrainingError:
        raise
    except Exception:  # noqa: BLE001 - what a function that was written for single precision raises
        _compare_gradient(function, seed, _SINGLE)


def _make_arguments(seed: int, dtype: torch.dtype) -> list[Tensor]:
    """Make random arguments of a loss: eight tokens in three histories."""
    generator = torch.Generator().manual_seed(seed)
    history_T = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    new_T, delta_T, advantage_T, weight_T = torch.randn(4, 8, generator=generator, dtype=torch.float64)
    new_T, weight_T = -new_T.abs() - 0.1, weight_T.abs() + 0.1
    old_T = new_T - 0.3 * delta_T
    return [*(each_T.to(dtype) for each_T in (new_T, old_T, advantage_T, weight_T)), history_T]


def _compare_gradient(function: Callable[..., Any], seed: int, precision: _Precision) -> None:
    new_T, *rest = _make_arguments(seed, precision.dtype)
    held = _Constants(double=precision is _DOUBLE)

    def recorded(*arguments_T: Tensor) -> Any:
        with held.record():
            return function(*arguments_T)

    def replayed(*arguments_T: Tensor) -> Any:
        with held.replay():
            return function(*arguments_T)

    value, gradient_T = _value_and_gradient(recorded, new_T, *rest)
    if not value.isfinite() or not gradient_T.isfinite().all():
        raise TrainingError("the loss or its gradient is not a finite number", hint=_HINT)
    step = precision.step
    rounded = _ROUNDING * torch.finfo(precision.dtype).eps * float(value.abs()) / step
    for t in range(len(new_T)):
        ends = []
        for change in (step, -step):
            moved_T = new_T.clone()
            moved_T[t] += change
            end = _scalar(replayed, moved_T.requires_grad_(), *(each_T.clone() for each_T in rest))
            ends.append(float(end.detach()))
        slope, expected = (ends[0] - ends[1]) / (2 * step), float(gradient_T[t])
        if abs(slope - expected) > precision.tolerance * (1 + abs(expected)) + rounded:
            message = f"the gradient of the loss is {expected:.6g}, its finite difference {slope:.6g}"
            raise TrainingError(message, hint=_HINT)


class _Constants(TorchFunctionMode):
    """Values that a function detaches, recorded by one call and replayed by others, as constants of its gradient.

    Otherwise a finite difference would also change a detached factor, which the gradient leaves constant. double:
    tensors that the function makes in single precision, or casts to it, become double. Setting torch's default dtype
    instead would change it for the sampler's thread too.
    """

    def __init__(self, *, double: bool) -> None:
        super().__init__()
        self._double = double
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
        detaches = function.__name__ in _DETACHING or function == _DATA or not torch.is_grad_enabled()
        value = self._call(function, args, kwargs or {})
        several = isinstance(value, tuple | list) and any(isinstance(each, Tensor) for each in value)
        if not detaches or not (isinstance(value, Tensor) or several):
            return value
        if self._next is None:
            self._values.append(_copy(value))
            return value
        self._next += 1
        return _copy(self._values[self._next - 1])

    def _call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not self._double:
            return function(*args, **kwargs)
        wide = {torch.float32: torch.float64}
        args = [wide.get(each, each) if isinstance(each, torch.dtype) else each for each in args]
        kwargs = {key: wide.get(each, each) if isinstance(each, torch.dtype) else each for key, each in kwargs.items()}
        value = (Tensor.double if function is Tensor.float else function)(*args, **kwargs)
        return value.double() if isinstance(value, Tensor) and value.dtype == torch.float32 else value


def _copy(value: Any) -> Any:
    """Copy a tensor, or a tuple or list of tensors, such as the values and indices of `max`."""
    if isinstance(value, tuple | list):
        return type(value)([_copy(each) for each in value])  # torch.return_types take a list
    return value.clone() if isinstance(value, Tensor) else value
