"""Scores of trajectories by reward functions: their arguments, concurrent calls, storage and memory of results."""
