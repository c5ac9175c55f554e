"""Dialects: how a kind of service names models and jobs, and which endpoints of the training API it has."""

import re
from typing import Any

from rolloutlab.api.wire.chat import ChatCompletion
from rolloutlab.api.wire.engine import EngineStatus
from rolloutlab.api.wire.training import CreateTrainingJob, RegisterModel
from rolloutlab.api.wire.trajectories import Trajectory
from rolloutlab.plugins import ENGINES, load
from rolloutlab.settings import Address


class Dialect:
    """How a service speaks the API. This class follows the specification; a vendor's plug-in overrides what differs.

    Attributes:
        endpoints: Matches `METHOD PATH` of the endpoints that the service has, with paths below /v1/preview. None if
            that is not known: every endpoint is then tried.
        trains: Whether the service trains models; None if only a request can tell.
        lists_models: Whether the service has GET /v1/models.
        poll_seconds: The least time between two requests for events.
        engine: The options that the service does not honour; None if there are none or it reports them itself.
        has_limits: Whether lists take the parameter `limit`.
        repeats: Whether a request with the same `Idempotency-Key` can be sent again without making a second job.
        names_checkpoint: Whether a completion has the checkpoint that sampled it.
        group_end: The JSON that ends a trajectory group.
    """

    endpoints: re.Pattern[str] | None = None
    trains: bool | None = None
    lists_models = True
    poll_seconds = 0.0
    engine: EngineStatus | None = None
    has_limits = True
    repeats = True
    names_checkpoint = True
    group_end = b"]}"

    def has(self, method: str, path: str) -> bool:
        """Whether the service may have an endpoint of the training API."""
        return self.endpoints is None or self.endpoints.fullmatch(f"{method} {path}") is not None

    def typed(self, address: Address) -> str:
        """Return what a user types after `%connect` to use the service."""
        return address.base_url

    def chat_name(self, address: Address, model: str) -> str:  # noqa: ARG002 - vendors use the address
        """Return the name of a model in chat requests."""
        return model

    def download(self, address: Address, checkpoint: str) -> str:  # noqa: ARG002 - as above
        """Return what a user types to download a checkpoint such as `lab/sorter@3`; empty if that is not known."""
        return ""

    def completion(self, model: str, completion: ChatCompletion) -> ChatCompletion:  # noqa: ARG002 - as above
        """Return a completion of a model with the checkpoint that sampled it, where the service names one."""
        return completion

    def registration(self, address: Address, model: RegisterModel) -> dict[str, Any]:  # noqa: ARG002 - as above
        """Return the body that registers a model, or raise InputError if the service would not take it."""
        return model.to_wire()

    def page(self, answer: Any) -> Any:
        """Convert a page of a list from the service to the form of the specification."""
        return answer

    def job(self, job: CreateTrainingJob) -> CreateTrainingJob:
        """Return the job with the option k2 tau under both names, `vendor_k2_tau` and `kimi_k2_tau`."""
        config = job.experimental_config
        if config is None or config.vendor_k2_tau is None:
            return job
        renamed = config.model_copy(update={"kimi_k2_tau": config.vendor_k2_tau})
        return job.model_copy(update={"experimental_config": renamed})

    def trajectory(self, trajectory: Trajectory) -> bytes:
        """Return the JSON of a trajectory of a job."""
        return trajectory.to_json().encode()


class _SamplesOnly(Dialect):
    """A service of OpenAI's chat completions alone."""

    endpoints = re.compile("(?!)")
    trains = False


_OWN = {"rolloutlab": Dialect(), "openai": _SamplesOnly()}


def dialect_of(address: Address) -> Dialect:
    """Return the dialect of a service."""
    dialect: Dialect = _OWN[address.kind] if address.kind in _OWN else load(ENGINES, address.kind).DIALECT
    return dialect
