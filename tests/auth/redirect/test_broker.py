"""Signing in through a browser: the first right answer wins, by whichever way it comes."""

import asyncio
import socket
import threading

import pytest

from rolloutlab.auth.redirect.ipc import send
from rolloutlab.auth.redirect.login import Login
from rolloutlab.auth.redirect.route import RedirectRoute
from rolloutlab.errors import InputError, SignInError

SERVER = "https://mcp.example/mcp"
RIGHT = "code=c&state=right"
ANSWER = {"code": "c", "state": "right"}


def test_an_answer_comes_back_to_the_listener(desk):
    assert desk.sign_in(lambda login: desk.come_back(RIGHT)) == ANSWER
    assert desk.redirects[0].startswith("http://127.0.0.1:")
    assert desk.person.seen == ["waiting", "answered"]


def test_an_answer_that_says_an_error_is_an_answer(desk):
    answer = desk.sign_in(lambda login: desk.come_back("error=access_denied&state=right&iss=https://id.example"))
    assert answer == {"error": "access_denied", "state": "right", "iss": "https://id.example"}
    assert desk.person.seen[-1] == "denied"


@pytest.mark.clause("J7")
def test_answers_with_a_wrong_or_without_a_state_are_ignored_and_the_right_one_still_counts(desk):
    async def acts(login):
        told = [(await desk.come_back(query)).status_code for query in ("code=evil&state=wrong", "code=evil", RIGHT)]
        statuses.extend(told)

    statuses = []
    assert desk.sign_in(acts) == ANSWER
    assert statuses[:2] == [404, 400]


def test_only_the_first_right_answer_counts(desk):
    taken = []
    assert desk.sign_in(lambda login: taken.extend(map(login.offer, [RIGHT, "code=later&state=right"]))) == ANSWER
    assert taken == [True, False]


def test_an_answer_counts_only_while_it_is_waited_for(desk):
    desk.sign_in(lambda login: login.offer(RIGHT) and None)
    assert not desk.person.logins[0].offer(RIGHT)


def test_of_answers_on_many_threads_one_is_taken(desk):
    taken = []

    def acts(login):
        threads = [threading.Thread(target=lambda: taken.append(login.offer(RIGHT))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert desk.sign_in(acts) == ANSWER
    assert sorted(taken) == [False] * 7 + [True]


@pytest.mark.parametrize("text", ["{redirect}?" + RIGHT, RIGHT, "?" + RIGHT])
def test_the_address_that_a_browser_ends_on_can_be_pasted(desk, text):
    assert desk.sign_in(lambda login: login.paste(text.format(redirect=desk.redirects[0])) and None) == ANSWER


def test_what_is_pasted_wrongly_is_said_and_can_be_pasted_again(desk):
    said = []

    def acts(login):
        for text in ("hello", "code=c&state=wrong", None, RIGHT):
            try:
                login.paste(text)
            except InputError as error:
                said.append(error.message)

    assert desk.sign_in(acts) == ANSWER
    assert ["not the URL" in said[0], "another sign-in" in said[1], "not the URL" in said[2]] == [True] * 3
    assert "wrong" not in "".join(said)


def test_a_cancelled_sign_in_says_so_and_how_to_begin_again(desk):
    with pytest.raises(SignInError, match="was cancelled") as raised:
        desk.sign_in(lambda login: login.cancel() and None)
    assert raised.value.hint == f"%login {SERVER}"
    assert desk.person.seen[-1] == "cancelled"


def test_a_sign_in_that_nobody_answers_in_time_has_expired(desk):
    with pytest.raises(SignInError, match=r"the sign-in at .* was not answered within 0 seconds"):
        desk.sign_in(lambda login: None, seconds=0.01)
    assert desk.person.seen == ["waiting", "expired"]
    assert not desk.person.logins[0].offer(RIGHT)


def test_an_interrupted_cell_cancels_the_sign_in_and_its_listener(desk):
    def interrupt():
        if desk.person.seen:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        desk.http.run(desk.ask(lambda login: None)(SERVER, desk.prepare()), interrupt, 0.01)
    assert desk.person.seen == ["waiting", "cancelled"]


def test_where_nobody_can_be_asked_an_error_says_what_to_type_elsewhere(desk):
    with pytest.raises(SignInError, match="this front end cannot reach") as raised:
        desk.sign_in(lambda login: None, RedirectRoute.NONE)
    assert raised.value.hint == f"%login {SERVER} --keep"
    assert desk.redirects == []


def test_what_goes_wrong_while_the_request_is_prepared_is_shown_and_raised(desk):
    async def fails(redirect):
        raise SignInError("the server takes no new clients")

    with pytest.raises(SignInError, match="no new clients"):
        desk.http.run(desk.ask(lambda login: None)(SERVER, fails))
    assert desk.person.logins[0].public_state()["note"] == "the server takes no new clients"
    assert desk.person.seen == ["failed"]


@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "data:text/html,x"])
def test_what_is_no_web_page_is_never_opened(desk, url):
    with pytest.raises(SignInError, match="has no http or https URL"):
        desk.http.run(desk.ask(lambda login: login.cancel())(SERVER, desk.prepare(url=url)))
    assert desk.person.seen == ["failed"]


