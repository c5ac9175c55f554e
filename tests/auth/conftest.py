"""A server that guards something, and who signs in there."""

from collections.abc import Iterator

import pytest

from tests.auth.world import Person, World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def person() -> Person:
    return Person()
