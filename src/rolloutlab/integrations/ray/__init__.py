"""The engine on a Ray cluster: a trainer and a sampler on each node, as plain actors."""

import os
import secrets
from typing import TYPE_CHECKING

from rolloutlab.settings import ModelSettings

if TYPE_CHECKING:
    from rolloutlab.engines.engine import Engine


def open_engine(policy: str, settings: ModelSettings, *, least_seconds: float | None = None) -> "Engine":
    """See `engines.open`. Joins the cluster at `settings.engine_url`, or starts one on 127.0.0.1.

    Ray reads the variables below once, when it is imported. One switches reports to its makers off. The others are the
    token of a cluster that is started here, because a cluster runs code for every program that reaches it. The token is
    in no file.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if settings.engine_url is None and "RAY_AUTH_MODE" not in os.environ:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))

    from rolloutlab.integrations.ray.engine import RayEngine

    return RayEngine(policy, settings, least_seconds=least_seconds)