def test_two_sign_ins_at_once_get_each_its_own_answer(desk):
    async def both():
        shown: asyncio.Queue[Login] = asyncio.Queue()
        broker = desk.ask(shown.put_nowait)
        one = asyncio.ensure_future(broker(SERVER, desk.prepare("one")))
        other = asyncio.ensure_future(broker("https://other.example", desk.prepare("other")))
        first, second = [await shown.get() for _ in range(2)]
        assert not first.offer("code=2&state=other")
        assert second.offer("code=2&state=other")
        assert first.offer("code=1&state=one")
        return await one, await other

    one, other = desk.http.run(both())
    assert (one["code"], other["code"]) == ("1", "2")
    assert len(set(desk.redirects)) == 2


def test_the_front_end_is_told_what_came_of_the_answer(desk):
    desk.sign_in(lambda login: login.offer(RIGHT) and None)
    desk.broker.show_outcome(SERVER, True, "lab:read")
    desk.broker.show_outcome(SERVER, False, "too late for that")
    assert desk.person.logins[0].public_state()["note"] == "lab:read"
    assert desk.person.seen == ["waiting", "answered", "signed in"]


def test_an_answer_that_cannot_be_used_is_shown_as_a_failure(desk):
    desk.sign_in(lambda login: login.offer(RIGHT) and None)
    desk.broker.show_outcome(SERVER, False, "the code was refused")
    assert desk.person.logins[0].public_state()["standing"] == "failed"


def test_nothing_secret_is_in_what_may_be_shown_or_in_a_repr(desk):
    shown = []
    desk.sign_in(
        lambda login: (
            shown.extend([str(login.public_state()), repr(login), login.url, login.ticket])
            or (login.offer(RIGHT) and None)
        )
    )
    told, written, url, ticket = shown
    assert "state=right" in url
    assert not [secret for secret in (url, ticket, "right") if secret in told + written]


def page(desk, *messages, then=RIGHT):
    """Acts as a page does: says things through the Jupyter server, then has the answer handed over the same way."""

    async def acts(login: Login):
        told.extend([await send(login.ticket, message, desk.places) for message in messages])
        await desk.opened(login)
        told.append(await send("right", {"query": then}, desk.places))

    told: list = []
    return acts, told


HERE = {"call": "here", "origin": "https://hub.example", "base_url": "/user/jo/"}


def test_a_page_says_where_it_is_and_the_answer_comes_back_under_its_address(desk):
    acts, told = page(desk, HERE)
    assert desk.sign_in(acts, RedirectRoute.PAGE) == ANSWER
    assert desk.redirects == ["https://hub.example/user/jo/rolloutlab/callback"]
    assert told == [{"result": {}}, {"taken": True}]
    assert desk.person.logins[0].public_state()["way"] == "page"


