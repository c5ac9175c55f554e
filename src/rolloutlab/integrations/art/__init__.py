"""openpipe-art: its reward functions, and files of its trajectory groups."""

from rolloutlab.integrations.art.rewards import recognise, reward

__all__ = ["recognise", "reward"]
