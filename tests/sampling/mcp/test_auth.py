"""The token on the requests of the official SDK's HTTP library, at a real server."""

import asyncio

import httpx2
import pytest

from rolloutlab.auth.session import OAuthSession
from rolloutlab.auth.token_store import MemoryStore
from rolloutlab.errors import SignInError
from rolloutlab.sampling.mcp.client import BearerAuth, operation_of
from tests.auth.world import Person, World


@pytest.fixture
def world():
    made = World()
    yield made
    made.close()


@pytest.fixture
def person():
    return Person()


@pytest.fixture
def access(world, person):
    return OAuthSession(world.url, person, MemoryStore())


async def asked(access, *calls):
    """Statuses of calls over one connection, and the addresses that were asked."""
    urls = []

    async def seen(request):
        urls.append(str(request.url))

    async with httpx2.AsyncClient(auth=BearerAuth(access), event_hooks={"request": [seen]}) as http:
        answers = [await http.post(f"{access.server}/{name}", json={"method": method}) for name, method in calls]
    return [answer.status_code for answer in answers], urls


SESSION = [("read", "initialize"), ("read", "notifications/initialized"), ("read", "tools/list")]


@pytest.mark.clause("F1", "F2")
def test_every_request_of_one_session_bears_the_token_in_a_header_and_none_in_its_address(access, world):
    async def story():
        await access.sign_in()
        return await asked(access, *SESSION)

    statuses, urls = asyncio.run(story())
    assert statuses == [200] * len(SESSION)
    [token] = set(world.tokens_sent[1:])
    assert token in world.scopes
    assert urls == [f"{world.url}/read"] * len(SESSION)


@pytest.mark.clause("M1")
def test_after_insufficient_scope_the_original_request_is_retried(access, world, person):
    async def story():
        await access.sign_in()
        return await asked(access, ("write", "tools/call"))

    assert asyncio.run(story())[0] == [200]
    assert len(person.questions) == 2


def test_without_a_sign_in_it_is_said_what_to_type(access):
    with pytest.raises(SignInError) as error:
        asyncio.run(asked(access, *SESSION))
    assert error.value.hint == f"%login {access.server}"


@pytest.mark.clause("M4")
@pytest.mark.parametrize(
    ("body", "operation"),
    [
        (b'{"method": "tools/call", "params": {"name": "find"}}', "tools/call find"),
        (b'{"method": "tools/list"}', "tools/list"),
        (b"", ""),
        (b"[1]", ""),
    ],
)
def test_attempts_are_tracked_per_operation(body, operation):
    assert operation_of(body) == operation
