"""Tinker API: the engine whose samples and gradients a Tinker server computes."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rolloutlab.errors import InputError
from rolloutlab.settings import ModelSettings, Settings

if TYPE_CHECKING:
    from rolloutlab.engines.engine import Engine

HOSTED, KEY = "https://tinker.thinkingmachines.dev/services/tinker-prod", "TINKER_API_KEY"
KEY_VARIABLES = (KEY,)
UNMETERED = "no budget can hold on a Tinker server: it charges for tokens that the lab's service does not count"


def open_engine(policy: str, settings: ModelSettings, *, least_seconds: float | None = None) -> "Engine":
    """Open the engine on the server at `settings.engine_url`; the key is in `TINKER_API_KEY`, if it needs one."""
    from rolloutlab.integrations.tinker import engine

    return engine.open_engine(policy, settings, least_seconds=least_seconds)


def connect(name: str, configured: Settings, environment: Mapping[str, str]) -> Settings:
    """Return the settings of an embedded service that samples and trains a model on the hosted Tinker service.

    name: the name of the model, such as `Qwen/Qwen3-8B`.

    Raises:
        InputError: it is not the name of a model, or there is no key.
    """
    if not re.fullmatch(r"\w[\w.-]*/[\w.-]+", name, re.ASCII):
        raise InputError(f"{name!r} is not the name of a model", hint="%connect tinker:Qwen/Qwen3-8B")
    if not environment.get(KEY):
        message = f"the environment variable {KEY}, which should hold the key, is not set"
        raise InputError(message, hint=f"%env {KEY}=")
    model = configured.model.model_copy(update={"engine": "tinker", "engine_url": HOSTED})
    chosen = dict.fromkeys(("policy", "engine", "engine_url"), f"%connect tinker:{name}")
    return replace(configured, policy=name, model=model, origins={**configured.origins, **chosen})
