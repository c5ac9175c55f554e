"""TRL: its reward functions, and the environments of its `environment_factory`."""

from rolloutlab.integrations.trl.rewards import recognise, reward

__all__ = ["recognise", "reward"]
