"""Capture of agent programs: a gateway that records the chat completions of a rollout, and their histories."""
