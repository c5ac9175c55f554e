"""vLLM: a server that samples for an engine that trains elsewhere, as `--sampler-url`."""

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolloutlab.engines.engine import Engine

KEY = "VLLM_API_KEY"
KEY_VARIABLES = (KEY,)


def sample_from(engine: "Engine", url: str, names: Collection[str]) -> "Engine":
    """Sample an engine's checkpoints on the server at a URL; see `sampler.VllmSampled`.

    names: what the base may be called there.
    """
    from rolloutlab.integrations.vllm.sampler import VllmSampled

    return VllmSampled(engine, url, names, os.environ.get(KEY))
