"""A training job on a model of the tiny policy, made without asking the service for completions."""

from typing import Any

import pytest


def _trajectory(reward: float, tokens: int = 4, **overrides: Any) -> dict[str, Any]:
    content = [
        {"token": chr(97 + i % 26), "token_id": 20 + i % 200, "logprob": -5.7, "top_logprobs": []}
        for i in range(tokens)
    ]
    choice = {
        "finish_reason": "length",
        "index": 0,
        "message": {"role": "assistant", "content": "a"},
        "logprobs": {"content": content},
    }
    return {"messages_and_choices": [{"role": "user", "content": "hello"}, choice], "reward": reward, **overrides}


@pytest.fixture(scope="session")
def trajectory():
    """Makes the JSON of a trajectory that trains."""
    return _trajectory


@pytest.fixture(scope="session")
def body():
    """Makes the JSON of a job for a model."""

    def make(model_id: Any, **overrides: Any) -> dict[str, Any]:
        group = {"trajectories": [_trajectory(0.0), _trajectory(1.0)]}
        return {"model_id": str(model_id), "trajectory_groups": [group], **overrides}

    return make
