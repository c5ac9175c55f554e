"""Runs code of the user in a thread, so that it can be ended; restores torch's global state afterwards.

Python cannot end a thread. It can only raise an exception in one at its next bytecode, which ends a loop in Python. A
thread that waits in C, or catches everything, is left behind until the process ends.
"""

import logging
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar, cast

import torch

from rolloutlab.errors import Cancelled, RolloutlabError, TrainingError
from rolloutlab.runtime import ThreadCall

T = TypeVar("T")
_POLL_SECONDS = 0.25
_TRIES = 20
"""How many exceptions are raised in a thread, one at each poll, before it is left behind."""


def run_user_code(
    function: Callable[[], T],
    cancelled: Callable[[], bool],
    what: str,
    hint: str,
    running: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> T:
    """Call `function()` in another thread, with gradients enabled; return its value.

    Args:
        function: Code of the user.
        cancelled: Whether to stop; called four times a second.
        what: The beginning of an error's message, such as "the loss failed".
        hint: The hint of an error.
        running: A context that is entered while the call runs. If the process ends in it, the call is probably why.

    Raises:
        TrainingError: it raises anything, SystemExit and KeyboardInterrupt included.
        Cancelled: `cancelled()` became true. A thread that does not end within seconds goes on by itself.
    """

    def described() -> T:
        try:
            return function()
        except RolloutlabError:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit, too, is an error of the user's code here
            # formatted here, not in the thread that waits: an error's `__str__` is code of the user, and may hang
            raise TrainingError(f"{what}: {traceback.format_exception_only(error)[-1].strip()}", hint=hint) from None

    with running(), _torch_state():
        call, tries = ThreadCall(described, "user-code"), 0
        while not wait([call.outcome], _POLL_SECONDS).done:
            if tries or cancelled():
                call.interrupt()
                tries += 1
            if tries > _TRIES:
                logging.getLogger(__name__).warning("%s: it does not end, and runs until this process does", what)
                break
        if tries:
            raise Cancelled
    value, error = call.outcome.result()
    if error:
        raise error
    return cast("T", value)


@contextmanager
def _torch_state() -> Iterator[None]:
    """Restore what torch keeps for the whole process. The grad mode and the default device are a thread's own."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    anomaly, check_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        torch.set_num_threads(threads)  # always: `get_num_threads` is this thread's, and not what new threads take
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.autograd.set_detect_anomaly(anomaly, check_nan)
