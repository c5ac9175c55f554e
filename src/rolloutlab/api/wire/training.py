"""Models, checkpoints and training jobs (specification: "CreateTrainingJob", "ExperimentalTrainingConfig")."""

from collections.abc import Mapping
from typing import Any, Literal
from uuid import UUID

from pydantic import AliasChoices, Field, model_validator
from pydantic_core import PydanticCustomError

from rolloutlab.api.wire.base import Boolean, DateTime, Integer, Items, Number, Wire
from rolloutlab.api.wire.levels import (
    LARGEST_STEP,
    MOST_EPOCHS,
    MOST_GROUPS,
    Credit,
    ImportanceSamplingLevel,
    LossAggregation,
)
from rolloutlab.api.wire.trajectories import TrajectoryGroup

NAME = r"^[\w.-]+$"
LONGEST_NAME = 255
_OTHER_TAU = "kimi_k2_tau"


class ExperimentalTrainingConfig(Wire):
    """The options of a training job; what each does is in `rolloutlab.objective.option_docs`.

    The specification has the fields up to `scale_rewards`. The others are additions of the embedded service, and are
    sent only if they are set. `custom_loss` is the SHA-256 of the source of a loss in the lab folder.

    The k2 tau field is called `vendor_k2_tau` in the specification and `kimi_k2_tau` by real services; both are read,
    and may both be there with one value.
    """

    advantage_balance: Number | None = Field(default=None, ge=-1, le=1)
    epsilon: Number | None = Field(default=None, ge=0)
    epsilon_high: Number | None = Field(default=None, ge=0)
    importance_sampling_level: ImportanceSamplingLevel | None = None
    vendor_k2_tau: Number | None = Field(
        default=None, validation_alias=AliasChoices("vendor_k2_tau", "kimi_k2_tau"), serialization_alias="vendor_k2_tau"
    )
    learning_rate: Number | None = Field(default=None, ge=0)
    mask_prob_ratio: Boolean | None = None
    max_negative_advantage_importance_sampling_weight: Number | None = Field(default=None, ge=0)
    ppo: Boolean | None = None
    precalculate_logprobs: Boolean | None = None
    scale_rewards: Boolean | None = None
    kl_penalty_coef: Number | None = Field(default=None, ge=0)
    kl_ref_step: Integer | None = Field(default=None, ge=0, le=LARGEST_STEP)
    truncated_importance_sampling: Number | None = Field(default=None, ge=0)
    credit: Credit | None = None
    groups_per_step: Integer | None = Field(default=None, ge=0, le=MOST_GROUPS)
    epochs: Integer | None = Field(default=None, ge=1, le=MOST_EPOCHS)
    loss_aggregation: LossAggregation | None = None
    loss_scale_factor: Number | None = Field(default=None, gt=0)
    mask_truncated: Boolean | None = None
    max_grad_norm: Number | None = Field(default=None, ge=0)
    weight_decay: Number | None = Field(default=None, ge=0)
    custom_loss: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")

    @model_validator(mode="before")
    @classmethod
    def _one_tau(cls, sent: Any) -> Any:
        if not isinstance(sent, Mapping) or not sent.keys() >= {"vendor_k2_tau", _OTHER_TAU}:
            return sent
        value, own = sent[_OTHER_TAU], sent["vendor_k2_tau"]
        if value is not None and own is not None and own != value:
            words = "{field} and vendor_k2_tau are two names of one option and differ: {value} and {own}"
            context = {"field": _OTHER_TAU, "value": str(value)[:40], "own": str(own)[:40]}
            raise PydanticCustomError("contradiction", words, context)
        dropped = "vendor_k2_tau" if own is None else _OTHER_TAU
        return {name: given for name, given in sent.items() if name != dropped}


class CreateTrainingJob(Wire):
    """Body of `POST {base_url}/v1/preview/training-jobs`."""

    model_id: UUID
    trajectory_groups: Items[TrajectoryGroup]
    experimental_config: ExperimentalTrainingConfig | None = None


class TrainingJobResponse(Wire):
    id: UUID


JobStatus = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class TrainingJob(Wire):
    """A stored training job; times are UTC. `step` is the checkpoint it started from, `final_step` the one it made."""

    id: UUID
    model_id: UUID
    status: JobStatus
    created_at: DateTime
    started_at: DateTime | None = None
    ended_at: DateTime | None = None
    step: Integer | None = None
    final_step: Integer | None = None
    error: str | None = None


class RegisterModel(Wire):
    """Body of `POST {base_url}/v1/preview/models`.

    `from_checkpoint` is an addition of the embedded service, and is sent only if it is set: the new model begins as a
    copy of this checkpoint, `PROJECT/NAME@STEP` or `UUID@STEP`, under the same step number.
    """

    entity: str | None = Field(default=None, pattern=NAME, max_length=LONGEST_NAME)
    project: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    name: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    base_model: str | None = None
    return_existing: Boolean = False
    from_checkpoint: str | None = None


