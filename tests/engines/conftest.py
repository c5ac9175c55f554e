"""A Tinker server and its engine, for all tests of a module."""

import pytest


@pytest.fixture(scope="module")
def server(policy):
    from tests.integrations.tinker.tinker_server import Server, serving  # it needs the extra

    with serving(Server(policy, "tiny")) as server:
        yield server


@pytest.fixture(scope="module")
def engine(server):
    from tests.integrations.tinker.tinker_server import engine_of

    with engine_of(server) as engine:
        yield engine
