"""A token's life, against a real server: signed in for, attached, renewed, stepped up, given back."""

import asyncio
import json
import threading

import httpx
import pytest

from rolloutlab.auth.authorization import DeniedError, SignInOptions
from rolloutlab.auth.registration import RegisteredClient
from rolloutlab.auth.session import OAuthSession
from rolloutlab.auth.token_store import FileStore, MemoryStore
from rolloutlab.errors import RolloutlabError, ServiceError, SignInError, UnreachableError
from tests.auth.world import REDIRECT, TLS, Person


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def access(world, person, clock):
    return OAuthSession(world.url, person, MemoryStore(), now=lambda: clock[0])


async def sent(access, operation="read"):
    """A request as an adapter sends it, until it needs not be sent again."""
    async with httpx.AsyncClient(verify=TLS, timeout=240) as http:
        while True:
            token = await access.token()
            bearing = {"Authorization": f"Bearer {token}"} if token else {}
            response = await http.get(f"{access.server}/{operation}", headers=bearing)
            if not await access.after(response.status_code, response.headers.multi_items(), operation, token):
                return response.status_code


async def signed_in(access):
    await access.sign_in()
    return access


@pytest.mark.clause("O2")
def test_a_request_without_a_token_says_what_to_type(access):
    with pytest.raises(SignInError) as error:
        asyncio.run(sent(access))
    assert error.value.hint == f"%login {access.server}"


@pytest.mark.clause("A2", "F1", "N1")
def test_signing_in_asks_once_and_every_request_carries_the_token(access, world, person):
    async def story():
        standing = await access.sign_in()
        assert [await sent(access) for _ in range(3)] == [200] * 3
        return standing

    standing = asyncio.run(story())
    assert (standing.server, standing.scopes, standing.renews) == (world.url, ("lab:read",), True)
    [question] = person.questions
    assert (question.server, question.resource, question.authority) == (world.url, world.url, world.origin[7:])
    assert len(set(world.tokens_sent[-3:])) == 1
    assert "access-" not in repr(standing)


def test_the_person_is_shown_where_the_page_is_that_opens_if_it_is_not_at_the_authorization_server(
    access, world, person
):
    elsewhere = world.origin.replace("127.0.0.1", "localhost")
    world.changed["authorization_endpoint"] = f"{elsewhere}/authorize"
    asyncio.run(access.sign_in())
    assert person.questions[0].authority == f"{world.origin[7:]} (the page is at {elsewhere[7:]})"


def test_a_token_that_is_about_to_expire_is_renewed_before_it_is_sent(access, world, clock):
    async def story():
        await access.sign_in()
        clock[0] += 580
        await sent(access)

    asyncio.run(story())
    assert world.seen["/token"] == 2
    assert "" not in world.tokens_sent[1:]


@pytest.mark.clause("O2")
def test_a_401_is_answered_by_a_refresh_and_not_by_the_browser(access, world, person):
    async def story():
        await access.sign_in()
        world.revoke_all()
        return await sent(access)

    assert asyncio.run(story()) == 200
    assert len(person.questions) == 1


@pytest.mark.parametrize("lifetime", [-1, 0, float("inf"), float("nan")])
def test_a_lifetime_that_is_none_is_one_that_is_not_known(access, world, lifetime):
    world.lifetime = lifetime

    async def story():
        standing = await access.sign_in()
        assert [await sent(access) for _ in range(3)] == [200] * 3
        return standing

    assert asyncio.run(story()).expires_at is None
    assert world.seen["/token"] == 1


def test_many_requests_at_once_refresh_once(access, world):
    async def story():
        await access.sign_in()
        world.revoke_all()
        return await asyncio.gather(*(sent(access) for _ in range(64)))

    assert asyncio.run(story()) == [200] * 64
    assert world.seen["/token"] == 2


