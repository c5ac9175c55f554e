"""Which requests bear which token: those to its own server, whoever sends them, and no others."""

import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.auth.authorization import DeniedError, SignInOptions
from rolloutlab.auth.registration import RegisteredClient
from rolloutlab.auth.session import OAuthSessions
from rolloutlab.errors import LabError, NotFoundError, SignInError
from tests.auth.world import World


@pytest.fixture
def http():
    made = HttpClient()
    yield made
    made.close()


@pytest.fixture
def worlds():
    made = [World(), World()]
    yield made
    for each in made:
        each.close()


@pytest.fixture
def accesses(person, tmp_path):
    return OAuthSessions(person, tmp_path / "sign-in")


@pytest.mark.clause("N7")
def test_each_server_gets_tokens_that_its_own_authorization_server_issued_and_no_others(http, worlds, accesses):
    for world in worlds:
        http.run(accesses.at(world.url).sign_in())
    for _ in range(2):
        for world in worlds:
            http.run(http.request("GET", f"{world.url}/read", token=accesses))
    for world in worlds:
        assert len(world.tokens_sent) == 3  # the first asks who guards it
        assert set(world.tokens_sent[1:]) == set(world.scopes)


@pytest.mark.clause("N7")
def test_a_request_that_is_for_no_server_one_is_signed_in_to_bears_no_token(worlds, accesses, http):
    http.run(accesses.at(worlds[0].url).sign_in())
    assert accesses.of(f"{worlds[0].url}/read") is not None
    assert accesses.of("https://tools.example/mcp") is None
    sent = [world.tokens_sent for world in worlds]
    for tokens in sent:
        tokens.clear()
    for url in (f"{worlds[0].origin}/mcp-other", worlds[1].url):
        with pytest.raises(SignInError):
            http.run(http.request("GET", url, token=accesses))
    assert sent == [[""], [""]]


def test_a_request_of_any_client_is_sent_again_once_its_token_is_renewed(http, worlds, person, accesses):
    world = worlds[0]
    http.run(accesses.at(world.url).sign_in())
    world.revoke_all()
    assert http.run(http.request("GET", f"{world.url}/read", token=accesses)) == {"done": "read"}
    assert len(person.questions) == 1


@pytest.mark.clause("M1")
def test_a_request_of_any_client_is_sent_again_after_a_step_up(http, worlds, person, accesses):
    world = worlds[0]
    http.run(accesses.at(world.url).sign_in())
    assert http.run(http.request("POST", f"{world.url}/write", token=accesses, json={})) == {"done": "write"}
    assert [question.scopes for question in person.questions] == [("lab:read",), ("lab:read", "lab:write")]


def test_what_was_kept_is_used_by_the_next_kernel_without_asking(http, worlds, person, accesses, tmp_path):
    world = worlds[0]
    http.run(accesses.at(world.url).sign_in(keep=True))
    later = OAuthSessions(person, tmp_path / "sign-in")
    later.at(world.url)
    assert http.run(http.request("GET", f"{world.url}/read", token=later)) == {"done": "read"}
    assert len(person.questions) == 1


def test_who_is_not_signed_in_is_told_what_to_type(worlds, accesses):
    with pytest.raises(NotFoundError) as error:
        accesses.require_sign_in(worlds[0].url)
    assert error.value.hint == f"%login {worlds[0].url}"


def test_a_kernel_knows_what_another_kept_also_when_it_looked_before(http, worlds, person, accesses, tmp_path):
    other = OAuthSessions(person, tmp_path / "sign-in")
    assert other.at(worlds[0].url).status is None
    http.run(accesses.at(worlds[0].url).sign_in(keep=True))
    assert [standing.server for standing in other.statuses()[0]] == [worlds[0].url]
    http.run(other.at(worlds[0].url).sign_out())
    assert (worlds[0].refreshes, list((tmp_path / "sign-in").glob("*.json"))) == ({}, [])


def test_the_tokens_of_earlier_sign_ins_are_given_back_with_the_last_ones_wherever_they_were(
    http, worlds, accesses, tmp_path
):
    world = worlds[0]
    for number, keep in enumerate((True, False, True, None), start=1):
        http.run(accesses.at(world.url).sign_in(keep=keep))
        assert len(world.refreshes) == number
        assert len(list((tmp_path / "sign-in").glob("*.json"))) == (keep is not False)
    http.run(accesses.at(world.url).sign_out())
    assert world.refreshes == {}


def test_a_second_sign_in_with_another_client_gives_the_first_ones_tokens_back(http, worlds, accesses):
    world = worlds[0]
    http.run(accesses.at(world.url).sign_in())
    world.clients.add("mine")
    http.run(accesses.at(world.url).sign_in(SignInOptions(client=RegisteredClient("mine"))))
    assert (len(world.refreshes), len(world.scopes)) == (1, 1)


def test_a_sign_in_that_is_denied_leaves_the_one_before(http, worlds, accesses):
    world, access = worlds[0], accesses.at(worlds[0].url)
    http.run(access.sign_in())
    world.denies = True
    with pytest.raises(DeniedError):
        http.run(access.sign_in())
    assert http.run(http.request("GET", f"{world.url}/read", token=accesses)) == {"done": "read"}


def test_of_two_that_cover_an_address_the_one_for_less_is_meant(worlds, accesses):
    wide, narrow = accesses.at(worlds[0].url), accesses.at(f"{worlds[0].url}/v1")
    assert accesses.of(f"{worlds[0].url}/v1/models") is narrow
    assert accesses.of(f"{worlds[0].url}/other") is wide


@pytest.fixture
def spoiled(http, worlds, accesses, person, tmp_path):
    """Ways in of another kernel, where others may read what was kept of the first of two servers."""
    for world in worlds:
        http.run(accesses.at(world.url).sign_in(keep=True))
    folder = tmp_path / "sign-in"
    [path] = [path for path in folder.glob("*.json") if worlds[0].origin in path.read_text()]
    path.chmod(0o640)
    return OAuthSessions(person, folder)


def test_a_grant_that_others_may_read_keeps_nobody_from_other_servers(http, worlds, spoiled):
    assert [standing.server for standing in spoiled.statuses()[0]] == [worlds[1].url]
    assert http.run(http.request("GET", f"{worlds[1].url}/read", token=spoiled)) == {"done": "read"}
    assert spoiled.of("https://train.example/v1") is None


def test_a_grant_that_others_may_read_is_told_to_who_asks_its_server_and_nobody_is_asked_to_sign_in(
    http, worlds, person, spoiled
):
    asked = len(person.questions)
    _, [told] = spoiled.statuses()
    assert "other users can read" in told.message
    with pytest.raises(LabError, match="other users can read"):
        http.run(http.request("GET", f"{worlds[0].url}/read", token=spoiled))
    with pytest.raises(LabError, match="other users can read"):
        http.run(spoiled.at(worlds[0].url).sign_in())
    assert len(person.questions) == asked
    assert worlds[0].tokens_sent == [""]  # the first asked who guards it


def test_an_address_that_no_server_could_have_gets_no_token(worlds, accesses):
    accesses.at(worlds[0].url)
    assert accesses.of(worlds[0].url.replace("//", "//jo:secret@")) is None


def test_which_servers_there_are_is_told_without_opening_what_is_kept(
    http, worlds, person, accesses, tmp_path, monkeypatch
):
    http.run(accesses.at(worlds[0].url).sign_in(keep=True))
    other = OAuthSessions(person, tmp_path / "sign-in")
    monkeypatch.setattr("rolloutlab.auth.token_store.open_store", lambda _folder: pytest.fail("it was opened"))
    assert other.servers() == [worlds[0].url]