class Ancestor(Wire):
    """A checkpoint that a model began from: of the model with this id, which was called `model` then."""

    model_id: UUID
    model: str
    step: Integer = Field(ge=0, le=LARGEST_STEP)

    def __str__(self) -> str:
        return f"{self.model}@{self.step}"


class Model(Wire):
    """A registered, trainable policy.

    The embedded service adds `conflict` where it can neither sample nor train the model: why, and what to type. To a
    model that was made from a checkpoint of another it adds `made_from`: this checkpoint, then the one that the other
    model was made from, and so on.
    """

    id: UUID
    entity: str
    project: str
    name: str
    base_model: str
    run_id: str | None = None
    conflict: str | None = None
    made_from: Items[Ancestor] | None = None


class Checkpoint(Wire):
    """The policy after `step` training jobs; step 0 is the base model."""

    id: str
    step: Integer
    metrics: dict[str, Number] = {}


class CheckpointList(Wire):
    object: Literal["list"]
    data: Items[Checkpoint]
    first_id: str | None = None
    last_id: str | None = None
    has_more: Boolean


class DeleteCheckpoints(Wire):
    """Body of `DELETE {base_url}/v1/preview/models/{id}/checkpoints`."""

    steps: Items[Integer]


class DeletedCheckpoints(Wire):
    """`not_found_steps` were requested but do not exist."""

    deleted_count: Integer
    not_found_steps: Items[Integer]


class CheckpointFile(Wire):
    """A file of a checkpoint, to be downloaded; rolloutlab's own extension."""

    name: str = Field(pattern=r"^\w[\w.-]*\.(json|safetensors|jinja|txt|model)$", max_length=LONGEST_NAME)
    bytes: Integer = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class CheckpointFileList(Wire):
    """The files of an adapter with its tokenizer, and what it is an adapter of.

    base: what `transformers` loads as the base: a folder of the service's machine, or a name of the hub.
    fingerprint: of the base's weights and configuration.
    dtype: in which the service has these.
    merged_base: `base` is an adapter folder itself, which the service merges into its own base.
    elsewhere: why there are no files, and where the adapter is.
    """

    object: Literal["list"]
    data: Items[CheckpointFile]
    base: str = ""
    fingerprint: str = ""
    dtype: Literal["float32", "bfloat16"] = "float32"
    merged_base: Boolean = False
    elsewhere: str = ""


class LostCheckpoint(Wire):
    """A checkpoint on disk that the service's database does not list; rolloutlab's own extension.

    model: its name, absent where its files do not have it. bytes: of all its files. reason: why it is not listed.
    """

    model: str | None = None
    model_id: UUID
    step: Integer
    bytes: Integer
    reason: str


class LostCheckpointList(Wire):
    object: Literal["list"]
    data: Items[LostCheckpoint]


class RecoveredCheckpoints(Wire):
    """Checkpoints that are listed again, and those that could not be, with the reason."""

    recovered: Items[LostCheckpoint]
    remaining: Items[LostCheckpoint]


class DeletedModel(Wire):
    id: UUID
    deleted: Boolean


class ModelCard(Wire):
    """One entry of `GET {inference_base_url}/models`. Many services send only the id.

    `created` is in seconds since the epoch.

    The embedded service adds the base of a trainable model, its newest step and how many checkpoints it has, the
    checkpoint that it was made from (`lab/practice@2`), and what it reads beyond OpenAI's messages: `token_ids`, those
    sampled for earlier turns.
    """

    id: str
    object: str = "model"
    created: Integer = 0
    owned_by: str = ""
    base_model: str | None = None
    newest_step: Integer | None = None
    checkpoints: Integer | None = None
    made_from: str | None = None
    reads: Items[str] | None = None


class ModelCardList(Wire):
    object: str = "list"
    data: Items[ModelCard]


class UsageEntry(Wire):
    """Usage of one model by one project; `project` is the request's project header, or empty."""

    project: str
    model: str
    requests: Integer
    prompt_tokens: Integer
    completion_tokens: Integer


class UsageList(Wire):
    object: Literal["list"]
    data: Items[UsageEntry]


class Event(Wire):
    """One event of a job; `data` is free-form, and the values of a `gradient_step` are all numbers.

    Types: waiting, training_started, preflight, resumed, step_progress, gradient_step, checkpoint_saved, restarted, and
    those of `ENDINGS`. Readers ignore types that they do not know.
    """

    id: str
    type: str
    data: dict[str, Any] = {}


class EventList(Wire):
    object: Literal["list"]
    data: Items[Event]
    has_more: Boolean


ENDINGS = frozenset({"training_ended", "training_failed", "training_cancelled"})
"""Types of the last event of a job."""