def test_an_interrupt_in_the_middle_of_a_refresh_loses_no_token(access, world, person):
    async def story():
        await access.sign_in()
        world.revoke_all()
        world.held["/token"] = threading.Event()
        request = asyncio.create_task(sent(access))
        await asyncio.to_thread(world.reached.wait, 20)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        world.held.pop("/token").set()
        return await sent(access)

    assert asyncio.run(story()) == 200
    assert len(person.questions) == 1


def test_a_sign_in_that_hangs_with_its_loop_keeps_nobody_from_the_next(access):
    class Hangs(Person):
        async def __call__(self, server, prepare, port=None):
            stuck.stop()
            await asyncio.Event().wait()

    async def signed_in():
        return await asyncio.wait_for(access.sign_in(), 240)

    stuck = asyncio.new_event_loop()
    hangs = stuck.create_task(access.sign_in(prompt=Hangs()))
    waits = stuck.create_task(access.sign_in(prompt=Hangs()))
    stuck.run_forever()
    assert asyncio.run(signed_in()).server == access.server
    for task in (hangs, waits):
        task.cancel()
    stuck.run_until_complete(asyncio.gather(hangs, waits, return_exceptions=True))
    stuck.close()


def test_tokens_that_are_never_taken_end_in_an_error(access, world):
    async def story():
        await access.sign_in()
        world.replaced["/mcp/read"] = 401, {"WWW-Authenticate": "Bearer"}, b""
        await sent(access)

    with pytest.raises(SignInError, match="refuses its own tokens"):
        asyncio.run(story())


def test_a_refresh_token_that_is_over_ends_the_grant(access, world):
    async def story():
        await access.sign_in()
        world.revoke_all()
        world.refreshes.clear()
        await sent(access)

    with pytest.raises(SignInError, match="has ended"):
        asyncio.run(story())
    assert access.status is None


@pytest.mark.clause("K3")
def test_a_token_without_a_refresh_token_ends_with_its_time_and_says_what_to_type(access, world, clock):
    world.renews = False

    async def story():
        standing = await access.sign_in()
        assert not standing.renews
        assert await sent(access) == 200
        clock[0] += world.lifetime
        await sent(access)

    with pytest.raises(SignInError, match="has expired") as error:
        asyncio.run(story())
    assert error.value.hint == f"%login {access.server}"
    assert access.status is None


def test_a_server_that_is_down_ends_no_grant(access, world, clock):
    async def story():
        await access.sign_in()
        clock[0] += 10_000
        world.replaced["/token"] = 503, {}, b""
        with pytest.raises(SignInError, match="status 503"):
            await sent(access)
        del world.replaced["/token"]
        return await sent(access)

    assert asyncio.run(story()) == 200


@pytest.mark.clause("M1", "M2")
def test_insufficient_scope_steps_up_once_however_many_requests_need_it(access, world, person):
    async def story():
        await access.sign_in()
        return await asyncio.gather(*(sent(access, "write") for _ in range(32)))

    assert asyncio.run(story()) == [200] * 32
    assert [question.scopes for question in person.questions] == [("lab:read",), ("lab:read", "lab:write")]


@pytest.mark.clause("M4", "P1")
def test_step_ups_are_counted_per_operation_across_requests_and_end(access, world, person):
    world.granting = lambda asked: "lab:read"

    async def story():
        await access.sign_in()
        for _ in range(2):
            with pytest.raises(SignInError, match="still requires"):
                await sent(access, "write")
        return await sent(access, "read")

    assert asyncio.run(story()) == 200
    assert len(person.questions) == 3


