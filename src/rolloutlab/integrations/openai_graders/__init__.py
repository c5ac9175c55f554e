"""OpenAI graders: their JSON as a reward function."""

from rolloutlab.integrations.openai_graders.graders import reward

__all__ = ["reward"]
