"""W&B Training, a hosted service: its API as its public client, openpipe-art 0.5.18, uses it."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from rolloutlab.api.dialect import Dialect
from rolloutlab.api.wire.chat import ChatCompletion
from rolloutlab.api.wire.engine import EngineStatus
from rolloutlab.api.wire.levels import OF_STEPS
from rolloutlab.api.wire.reasoning import UNREAD
from rolloutlab.api.wire.training import CreateTrainingJob, RegisterModel
from rolloutlab.api.wire.trajectories import Trajectory
from rolloutlab.errors import InputError
from rolloutlab.settings import Address
from rolloutlab.settings.vendors import Vendor

VENDOR = Vendor("https://api.training.wandb.ai", "WANDB_API_KEY", names_hold_project=True)
KEY_VARIABLES = (VENDOR.api_key_env,)
_UNSUPPORTED = {
    **dict.fromkeys(
        ("kl_penalty_coef", "kl_ref_step", "truncated_importance_sampling", *OF_STEPS),
        "its vendor's client does not send it",
    ),
    "credit": "it takes one reward for each trajectory",
}
_ADDED = {"policy_version", "continues", "token_ids", UNREAD}
"""Fields that this package adds to choices and messages."""
_FIELDS: dict[str, Any] = {
    "messages_and_choices": [], "tools": None, "additional_histories": [], "reward": 0.0,
    "initial_policy_version": None, "final_policy_version": None, "metrics": {}, "metadata": {}, "logs": [],
}  # fmt: skip
"""The fields of a trajectory that the vendor's client sends, with its defaults."""


class _WandbDialect(Dialect):
    """Models are artifacts of a project, a repeated job is another one, and k2 tau has one name."""

    endpoints = re.compile(
        r"POST models|DELETE models/[^/]+|(GET|DELETE) models/[^/]+/checkpoints"
        r"|POST training-jobs|GET training-jobs/[^/]+/events"
    )
    trains = True
    lists_models = False
    poll_seconds = 1.0
    engine = EngineStatus(name="wandb", unsupported=_UNSUPPORTED)
    has_limits = False
    repeats = False
    names_checkpoint = False
    group_end = b'],"exceptions":[],"metadata":{},"metrics":{},"logs":[]}'

    def typed(self, address: Address) -> str:
        return f"wandb:{address.project}"

    def chat_name(self, address: Address, model: str) -> str:
        """Write `PROJECT/NAME@3` as `wandb-artifact:///ENTITY/PROJECT/NAME:step3`. Other names, as of a base, stay."""
        entity, _, project = (address.project or "").partition("/")
        name, _, step = model.partition("@")
        if name.partition("/")[0] != project:
            return model
        return f"wandb-artifact:///{entity}/{name}{f':step{step}' if step else ''}"

    def download(self, address: Address, checkpoint: str) -> str:
        artifact = self.chat_name(address, checkpoint).removeprefix("wandb-artifact:///")
        return f"!wandb artifact get {artifact}, with the vendor's package"

    def completion(self, model: str, completion: ChatCompletion) -> ChatCompletion:
        """Give a completion the checkpoint that the model's name has."""
        step = model.partition("@")[2]
        if not step.isdecimal():
            return completion
        choices = [choice.model_copy(update={"policy_version": int(step)}) for choice in completion.choices]
        return completion.model_copy(update={"choices": choices})

    def registration(self, address: Address, model: RegisterModel) -> dict[str, Any]:
        entity, _, project = (address.project or "").partition("/")
        if model.project != project:
            here = f"{project}/{model.name}"
            raise InputError(f"models of the connected project are named {here}", hint=f"%model {here} --base BASE")
        if model.base_model is None:
            hint = f"%model {project}/{model.name} --base BASE, such as OpenPipe/Qwen3-14B-Instruct"
            raise InputError(f"wandb registers no model without its base: {project}/{model.name}", hint=hint)
        body = {"entity": entity, "project": project, "name": model.name, "base_model": model.base_model}
        return body | {"return_existing": model.return_existing}

    def page(self, answer: Any) -> Any:
        """Complete a page: an empty one is the end, and `has_more` may be absent."""
        if not isinstance(answer, Mapping):
            return answer
        more = answer.get("has_more") is not False and bool(answer.get("data"))
        return {**answer, "object": "list", "has_more": more}

    def job(self, job: CreateTrainingJob) -> CreateTrainingJob:
        """Move the job's k2 tau to `kimi_k2_tau`."""
        config = job.experimental_config
        if config is None or config.vendor_k2_tau is None:
            return job
        others = {name: value for name, value in config.to_wire().items() if name != "vendor_k2_tau"}
        renamed = type(config).model_validate(others).model_copy(update={"kimi_k2_tau": config.vendor_k2_tau})
        return job.model_copy(update={"experimental_config": renamed})

    def trajectory(self, trajectory: Trajectory) -> bytes:
        """Write the fields that the client sends as JSON, with items without what this package added."""
        wire = trajectory.to_wire()
        sent = {name: wire.get(name, default) for name, default in _FIELDS.items()}
        sent["messages_and_choices"] = [_item(item) for item in sent["messages_and_choices"]]
        sent["additional_histories"] = [
            {**each, "messages_and_choices": [_item(item) for item in each["messages_and_choices"]]}
            for each in sent["additional_histories"]
        ]
        return to_json(sent)


DIALECT = _WandbDialect()


def _item(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in _ADDED}
