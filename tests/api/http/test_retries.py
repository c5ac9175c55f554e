"""When a request is tried again, and how long to wait before that."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from rolloutlab.api.http.retries import Retries


def pauses(retries: Retries, status: int, headers: Mapping[str, str] | None = None) -> list[float]:
    """The seconds between the tries of a request that is always answered so."""
    return list(iter(lambda: retries.after_answer(status, headers or {}), None))


def asked_to_wait(headers: Mapping[str, str], status: int = 503, backoff: float = 0.0) -> float | None:
    return Retries(4, backoff).after_answer(status, headers)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 599])
def test_another_try_can_help(status):
    assert Retries(2, 0.0).after_answer(status, {}) == 0


@pytest.mark.parametrize("status", [200, 204, 301, 400, 401, 403, 404, 405, 413, 422])
def test_another_try_cannot_help(status):
    assert Retries(2, 0.0).after_answer(status, {}) is None


@pytest.mark.parametrize("status", [409, 429, 500, 503])
def test_what_is_to_be_tried_once_is_not_tried_again(status):
    retries = Retries(1, 0.0)
    assert retries.after_answer(status, {}) is None
    assert retries.after_failure() is None


def test_the_pause_doubles_from_try_to_try_give_or_take_a_half():
    found = pauses(Retries(5, 0.2), 500)
    assert len(found) == 4
    assert all(0.1 * 2**i <= pause <= 0.3 * 2**i for i, pause in enumerate(found))


@pytest.mark.parametrize("status", [429, 503])
def test_a_service_that_is_too_busy_is_asked_again_for_some_minutes(status):
    found = pauses(Retries(4, 0.2), status)
    assert 100 < sum(found) < 400
    assert max(found) <= 45


def test_a_service_that_says_for_ever_when_it_is_less_busy_is_believed_for_some_minutes():
    assert 240 <= sum(pauses(Retries(4, 0.0), 429, {"Retry-After": "60"})) <= 300


def test_being_busy_uses_up_none_of_the_tries_for_failures():
    retries = Retries(4, 0.0)
    failed = [retries.after_failure(), retries.after_failure()]
    busy = [retries.after_answer(429, {}) for _ in range(5)]
    assert None not in [*failed, *busy, retries.after_failure()]
    assert retries.after_failure() is None


def test_those_who_were_turned_away_together_do_not_come_back_together():
    found = [asked_to_wait({"Retry-After": "7"}, backoff=0.2) for _ in range(20)]
    assert len(set(found)) == 20
    assert min(found) >= 7


@pytest.mark.parametrize(("seconds", "pause"), [("7", 7.0), ("60", 60.0), ("86400", 60.0)])
@pytest.mark.parametrize("status", [429, 503])
def test_the_service_may_say_how_long_to_wait_up_to_a_minute(seconds, pause, status):
    assert asked_to_wait({"Retry-After": seconds}, status) == pause


@pytest.mark.parametrize(("seconds", "least", "most"), [(20, 10, 20), (-20, 0, 0)])
def test_the_service_may_say_when_to_come_back_as_a_date(seconds, least, most):
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
    assert least <= asked_to_wait({"Retry-After": date}) <= most


@pytest.mark.parametrize(
    ("date", "pause"),
    [("Fri, 31 Dec 1999 23:59:59 GMT", 9.0), ("Sat, 01 Jan 2000 12:00:00 GMT", 60.0)],
)
def test_the_service_may_name_the_time_until_which_to_wait_by_its_own_clock(date, pause):
    assert asked_to_wait({"Retry-After": date, "Date": "Fri, 31 Dec 1999 23:59:50 GMT"}) == pause


def test_a_time_that_has_passed_is_no_time_to_wait():
    assert 0.1 <= asked_to_wait({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, backoff=0.2) <= 0.3


@pytest.mark.parametrize("nonsense", ["soon", "-1", "", "1e9", "31 Dec 1999 23:59:59 -0000"])
def test_a_retry_after_that_is_no_number_of_seconds_changes_nothing(nonsense):
    assert 0.1 <= asked_to_wait({"Retry-After": nonsense}, backoff=0.2) <= 0.3
