"""Exception hierarchy of rolloutlab, and how notebooks show an exception.

    RolloutlabError
    ├── InputError            a cell, an option or an argument is wrong
    │   └── ContextError      a prompt is longer than the policy's context
    ├── NotFoundError         no collection, model, job or checkpoint of that name
    │   └── NotOfferedError   a service has no endpoint for it
    ├── ConflictError         a request contradicts the present state
    ├── SamplingError         some completions failed; the others are kept
    ├── BudgetError           the next request or job could cost more than a budget has left; nothing of it was sent
    ├── RewardError           a reward function or a judge failed, or returned no finite number
    ├── NothingTrainsError    no trajectory of a job would train
    ├── ServiceError          the service answered with an error
    │   ├── UnreachableError  no connection to its address
    │   │   └── BrokenOffError  the response broke off or timed out
    │   ├── SignInError       it requires a token, or another one
    │   ├── RefusedError      it rejected the request
    │   └── FullError         its disk is full: nothing of the request was stored
    ├── JobFailedError        a training job ended without a checkpoint
    ├── LabError              the files of the lab cannot be used
    ├── PolicyError           a policy cannot be loaded
    │   └── TemplateTimeError  its chat template took too long
    ├── RenderingError        a conversation cannot be turned into tokens faithfully
    ├── TrainingError         a job cannot be trained
    └── CheckpointError       a checkpoint is missing or damaged

The message states what happened, with the value; the hint is something to type. Message and hint may quote a server, a
file or a policy, so control characters in them are escaped. Any other exception is a bug and keeps its traceback.
"""

from collections.abc import Mapping
from typing import Any

from rolloutlab.sanitize import escape_control_chars, replace_surrogates


class RolloutlabError(Exception):
    """Base of every error that rolloutlab raises on purpose."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = escape_control_chars(message)
        self.hint = hint and escape_control_chars(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message

    @property
    def with_hint(self) -> str:
        """Message and hint in one line."""
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def _render_traceback_(self) -> list[str]:
        """Two lines instead of a traceback; IPython calls this."""
        lines = [f"{type(self).__name__}: {self.message}"]
        return [*lines, f"  -> {self.hint}"] if self.hint else lines


class InputError(RolloutlabError):
    """A cell, an option or an argument is wrong."""


class ContextError(InputError):
    """A prompt is longer than the policy's context."""


class NotFoundError(RolloutlabError):
    """No collection, model, job or checkpoint of that name."""


class NotOfferedError(NotFoundError):
    """A service has no endpoint for it. status: the HTTP status of its answer, 404, 405 or 501."""

    def __init__(self, message: str, *, hint: str | None = None, status: int = 404) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class ConflictError(RolloutlabError):
    """A request contradicts the present state."""


class RewardError(RolloutlabError):
    """A reward function or a judge failed, or returned no finite number."""


class SamplingError(RolloutlabError):
    """Some completions failed; the others are kept."""


class BudgetError(RolloutlabError):
    """The next request or job could cost more than a budget has left; nothing of it was sent.

    holds: whether a larger budget would help. It would not if the service counts more tokens than a request can have.
    """

    def __init__(self, message: str, *, hint: str | None = None, holds: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.holds = holds


class NothingTrainsError(RolloutlabError):
    """No trajectory of a job would train."""


class ServiceError(RolloutlabError):
    """The service answered with an error.

    status: the HTTP status of its response. 0 if there was no response, or if a successful response was malformed.
    reported: the error object of the response, if it has one in OpenAI's form.
    """

    reported: Mapping[str, Any] | None = None

    def __init__(self, message: str, *, hint: str | None = None, status: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class UnreachableError(ServiceError):
    """No connection to the service's address."""


class BrokenOffError(UnreachableError):
    """A request reached the service, but its response broke off or timed out."""


class SignInError(ServiceError):
    """The service requires a token, or another one."""


class RefusedError(ServiceError):
    """The service rejected the request."""


class FullError(ServiceError):
    """The service's disk is full or cannot be written; nothing of the request was stored."""


class JobFailedError(RolloutlabError):
    """A training job ended without a checkpoint."""


class LabError(RolloutlabError):
    """The files of the lab cannot be used."""


class PolicyError(RolloutlabError):
    """A policy cannot be loaded."""


class TemplateTimeError(PolicyError):
    """The chat template of a policy took too long."""


class RenderingError(RolloutlabError):
    """A conversation cannot be turned into tokens faithfully."""


class TrainingError(RolloutlabError):
    """A job cannot be trained."""


class CheckpointError(RolloutlabError):
    """A checkpoint is missing or damaged."""


def interrupted(error: KeyboardInterrupt, message: str, hint: str) -> None:
    """Show an interrupt in notebooks and scripts as a message and a hint, like an error of ours.

    The exception stays a KeyboardInterrupt, which front ends expect. Only the way it is shown is replaced.
    """
    lines = [message, f"  -> {hint}"]
    error.__dict__["_render_traceback_"] = lambda: [f"{type(error).__name__}: {message}", *lines[1:]]
    error.__dict__["__notes__"] = lines


def described(error: BaseException, limit: int | None = 1000) -> str:
    """Type and text of any exception, to be stored. limit: the most characters of its text; None keeps all."""
    try:
        text = replace_surrogates(str(error), limit)
    except Exception:  # noqa: BLE001 - of its own method
        text = ""
    name = replace_surrogates(type(error).__name__, limit)
    return f"{name}: {text}" if text else name


class Cancelled(Exception):  # noqa: N818 - a request to stop, not an error
    """Work was stopped on request."""
