"""Rollouts of programs: calls of agents that speak the API, captured through a gateway."""