def test_no_socket_is_left_when_a_sign_in_has_ended(desk):
    acts, _ = page(desk, HERE)
    desk.sign_in(acts, RedirectRoute.PAGE)
    assert list(desk.places[0].iterdir()) == []


@pytest.mark.parametrize(
    "message", [{"call": "nowhere"}, {**HERE, "origin": "http://10.0.0.5:8888"}, {**HERE, "origin": None}]
)
def test_a_page_whose_server_cannot_be_come_back_to_has_the_answer_come_to_the_listener(desk, message):
    acts, _ = page(desk, message)
    assert desk.sign_in(acts, RedirectRoute.PAGE) == ANSWER
    assert desk.redirects[0].startswith("http://127.0.0.1:")
    assert desk.person.logins[0].public_state()["way"] == "loopback"


def test_a_page_that_says_nothing_in_time_has_the_answer_come_to_the_listener(desk):
    acts, _ = page(desk)
    assert desk.sign_in(acts, RedirectRoute.PAGE, patience=0.01) == ANSWER
    assert desk.redirects[0].startswith("http://127.0.0.1:")


def test_without_sockets_the_answer_comes_to_the_listener(desk, tmp_path):
    async def acts(login):
        await desk.opened(login)
        await desk.come_back(RIGHT)

    desk.places[:] = [tmp_path / "no" / "such"]
    assert desk.sign_in(acts, RedirectRoute.PAGE, patience=0.01) == ANSWER


def test_an_answer_with_a_wrong_state_is_handed_over_to_nobody(desk):
    async def acts(login):
        await send(login.ticket, HERE, desk.places)
        await desk.opened(login)
        told.append(await send("wrong", {"query": "code=evil&state=wrong"}, desk.places))
        told.append(await send("right", {"query": "code=evil&state=wrong"}, desk.places))
        told.append(await send("right", {"query": RIGHT}, desk.places))

    told = []
    assert desk.sign_in(acts, RedirectRoute.PAGE) == ANSWER
    assert told == [None, {"taken": False}, {"taken": True}]


def test_a_page_can_cancel_and_paste_while_the_kernel_is_busy(desk):
    async def acts(login):
        paste = {"call": "paste", "args": {"text": "hello"}}
        asked = (HERE, paste, {"call": "no such"}, {"call": "cancel"})
        told.extend([await send(login.ticket, message, desk.places) for message in asked])

    told = []
    with pytest.raises(SignInError, match="cancelled"):
        desk.sign_in(acts, RedirectRoute.PAGE)
    assert "not the URL" in told[1]["error"]["message"]
    assert told[2]["error"]["hint"] is None
    assert told[3] == {"result": {}}


def test_where_nothing_comes_back_by_itself_the_address_is_one_of_this_machine(desk):
    assert desk.sign_in(lambda login: login.paste(RIGHT) and None, RedirectRoute.PASTE) == ANSWER
    assert desk.redirects[0].startswith("http://127.0.0.1:")
    assert desk.person.logins[0].public_state()["way"] == "paste"


@pytest.mark.parametrize("way", [RedirectRoute.LOOPBACK, RedirectRoute.PASTE, RedirectRoute.PAGE])
def test_a_fixed_port_is_where_answers_come_to_whatever_the_front_end(desk, port, way):
    async def answered(login):
        await desk.opened(login)
        await desk.come_back("code=c&state=right")

    assert desk.sign_in(answered, way, port) == {"code": "c", "state": "right"}
    assert desk.redirects == [f"http://127.0.0.1:{port}/callback"]


def test_a_port_that_somebody_has_is_told_and_what_to_type(desk, port):
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(SignInError, match=f"port {port}.* it is in use by") as raised,
    ):
        desk.sign_in(lambda login: None, port=port)
    assert raised.value.hint == f"%login {SERVER} --redirect-port {port + 1}"
    assert desk.redirects == []
