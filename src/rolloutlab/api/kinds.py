"""Kinds of services: how each names models and options, and which endpoints of the training API it has.

`wandb` as its public client openpipe-art 0.5.18 uses it; `openai` samples only; the default is the specification, of
which a service may lack endpoints.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolloutlab.api.wire.chat import ChatCompletion
from rolloutlab.api.wire.engine import EngineStatus
from rolloutlab.api.wire.levels import OF_STEPS
from rolloutlab.api.wire.reasoning import UNREAD
from rolloutlab.api.wire.training import CreateTrainingJob, RegisterModel
from rolloutlab.errors import InputError
from rolloutlab.settings import Address


@dataclass(frozen=True)
class Kind:
    """What is known of a service before it is asked.

    endpoints: method and path below /v1/preview of those that it has; None: each is tried. trains: None: it is tried.
    lists_models: whether it has GET /v1/models. poll_seconds: the least time between two requests for events.
    engine: what it does not honour.
    """

    endpoints: re.Pattern[str] | None = None
    trains: bool | None = None
    lists_models: bool = True
    poll_seconds: float = 0.0
    engine: EngineStatus | None = None

    def has(self, method: str, path: str) -> bool:
        """Whether the service may have an endpoint of the training API."""
        return self.endpoints is None or self.endpoints.fullmatch(f"{method} {path}") is not None


_BEYOND = ("kl_penalty_coef", "kl_ref_step", "truncated_importance_sampling", *OF_STEPS)
_UNSUPPORTED = {
    **dict.fromkeys(_BEYOND, "its vendor's client does not send it"),
    "credit": "it takes one reward for each trajectory",
}

_KINDS = {
    "rolloutlab": Kind(),
    "openai": Kind(re.compile("(?!)"), trains=False),
    "wandb": Kind(
        re.compile(
            r"POST models|DELETE models/[^/]+|(GET|DELETE) models/[^/]+/checkpoints"
            r"|POST training-jobs|GET training-jobs/[^/]+/events"
        ),
        trains=True,
        lists_models=False,
        poll_seconds=1.0,
        engine=EngineStatus(name="wandb", unsupported=_UNSUPPORTED),
    ),
}
_OWN = {"policy_version", "continues", "token_ids", UNREAD}  # what this package adds to choices and messages
_OF_TRAJECTORIES: dict[str, Any] = {
    "messages_and_choices": [], "tools": None, "additional_histories": [], "reward": 0.0,
    "initial_policy_version": None, "final_policy_version": None, "metrics": {}, "metadata": {}, "logs": [],
}  # fmt: skip
"""The fields of a trajectory that the client of wandb sends, with its defaults."""


def kind_of(address: Address) -> Kind:
    """The kind of a service."""
    return _KINDS[address.kind]


def chat_name(address: Address, model: str) -> str:
    """The name of a model in chat requests: at wandb, those of the connected project are artifacts.

    `PROJECT/NAME@3` is `wandb-artifact:///ENTITY/PROJECT/NAME:step3`; any other name stays, such as that of a base.
    """
    entity, _, project = (address.project or "").partition("/")
    name, _, step = model.partition("@")
    if address.kind != "wandb" or name.partition("/")[0] != project:
        return model
    return f"wandb-artifact:///{entity}/{name}{f':step{step}' if step else ''}"


def with_step(address: Address, model: str, completion: ChatCompletion) -> ChatCompletion:
    """The completion with the checkpoint that was named, where the service does not report which one it sampled."""
    step = model.partition("@")[2]
    if address.kind != "wandb" or not step.isdecimal():
        return completion
    choices = [choice.model_copy(update={"policy_version": int(step)}) for choice in completion.choices]
    return completion.model_copy(update={"choices": choices})


def registration(address: Address, model: RegisterModel) -> dict[str, Any]:
    """The body that registers a model; InputError where wandb would need another project, or the base."""
    if address.kind != "wandb":
        return model.to_wire()
    entity, _, project = (address.project or "").partition("/")
    if model.project != project:
        here = f"{project}/{model.name}"
        raise InputError(f"models of the connected project are named {here}", hint=f"%model {here} --base BASE")
    if model.base_model is None:
        hint = f"%model {project}/{model.name} --base BASE, such as OpenPipe/Qwen3-14B-Instruct"
        raise InputError(f"wandb registers no model without its base: {project}/{model.name}", hint=hint)
    body = {"entity": entity, "project": project, "name": model.name, "base_model": model.base_model}
    return body | {"return_existing": model.return_existing}


def page_of(address: Address, answer: Any) -> Any:
    """A page of a list as the specification has it; at wandb an empty page is the end, and `has_more` may be absent."""
    if address.kind != "wandb" or not isinstance(answer, Mapping):
        return answer
    return {**answer, "object": "list", "has_more": answer.get("has_more") is not False and bool(answer.get("data"))}


def config_of(address: Address, job: CreateTrainingJob) -> CreateTrainingJob:
    """The job with its k2 tau as the service reads it: under both of its names, at wandb under `kimi_k2_tau` alone."""
    config = job.experimental_config
    if config is None or config.vendor_k2_tau is None:
        return job
    others = {name: value for name, value in config.to_wire().items() if name != "vendor_k2_tau"}
    kept = type(config).model_validate(others) if address.kind == "wandb" else config
    renamed = kept.model_copy(update={"kimi_k2_tau": config.vendor_k2_tau})
    return job.model_copy(update={"experimental_config": renamed})


def trajectory_of(trajectory: Mapping[str, Any]) -> dict[str, Any]:
    """A trajectory with the fields that the client of wandb sends, and its items without what this package added."""
    sent = {name: trajectory.get(name, default) for name, default in _OF_TRAJECTORIES.items()}
    sent["messages_and_choices"] = [_item(item) for item in sent["messages_and_choices"]]
    sent["additional_histories"] = [
        {**each, "messages_and_choices": [_item(item) for item in each["messages_and_choices"]]}
        for each in sent["additional_histories"]
    ]
    return sent


def _item(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in _OWN}
