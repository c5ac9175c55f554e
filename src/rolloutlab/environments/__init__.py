"""Environments: simulators that answer each turn of a rollout, and adapters for those of public packages."""
