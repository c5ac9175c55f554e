"""Every deliberate error, and how one looks in a notebook.

    RolloutlabError
    ├── InputError            a cell, an option or an argument is not what was expected
    │   └── ContextError      a prompt is longer than the policy's context
    ├── NotFoundError         no collection, model, job or checkpoint of that name
    │   └── NotOfferedError   a service has no endpoint for it
    ├── ConflictError         a request contradicts what there is
    ├── SamplingError         some completions did not come; the others are kept
    ├── RewardError           a reward function or a judge failed, or gave no finite number
    ├── NothingTrainsError    no trajectory of a job would train
    ├── ServiceError          the service answered with an error
    │   ├── UnreachableError  nothing answers at its address
    │   │   └── BrokenOffError  an answer broke off, or did not come in time
    │   ├── SignInError       it wants a token, or another one
    │   ├── RefusedError      it found the request wrong
    │   └── FullError         its disk is full: it kept nothing of the request
    ├── JobFailedError        a training job ended without a checkpoint
    ├── LabError              the lab's memory on disk cannot be used
    ├── PolicyError           a policy cannot be loaded
    ├── RenderingError        a conversation cannot be turned into tokens faithfully
    ├── TrainingError         a job cannot be trained
    └── CheckpointError       a checkpoint is missing or damaged

The message says what happened, with the value; the hint is something to type. Anything that is not one of these is a
bug and keeps its traceback. Both may quote what a server, a file or a policy wrote: characters in it that would act on
a terminal are written out.
"""

from rolloutlab.sanitize import escape_control_chars


class RolloutlabError(Exception):
    """Base of every error that rolloutlab raises on purpose."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = escape_control_chars(message)
        self.hint = hint and escape_control_chars(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message

    def _render_traceback_(self) -> list[str]:
        """Two lines instead of a traceback; IPython calls this."""
        lines = [f"{type(self).__name__}: {self.message}"]
        return [*lines, f"  -> {self.hint}"] if self.hint else lines


class InputError(RolloutlabError):
    """A cell, an option or an argument is not what was expected."""


class ContextError(InputError):
    """A prompt is longer than the policy's context."""


class NotFoundError(RolloutlabError):
    """No collection, model, job or checkpoint of that name."""


class NotOfferedError(NotFoundError):
    """A service has no endpoint for it. status: of its answer: 404, 405 or 501."""

    def __init__(self, message: str, *, hint: str | None = None, status: int = 404) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class ConflictError(RolloutlabError):
    """A request contradicts what there is."""


class RewardError(RolloutlabError):
    """A reward function or a judge failed, or gave no finite number."""


class SamplingError(RolloutlabError):
    """Some completions did not come; the others are kept."""


class NothingTrainsError(RolloutlabError):
    """No trajectory of a job would train."""


class ServiceError(RolloutlabError):
    """The service answered with an error."""


class UnreachableError(ServiceError):
    """Nothing answers at the service's address."""


class BrokenOffError(UnreachableError):
    """A request reached the service, but its answer broke off or did not come in time."""


class SignInError(ServiceError):
    """The service wants a token, or another one."""


class RefusedError(ServiceError):
    """The service found the request wrong. status: of its answer, where there was one."""

    def __init__(self, message: str, *, hint: str | None = None, status: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class FullError(ServiceError):
    """The service's disk is full or cannot be written, and it kept nothing of the request."""


class JobFailedError(RolloutlabError):
    """A training job ended without a checkpoint."""


class LabError(RolloutlabError):
    """The lab's memory on disk cannot be used."""


class PolicyError(RolloutlabError):
    """A policy cannot be loaded."""


class RenderingError(RolloutlabError):
    """A conversation cannot be turned into tokens faithfully."""


class TrainingError(RolloutlabError):
    """A job cannot be trained."""


class CheckpointError(RolloutlabError):
    """A checkpoint is missing or damaged."""


def interrupted(error: KeyboardInterrupt, message: str, hint: str) -> None:
    """Have an interrupt end a cell as an error of ours does: what it left, and what to type. A script shows it too.

    It stays a KeyboardInterrupt, by which front-ends know it; only what is shown of it is another.
    """
    lines = [message, f"  -> {hint}"]
    error.__dict__["_render_traceback_"] = lambda: [f"{type(error).__name__}: {message}", *lines[1:]]
    error.__dict__["__notes__"] = lines


class Cancelled(Exception):  # noqa: N818 - nothing went wrong: someone asked for it
    """Work was stopped because someone asked for it."""
