"""Sampling of trajectories from prompts and rows: requests, turns, tools, storage on arrival."""
