"""OpenAI graders: their JSON as a reward function."""
