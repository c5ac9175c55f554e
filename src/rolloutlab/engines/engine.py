"""The protocol of an engine: what the service calls to sample, score and train."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor

from rolloutlab.policy.base import Base
from rolloutlab.policy.decode import Completion, CompletionRequest
from rolloutlab.policy.task import Callbacks, Task
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.settings import ModelSettings

OnToken = Callable[[Completion], None]
SlopedStep = Sequence[tuple[TokenSequence, Tensor]]
"""Sequences, each with the derivatives of a loss by the logprobs of its trained tokens."""


class Engine(Protocol):
    """Samples, scores and trains checkpoints of one base model.

    A checkpoint is a folder whose content only the engine reads: tensors, or where they are stored. If a checkpoint is
    None, it is checkpoint 0 of any model: the base without a trained adapter. Methods are called from several threads.

    The service copies the files of such a folder to make a model from a checkpoint of another. The copy must stay valid
    when the original is forgotten. So a folder that refers to something elsewhere must refer to what `forget` keeps.

    Attributes:
        name: The value of the setting `engine`.
        base: The base model, whose checkpoints these are.
        unsupported: The options that the engine does not support, by their name on the wire or in the settings, each
            with the reason. Jobs and settings that use such an option are refused, and users see the whole list.
    """

    name: str
    base: Base
    unsupported: Mapping[str, str]

    def status(self) -> Mapping[str, str]:
        """What computes now, in words: `device`, and `nodes` if there are several. Returns at once."""

    def create_initial(self, folder: Path) -> None:
        """Write checkpoint 0 of a new model into an empty folder. Raises LabError: it cannot be written."""

    def fits(self, checkpoint: Path) -> bool:
        """Whether a checkpoint was made on this base with these adapters. Raises CheckpointError: it is damaged."""

    def sample(
        self, checkpoint: Path | None, requests: Sequence[CompletionRequest], on_token: OnToken | None = None
    ) -> Future[list[Completion]]:
        """Sample completions, in the order of the requests; cancelling the future ends them.

        on_token: called in any thread, after each token of a completion and in their order. An engine that does not
        stream calls it once per completion, at its end.

        Raises:
            CheckpointError: the checkpoint is missing or damaged.
            ServiceError: the disk or the engine does not answer.
        """

    def logprobs(self, checkpoint: Path | None, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """Score sequences: the logprob of each trained token, in nats, of the unscaled full-vocabulary distribution.

        Raises:
            RenderingError: a sequence is longer than the context.
            CheckpointError, ServiceError: as in `sample`.
        """

    def train(self, source: Path, target: Path, task: Task, callbacks: Callbacks) -> None:
        """Train a checkpoint by the gradient steps of a task, and write the new one into the empty folder `target`.

        If `<target>.partial` holds the progress of an earlier call with the same task, training resumes from it and
        reports the earlier steps again.

        Raises:
            TrainingError: the loss stopped being a number, or a custom loss fails.
            Cancelled: `callbacks` ask for it.
            LabError: the checkpoint cannot be written.
            CheckpointError, ServiceError: as in `sample`.
        """

    def forget(self, checkpoint: Path) -> None:
        """Release what the engine keeps of a checkpoint, because it is being deleted."""

    def close(self) -> None:
        """Stop the engine and cancel unfinished futures."""


class EnginePlugin(Protocol):
    """A plug-in of `rolloutlab.engines`: a module that opens an engine, as `--engine NAME`.

    The notebook loads the module too, so it must import torch and its package inside its functions, not at the top. It
    may also define:

    - `connect(name, settings, environment) -> Settings`: the settings for `%connect NAME:...`, if the engine runs
      behind the embedded service.
    - `sample_from(engine, url, names) -> Engine`: an engine that samples at `--sampler-url` and trains with `engine`.
    - `VENDOR` and `DIALECT`: a hosted service, for `%connect NAME:ENTITY/PROJECT`, and how its API differs from this
      one (`settings.vendors.Vendor`, `api.dialect.Dialect`).
    - `KEY_VARIABLES`: environment variables that hold keys; their values are never shown.
    - `UNMETERED`: why no budget can be kept there.
    """

    def open_engine(self, policy: str, settings: ModelSettings, *, least_seconds: float | None = None) -> Engine:
        """Open the engine on a policy.

        Args:
            policy: The name of a packaged policy, a folder, or a name on the Hugging Face hub.
            settings: The user's settings; `engine_url` is the engine's address. Settings that the engine does not
                support belong into its `unsupported`.
            least_seconds: The minimum number of seconds between two saves of a job's progress; None leaves it to the
                engine.

        Raises:
            PolicyError: the policy cannot be loaded.
            ServiceError: nothing answers at the URL.
            ModuleNotFoundError: a package is not installed; the user is told how to install it.
        """


class TrialModel(Protocol):
    """A model that is thrown away, on which single steps are measured."""

    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """Score sequences: the logprob of each trained token, in nats. Raises ServiceError: no answer of the engine."""

    def step(self, sloped: SlopedStep, rate: float, eps: float | None = None, max_norm: float = 0.0) -> float:
        """Take one gradient step; return the gradient norm that the engine reports, or NaN if it reports none.

        Args:
            sloped: Sequences, with the derivatives of the loss.
            rate: The learning rate.
            eps: None takes a step with all settings of a job. A number takes a plain step of AdamW with this eps,
                without momentum and weight decay.
            max_norm: The norm at which the gradient of a plain step is clipped; 0 does not clip.

        Raises:
            ServiceError: the engine does not answer.
        """


@runtime_checkable
class HasTrials(Protocol):
    """An engine whose checkpoints hold no tensors: its steps can only be checked by the logprobs of a trial model."""

    def trial(self, checkpoint: Path) -> AbstractContextManager[TrialModel]:
        """Make a trial model that starts from a checkpoint, until the context ends. Raises as `sample` does."""


@runtime_checkable
class KeepsElsewhere(Protocol):
    """An engine whose adapters are not in the checkpoints' folders, so that the service cannot hand them out."""

    def place(self, checkpoint: Path) -> str:
        """Say where the adapter of a checkpoint is, and what to type to have it. Raises as `sample` does."""


def partial_of(target: Path) -> Path:
    """Return the path where an engine keeps the progress of a job that has not ended."""
    return target.with_name(f"{target.name}.partial")
