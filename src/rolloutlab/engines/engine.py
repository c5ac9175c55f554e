"""The protocol between the service and what computes for it."""

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

    A checkpoint is a folder. What lies in it is the engine's: tensors, or where they are. None is checkpoint 0 of any
    model, the base without a trained adapter. Methods are called from several threads.

    name: of the setting `engine`. unsupported: what the engine does not honour, by the option's name on the wire or
    in the settings, and why; jobs and settings that name such an option are refused, and all of it is shown.
    """

    name: str
    base: Base
    unsupported: Mapping[str, str]

    def status(self) -> Mapping[str, str]:
        """What computes now, in words: `device`, and `nodes` where there are several. Returns at once."""

    def create_initial(self, folder: Path) -> None:
        """Fill an empty folder as checkpoint 0 of a new model. Raises LabError: it cannot be written."""

    def fits(self, checkpoint: Path) -> bool:
        """Whether a checkpoint is of this base and its adapters. Raises CheckpointError: it is damaged."""

    def sample(
        self, checkpoint: Path | None, requests: Sequence[CompletionRequest], on_token: OnToken | None = None
    ) -> Future[list[Completion]]:
        """Sample completions, in the order of the requests; cancelling the future ends them.

        on_token: called in any thread, in order for each completion, after each of its tokens, or at its end where the
        engine does not stream.

        Raises:
            CheckpointError: it is missing or damaged. ServiceError: the disk or the engine does not answer.
        """

    def logprobs(self, checkpoint: Path | None, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """The logprob of each trained token, in nats, of the unscaled full-vocabulary distribution.

        Raises:
            RenderingError: a sequence is longer than the context. CheckpointError, ServiceError: as of `sample`.
        """

    def train(self, source: Path, target: Path, task: Task, callbacks: Callbacks) -> None:
        """Take the gradient steps of a task from a checkpoint; fill the empty folder `target` with the new one.

        What `<target>.partial` keeps of an earlier call of the same task is not done again; its steps are reported.

        Raises:
            TrainingError: the loss stopped being a number, or a custom loss fails. Cancelled: `callbacks` want it.
            LabError: the checkpoint cannot be written. CheckpointError, ServiceError: as of `sample`.
        """

    def forget(self, checkpoint: Path) -> None:
        """A checkpoint is deleted: release what the engine keeps of it."""

    def close(self) -> None:
        """Stop; unfinished futures are cancelled."""


class EnginePlugin(Protocol):
    """A plug-in of `rolloutlab.engines`: a module that opens an engine, as `--engine NAME`.

    The notebook loads it too, so it imports torch and its package inside its functions. It may have more:

    - `connect(name, settings, environment) -> Settings`: what `%connect NAME:...` settles, below the embedded service.
    - `sample_from(engine, url, names) -> Engine`: an engine that samples at `--sampler-url` and trains as before.
    - `VENDOR` and `DIALECT`: a hosted service, as `%connect NAME:ENTITY/PROJECT`, and how it differs from the API of
      the specification (`settings.vendors.Vendor`, `api.dialect.Dialect`).
    - `KEY_VARIABLES`: environment variables with keys, which nothing shows. `UNMETERED`: why no budget holds there.
    """

    def open_engine(self, policy: str, settings: ModelSettings, *, least_seconds: float | None = None) -> Engine:
        """Open the engine on a policy.

        Args:
            policy: a packaged one, a folder, or a name of the hub.
            settings: `engine_url` is where it is; what the engine does not honour it names in `unsupported`.
            least_seconds: between two times that the progress of a job is kept; None is the engine's own choice.

        Raises:
            PolicyError: the policy cannot be loaded. ServiceError: what is at the URL does not answer.
            ModuleNotFoundError: a package is not installed; the user is told how to install it.
        """


class TrialModel(Protocol):
    """A model that is thrown away, on which single steps are measured."""

    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """The logprob of each trained token, in nats. Raises ServiceError: the engine does not answer."""

    def step(self, sloped: SlopedStep, rate: float, eps: float | None = None, max_norm: float = 0.0) -> float:
        """Take a job's step on sequences; the gradient norm that the engine reports, NaN if it reports none.

        eps: of AdamW, in a step without momentum and weight decay, and with the gradient clipped at `max_norm`, where 0
        is off; None takes all settings of a job.

        Raises ServiceError: the engine does not answer.
        """


@runtime_checkable
class HasTrials(Protocol):
    """An engine whose checkpoints hold no tensors: what its steps do shows in the logprobs of a trial alone."""

    def trial(self, checkpoint: Path) -> AbstractContextManager[TrialModel]:
        """A model of a checkpoint, until the context ends. Raises CheckpointError, ServiceError: as of `sample`."""


def partial_of(target: Path) -> Path:
    """What an engine keeps of a job that has not ended."""
    return target.with_name(f"{target.name}.partial")