@pytest.mark.clause("P1")
def test_a_second_step_up_asks_once_for_all_that_was_granted_and_challenged(access, world, person):
    world.needs = {"write": "lab:write", "train": "lab:train"}
    world.granting = lambda asked: asked if asked == "lab:read" or "lab:train" in asked else "lab:write"

    async def story():
        await access.sign_in()
        assert await sent(access, "write") == 200  # for which no more was granted than what was challenged
        assert access.status.scopes == ("lab:write",)
        assert await sent(access, "train") == 200
        return [await sent(access, each) for each in ("read", "write", "train")]

    assert asyncio.run(story()) == [200] * 3
    assert [question.scopes for question in person.questions] == [
        ("lab:read",),
        ("lab:read", "lab:write"),
        ("lab:read", "lab:write", "lab:train"),
    ]


def _others(world, **answers):
    """A second authorization server that would grant all, named after the usual one."""
    described = {"resource": world.url, "authorization_servers": [world.origin, f"{world.origin}/second"]}
    world.replaced["/.well-known/oauth-protected-resource/mcp"] = 200, {}, json.dumps(described).encode()
    second = json.loads(world._authority({})[2]) | {"issuer": f"{world.origin}/second"}
    world.replaced["/.well-known/oauth-authorization-server/second"] = 200, {}, json.dumps(second).encode()
    world.replaced |= answers


@pytest.mark.clause("B2")
def test_the_second_authorization_server_is_asked_where_the_first_cannot_be_reached(access, world, person):
    _others(world)
    closed = json.dumps(
        {"resource": world.url, "authorization_servers": ["http://127.0.0.1:9", f"{world.origin}/second"]}
    )
    world.replaced["/.well-known/oauth-protected-resource/mcp"] = 200, {}, closed.encode()
    person.changes = {"iss": f"{world.origin}/second"}
    asyncio.run(access.sign_in())
    assert access.status.scopes == ("lab:read",)
    assert world.seen["/.well-known/oauth-authorization-server/second"] == 1


@pytest.mark.clause("B2")
@pytest.mark.parametrize("refusing", ["/register", "/token", "denial"])
def test_no_other_authorization_server_is_asked_after_a_refusal(access, world, person, refusing):
    refusal = 400, {}, b'{"error": "invalid_request"}'
    _others(world, **({} if refusing == "denial" else {refusing: refusal}))
    world.denies = refusing == "denial"
    with pytest.raises(SignInError):
        asyncio.run(access.sign_in())
    assert world.seen["/.well-known/oauth-authorization-server/second"] == 0
    assert access.status is None


@pytest.mark.clause("M4")
def test_a_token_that_has_worked_lets_step_ups_be_tried_again(access, world, person):
    async def story():
        await access.sign_in()
        world.granting = lambda asked: "lab:read"
        with pytest.raises(SignInError):
            await sent(access, "write")
        world.needs["write"] = "lab:read"
        assert await sent(access, "write") == 200
        world.needs["write"] = "lab:write"
        world.granting = lambda asked: asked
        return await sent(access, "write")

    assert asyncio.run(story()) == 200


def test_a_denial_is_remembered_until_the_person_asks_again(access, world, person):
    async def story():
        await access.sign_in()
        world.denies = True
        for _ in range(3):
            with pytest.raises(SignInError, match="was denied at"):
                await sent(access, "write")
        assert len(person.questions) == 2
        world.denies = False
        await access.sign_in()
        return await sent(access, "write")

    assert asyncio.run(story()) == 200


def test_after_a_no_nobody_is_asked_for_other_scopes_either(access, world, person):
    async def story():
        await access.sign_in()
        world.denies = True
        for number in range(4):
            world.needs[f"write{number}"] = f"lab:write{number}"
            with pytest.raises(SignInError, match="was denied at"):
                await sent(access, f"write{number}")

    asyncio.run(story())
    assert len(person.questions) == 2


class Slow(Person):
    """Looks at the page for as long as `thinks` is not set; `looks` is set when it is shown."""

    def __init__(self):
        super().__init__()
        self.looks, self.thinks = asyncio.Event(), asyncio.Event()

    async def __call__(self, server, prepare, port=None):
        self.looks.set()
        await self.thinks.wait()
        return await super().__call__(server, prepare, port)


