"""Tinker API: the engine whose samples and gradients a Tinker server computes."""

from typing import Any


def open_engine(*arguments: Any, **options: Any) -> Any:
    """As `rolloutlab.integrations.tinker.engine.open_engine`, which imports the SDK and torch."""
    from rolloutlab.integrations.tinker import engine

    return engine.open_engine(*arguments, **options)
