"""A Tinker server and its engine."""

from tests.engines.conftest import engine, server  # noqa: F401  # fixtures
