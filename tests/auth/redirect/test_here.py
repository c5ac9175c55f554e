"""How a page reaches its kernel through a real Jupyter server, with the server's own sign-in and checks."""

import pytest

pytestmark = pytest.mark.process

TICKET = "a-ticket-of-this-test"


@pytest.fixture
def address(server):
    return f"{server.url}rolloutlab/here"


@pytest.fixture
def told(server):
    return {"ticket": TICKET, "origin": server.origin, "call": "here", "args": {}}


def test_the_kernel_learns_where_the_page_is_and_the_page_what_the_kernel_says(address, page, told, kernel, server):
    with kernel(TICKET, {"result": {"x": 1}}) as heard:
        answer = page.post(address, json=told)
    assert (answer.status_code, answer.json()) == (200, {"result": {"x": 1}})
    assert heard == [{"call": "here", "args": {}, "origin": server.origin, "base_url": "/user/jo/"}]


def test_a_ticket_that_no_kernel_has_is_not_found(address, page, told, kernel):
    with kernel("of-another", {}) as heard:
        answer = page.post(address, json=told)
    assert (answer.status_code, heard) == (404, [])


def refused(page, address, told, kernel):
    with kernel(TICKET, {}) as heard:
        status = page.post(address, json=told).status_code
    return status >= 300 and not heard


def test_who_is_not_signed_in_at_the_jupyter_server_is_refused(address, browser, told, kernel, server):
    browser.headers["Origin"] = server.origin
    assert refused(browser, address, told, kernel)


def test_a_forged_request_is_refused(address, page, told, kernel):
    del page.headers["X-XSRFToken"]
    assert refused(page, address, told, kernel)


@pytest.mark.parametrize("token", [False, True])  # with one, Jupyter itself asks no origin
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_a_page_of_another_origin_is_refused(address, page, told, kernel, origin, token, server):
    page.headers.update({"Origin": origin, **({"Authorization": f"token {server.token}"} if token else {})})
    assert refused(page, address, told, kernel)
    assert refused(page, address, {**told, "origin": origin}, kernel)


def test_an_origin_that_is_not_the_pages_own_is_refused(address, page, told, kernel):
    assert refused(page, address, {**told, "origin": "https://evil.example"}, kernel)


def test_a_request_that_no_browser_made_is_refused(address, page, told, kernel):
    del page.headers["Origin"]
    assert refused(page, address, told, kernel)


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{}", b'{"ticket": 1}', b"{"])
def test_what_carries_no_ticket_is_refused(address, page, body):
    assert page.post(address, content=body).status_code == 400


def test_a_ticket_is_not_logged(address, page, told, kernel, server):
    with kernel(TICKET, {}):
        page.post(address, json=told)
        page.post(address, json={**told, "origin": "https://evil.example"})
    assert "/user/jo/rolloutlab/here" in server.log
    assert TICKET not in server.log
