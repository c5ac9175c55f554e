"""The address at which a browser comes back to a notebook, in a real Jupyter server."""

import pytest

pytestmark = pytest.mark.process

ANSWER = "code=a-secret-code&state=a-secret-state"


@pytest.fixture
def address(server):
    return f"{server.url}rolloutlab/callback"


def test_an_answer_is_handed_to_the_kernel_without_any_cookie(address, browser, kernel):
    with kernel("a-secret-state", {"taken": True}) as heard:
        page = browser.get(f"{address}?{ANSWER}")
    assert heard == [{"query": ANSWER}]
    assert page.status_code == 200
    assert "You can close this page" in page.text


def test_the_page_is_static_and_kept_by_nobody(address, browser, kernel):
    with kernel("a-secret-state", {"taken": True}):
        page = browser.get(f"{address}?{ANSWER}")
    assert "a-secret" not in page.text
    assert page.headers["Cache-Control"] == "no-store"
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'nonce-")


def test_an_answer_that_the_kernel_does_not_take_is_told_to_the_person(address, browser, kernel):
    with kernel("a-secret-state", {"taken": False}):
        page = browser.get(f"{address}?{ANSWER}")
    assert page.status_code == 404
    assert "Nothing waits for this answer" in page.text


def test_an_answer_with_a_state_that_nobody_waits_for_reaches_nobody(address, browser, kernel):
    with kernel("a-secret-state", {"taken": True}) as heard:
        page = browser.get(f"{address}?code=evil&state=guessed")
    assert (page.status_code, heard) == (404, [])


@pytest.mark.parametrize("query", ["", "?code=c", "?state=", "?state=a&state=b", "?state=%ff"])
def test_what_is_no_answer_is_told_to_the_person(address, browser, query):
    page = browser.get(address + query)
    assert page.status_code == 400
    assert "This is no answer" in page.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_an_answer_comes_by_get_alone(address, browser, kernel, method):
    with kernel("a-secret-state", {"taken": True}) as heard:
        page = browser.request(method, f"{address}?{ANSWER}")
    assert page.status_code in {403, 405}
    assert heard == []
    assert "a-secret" not in page.text


def test_another_host_is_refused_so_that_no_foreign_name_leads_here(address, browser, kernel):
    with kernel("a-secret-state", {"taken": True}) as heard:
        page = browser.get(f"{address}?{ANSWER}", headers={"Host": "evil.example"})
    assert (page.status_code, heard) == (403, [])


def test_code_and_state_are_never_logged(address, browser, kernel, server):
    with kernel("a-secret-state", {"taken": False}):
        for method in ("GET", "POST", "HEAD"):
            browser.request(method, f"{address}?{ANSWER}", headers={"Referer": f"https://id.example/?{ANSWER}"})
        browser.get(f"{address}?{ANSWER}", headers={"Host": "evil.example"})
    assert "/user/jo/rolloutlab/callback" in server.log
    assert "a-secret" not in server.log


def test_installing_switches_the_extension_on(server):
    assert "rolloutlab | extension was successfully loaded" in server.log


def test_the_jupyter_server_warns_of_nothing_about_it(server):
    assert "JupyterServerAuthWarning" not in server.log
