"""Who asks the person at a notebook: one for all that wait, a new one once nobody does, none where no cell waits."""

import asyncio

import pytest

from rolloutlab.auth.redirect import broker as brokers
from rolloutlab.auth.redirect.broker import Broker, Brokers
from rolloutlab.auth.redirect.route import RedirectRoute
from rolloutlab.errors import SignInError

from .conftest import SERVER, Person

RIGHT = "code=c&state=right"


@pytest.fixture
def desks(desk):
    """Brokers of the test's own, and the people that they have asked."""
    people = []

    def make(paste):
        people.append(
            Person(RedirectRoute.PASTE if paste else RedirectRoute.LOOPBACK, lambda login: login.offer(RIGHT) and None)
        )
        return Broker(people[-1], places=desk.places)

    return Brokers(make), people


def test_a_question_on_the_way_is_asked_while_a_cell_waits(desk, desks):
    asks, people = desks
    assert desk.http.run(asks(SERVER, desk.prepare()), asks.tick)["code"] == "c"
    asks.show_outcome(SERVER, True, "lab:read")
    assert people[0].seen == ["waiting", "answered", "signed in"]


def test_where_no_cell_waits_nobody_is_asked_and_it_is_said_what_to_type(desk, desks, monkeypatch):
    monkeypatch.setattr(brokers, "_TICK_TIMEOUT", 0.2)
    asks, people = desks
    with pytest.raises(SignInError, match="no cell waits") as error:
        desk.http.run(asks(SERVER, desk.prepare()))
    assert error.value.hint == f"%login {SERVER}"
    assert people == []


def test_a_second_question_does_not_lose_the_first_and_the_next_is_asked_as_the_notebook_is_shown_then(desk, desks):
    asks, people = desks

    async def both():
        one = asks.of(paste=False)
        waits = asyncio.ensure_future(one(SERVER, desk.prepare()))
        await asyncio.sleep(0)
        assert asks.of(paste=False) is one
        assert asks.of(paste=True) is not one
        await waits
        assert asks.of(paste=False) is one
        asks.show_outcome(SERVER, True, "")
        assert asks.of(paste=False) is not one

    desk.http.run(both(), asks.tick)
    assert [person.way for person in people] == [RedirectRoute.LOOPBACK, RedirectRoute.PASTE, RedirectRoute.LOOPBACK]
