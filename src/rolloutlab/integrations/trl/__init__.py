"""TRL: its reward functions, and the environments of its `environment_factory`."""