def test_while_a_person_is_asked_what_they_have_allowed_before_goes_on_and_is_renewed(access, world, clock):
    async def story():
        await access.sign_in()
        slow = Slow()
        again = asyncio.create_task(access.sign_in(prompt=slow))
        await slow.looks.wait()
        clock[0] += 599
        assert await asyncio.wait_for(sent(access), 240) == 200
        assert world.seen["/token"] == 2
        slow.thinks.set()
        await again
        return await sent(access)

    assert asyncio.run(story()) == 200


def test_a_step_up_that_is_interrupted_is_neither_a_no_nor_a_try(access, person):
    async def story():
        await access.sign_in()
        for _ in range(3):
            access._prompt = slow = Slow()
            wants = asyncio.create_task(sent(access, "write"))
            await slow.looks.wait()
            wants.cancel()
            await asyncio.gather(wants, return_exceptions=True)
        access._prompt = person
        return await sent(access, "write")

    assert asyncio.run(story()) == 200


def test_a_server_that_cannot_say_who_signs_in_is_asked_once_by_all_that_wait_and_again_later(access, world, person):
    there = "/.well-known/oauth-protected-resource/mcp"

    async def story():
        await access.sign_in()
        before = world.seen[there]
        world.replaced[there] = 503, {}, b""
        failed = await asyncio.gather(*(sent(access, "write") for _ in range(16)), return_exceptions=True)
        assert {type(error) for error in failed} <= {SignInError, ServiceError}
        assert len(person.questions) == 1
        assert world.seen[there] == before + 1
        del world.replaced[there]
        return await sent(access, "write")

    assert asyncio.run(story()) == 200


def test_a_denied_sign_in_leaves_nothing(access, world):
    world.denies = True
    with pytest.raises(DeniedError):
        asyncio.run(access.sign_in())
    assert access.status is None


def test_an_answer_of_another_issuer_sends_no_code_anywhere(access, world, person):
    person.changes = {"iss": "https://evil.example"}
    with pytest.raises(SignInError, match="is not from"):
        asyncio.run(access.sign_in())
    assert world.seen["/token"] == 0


def test_a_client_that_was_forgotten_is_registered_once_more(access, world):
    class Forgetful(Person):
        async def __call__(self, server, prepare, port=None):
            answer = await super().__call__(server, prepare, port)
            if len(self.questions) == 1:
                world.clients.clear()
            return answer

    person = Forgetful()
    asyncio.run(access.sign_in(prompt=person))
    assert (world.seen["/register"], len(person.questions)) == (2, 2)


async def signed_in_as_known(access, world):
    world.clients.add("known")
    await access.sign_in(SignInOptions(client=RegisteredClient("known"), port=8765))


@pytest.mark.clause("J2")
def test_a_client_that_was_registered_beforehand_is_answered_at_its_address_also_in_a_step_up(access, world, person):
    async def story():
        await signed_in_as_known(access, world)
        return await sent(access, "write")

    assert asyncio.run(story()) == 200
    assert (person.ports, world.seen["/register"]) == ([8765, 8765], 0)
    assert [question.redirect for question in person.questions] == [REDIRECT] * 2


def test_another_kernel_that_finds_the_grant_steps_up_as_the_same_client_at_the_same_address(world, person, tmp_path):
    async def story():
        await signed_in_as_known(OAuthSession(world.url, person, FileStore(tmp_path)), world)
        return await sent(OAuthSession(world.url, person, FileStore(tmp_path)), "write")

    assert asyncio.run(story()) == 200
    assert (person.ports, world.seen["/register"]) == ([8765, 8765], 0)


def test_a_client_that_is_known_without_a_port_is_answered_at_any_and_a_new_one_where_nobody_guesses(
    access, world, person
):
    async def story():
        await access.sign_in()
        world.clients.add("known")
        await access.sign_in(SignInOptions(client=RegisteredClient("known")))

    asyncio.run(story())
    assert person.ports == [None, 0]
    assert person.questions[0].redirect is None


