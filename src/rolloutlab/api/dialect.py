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
    """The API as the specification has it. A vendor's plug-in subclasses it and overrides what differs there.

    endpoints: method and path below /v1/preview of those that it has; None: each is tried. trains: None: it is tried.
    lists_models: whether it has GET /v1/models. poll_seconds: the least time between two requests for events.
    engine: what it does not honour. has_limits: whether lists take `limit`. repeats: whether a job that is sent again
    under its key is made once. names_checkpoint: whether a completion says which checkpoint sampled it. group_end: the
    JSON that ends a trajectory group.
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
        """What `%connect` takes for the service."""
        return address.base_url

    def chat_name(self, address: Address, model: str) -> str:  # noqa: ARG002 - of a vendor's project
        """The name of a model in chat requests."""
        return model

    def completion(self, model: str, completion: ChatCompletion) -> ChatCompletion:  # noqa: ARG002 - as above
        """A completion of a model, with the checkpoint that sampled it."""
        return completion

    def registration(self, address: Address, model: RegisterModel) -> dict[str, Any]:  # noqa: ARG002 - as above
        """The body that registers a model. Raises InputError: the service would not take it."""
        return model.to_wire()

    def page(self, answer: Any) -> Any:
        """A page of a list as the specification has it."""
        return answer

    def job(self, job: CreateTrainingJob) -> CreateTrainingJob:
        """The job with its k2 tau as the service reads it: under both of its names."""
        config = job.experimental_config
        if config is None or config.vendor_k2_tau is None:
            return job
        renamed = config.model_copy(update={"kimi_k2_tau": config.vendor_k2_tau})
        return job.model_copy(update={"experimental_config": renamed})

    def trajectory(self, trajectory: Trajectory) -> bytes:
        """The JSON of a trajectory of a job."""
        return trajectory.to_json().encode()


class _SamplesOnly(Dialect):
    """A service of OpenAI's chat completions alone."""

    endpoints = re.compile("(?!)")
    trains = False


_OWN = {"rolloutlab": Dialect(), "openai": _SamplesOnly()}


def dialect_of(address: Address) -> Dialect:
    """The dialect of a service."""
    dialect: Dialect = _OWN[address.kind] if address.kind in _OWN else load(ENGINES, address.kind).DIALECT
    return dialect