@pytest.mark.parametrize("again", ["sign_in", "step_up"])
def test_a_server_with_one_session_for_a_person_and_a_client_keeps_it_when_one_signs_in_again(access, world, again):
    world.one_session = True

    async def story():
        await access.sign_in()
        await (access.sign_in() if again == "sign_in" else sent(access, "write"))
        assert await sent(access) == 200
        world.revoke_all()
        return await sent(access)

    assert asyncio.run(story()) == 200


@pytest.mark.parametrize("challenges", ["POST alone", "with a slash", "POST with a slash", "after a redirect"])
def test_a_server_that_challenges_otherwise_than_a_get_of_its_address_is_signed_in_to(access, world, challenges):
    ours = world._protected

    def protected(operation, headers):
        if headers.get("Authorization"):
            return ours(operation, headers)
        slash = world.path.endswith("/")
        if challenges == "after a redirect" and not slash:
            return 307, {"Location": "/mcp/"}, b""
        if "slash" in challenges and not slash:
            return 404, {}, b""
        if "POST" in challenges and world.method != "POST":
            return 405, {"Allow": "POST"}, b""
        return ours(operation, headers)

    world._protected = protected
    hidden = "/.well-known/oauth-protected-resource/mcp"
    world.moved[hidden] = "/elsewhere"  # so that the challenge alone leads there
    status = asyncio.run(access.sign_in())
    assert status is not None


def test_a_redirect_to_another_server_is_not_followed_by_a_sign_in(access, world):
    world.replaced["/mcp"] = 307, {"Location": "http://localhost:9/mcp"}, b""
    world.replaced["/mcp/"] = 404, {}, b""
    assert asyncio.run(access.sign_in())


@pytest.mark.parametrize("answer", [(503, {}, b""), (500, {}, b'{"error": "server_error"}')])
def test_a_refresh_that_fails_says_what_to_type_and_keeps_the_sign_in(access, world, answer):
    async def story():
        await access.sign_in()
        world.revoke_all()
        world.replaced["/token"] = answer
        with pytest.raises(SignInError) as error:
            await sent(access)
        assert f"%login {access.server}" in error.value.hint
        del world.replaced["/token"]
        return await sent(access)

    assert asyncio.run(story()) == 200


def test_signing_out_gives_the_tokens_back_and_forgets_them(access, world):
    async def story():
        await access.sign_in()
        assert await access.sign_out()
        assert (world.scopes, world.refreshes, access.status) == ({}, {}, None)
        assert not await access.sign_out()
        await sent(access)

    with pytest.raises(SignInError, match="wants you to sign in"):
        asyncio.run(story())


@pytest.mark.clause("N13")
def test_two_kernels_that_share_a_grant_do_not_end_each_others_refresh_token(world, person, clock, tmp_path):
    world.lifetime = 3
    kernels = [OAuthSession(world.url, person, FileStore(tmp_path / "kept"), now=lambda: clock[0]) for _ in range(2)]

    async def story():
        await kernels[0].sign_in()
        for _ in range(20):
            clock[0] += 3
            assert await asyncio.gather(*(sent(each) for each in kernels for _ in range(4))) == [200] * 8

    asyncio.run(story())
    assert len(person.questions) == 1
    assert world.seen["/token"] == 21


def test_requests_without_a_sign_in_look_rarely_for_one_of_another_kernel_and_use_it(
    world, person, tmp_path, monkeypatch
):
    looks = []

    class Store(FileStore):
        def read(self, server):
            looks.append(server)
            return super().read(server)

    here, there = OAuthSession(world.url, person, FileStore(tmp_path)), OAuthSession(world.url, person, Store(tmp_path))

    async def story():
        monkeypatch.setattr("rolloutlab.auth.session._LOOKS", 3600)
        assert {await there.token() for _ in range(100)} == {None}
        assert len(looks) == 1
        await here.sign_in()
        monkeypatch.setattr("rolloutlab.auth.session._LOOKS", 0)
        assert await there.token() == await here.token() is not None

    asyncio.run(story())


def test_a_kernel_that_was_signed_out_by_another_says_so(world, person, clock, tmp_path):
    here, there = (
        OAuthSession(world.url, person, FileStore(tmp_path / "kept"), now=lambda: clock[0]) for _ in range(2)
    )

    async def story():
        await here.sign_in()
        assert await sent(there) == 200
        await here.sign_out()
        await sent(there)

    with pytest.raises(SignInError, match="signed out"):
        asyncio.run(story())


@pytest.mark.clause("A13")
def test_what_was_configured_is_used(world, person):
    world.clients.add("mine")
    access = OAuthSession(world.url, person, MemoryStore(), SignInOptions(client=RegisteredClient("mine")))
    assert asyncio.run(access.sign_in()).client == "mine"
    assert world.seen["/register"] == 0


HUGE = b'{"issuer": "' + b"x" * (30 << 20) + b'"}'


@pytest.mark.parametrize(
    ("path", "replaced", "error"),
    [
        ("/.well-known/oauth-authorization-server", (200, {"Content-Type": "application/json"}, HUGE), ServiceError),
        ("/.well-known/oauth-protected-resource/mcp", (302, {"Location": "http://169.254.169.254/"}, b""), SignInError),
        ("/.well-known/oauth-protected-resource/mcp", (200, {}, b"<html>"), SignInError),
        ("/register", (307, {"Location": "https://evil.example/register"}, b""), SignInError),
        ("/token", (307, {"Location": "https://evil.example/token"}, b""), SignInError),
        ("/token", (200, {}, b"[" * 100_000), SignInError),
    ],
)
def test_hostile_answers_are_refused(access, world, path, replaced, error):
    world.replaced[path] = replaced
    with pytest.raises(error) as raised:
        asyncio.run(access.sign_in())
    assert isinstance(raised.value, RolloutlabError)
    assert access.status is None


@pytest.mark.parametrize("host", ["169.254.169.254", "10.0.0.1", "evil.example"])
def test_a_server_on_this_machine_that_leads_elsewhere_without_https_is_refused(access, world, host):
    world.changed["token_endpoint"] = f"http://{host}/token"
    with pytest.raises(SignInError, match="without https"):
        asyncio.run(access.sign_in())
    assert world.seen["/register"] == 0


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example"])
@pytest.mark.parametrize("endpoint", ["token_endpoint", "registration_endpoint", "revocation_endpoint"])
def test_an_endpoint_at_a_host_that_can_be_none_is_refused_before_anybody_is_asked(
    access, world, person, host, endpoint
):
    world.changed[endpoint] = f"https://{host}/token"
    with pytest.raises(SignInError, match="names an invalid"):
        asyncio.run(access.sign_in())
    assert not person.questions


def test_link_local_addresses_are_not_asked_though_encrypted(access, world):
    world.changed["token_endpoint"] = "https://169.254.169.254/token"
    with pytest.raises(UnreachableError, match="must not send requests to"):
        asyncio.run(access.sign_in())


@pytest.mark.clause("C4", "N8")
def test_missing_pkce_is_refused_before_anything_is_opened(access, world, person):
    world.changed["code_challenge_methods_supported"] = ["plain"]
    with pytest.raises(SignInError, match="S256"):
        asyncio.run(access.sign_in())
    assert (world.seen["/register"], person.questions) == (0, [])


def test_nothing_secret_is_in_what_an_access_shows(access):
    asyncio.run(access.sign_in())
    grant = access._grant
    for text in (repr(access), repr(grant), repr(grant.client), repr(access.status)):
        assert grant.access_token not in text
        assert grant.refresh_token not in text
