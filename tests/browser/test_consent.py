"""The consent page of the embedded service in a real browser: its policy lets answers through, and nothing else."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from rolloutlab.session import Session

pytestmark = pytest.mark.process


@pytest.fixture
def callback() -> Iterator[int]:
    """The port of a client that waits for its answer on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"it came back")

        def log_message(self, *_said: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in a browser that knows nobody."""
    context = browser.new_context()
    yield context.new_page()
    context.close()


@pytest.fixture
def url(lab: Session) -> str:
    """Where the embedded service listens."""
    return lab.embedded.address().base_url


@pytest.fixture
def passcode(lab: Session, url: str) -> str:
    from rolloutlab.service.lifecycle import Folder

    return Folder(lab.settings.service_folder).passcode()


def asks(url: str, redirect_uri: str, name: str = "a notebook") -> str:
    """The address that a client opens, once it has registered."""
    said = {"redirect_uris": [redirect_uri], "client_name": name, "token_endpoint_auth_method": "none"}
    client_id = httpx.post(f"{url}/oauth/register", json=said, timeout=240).json()["client_id"]
    asked = {"response_type": "code", "client_id": client_id, "redirect_uri": redirect_uri, "state": "s-1"}
    asked |= {"code_challenge": "c" * 43, "code_challenge_method": "S256", "resource": f"{url}/context"}
    return f"{url}/oauth/authorize?{urlencode(asked)}"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_owner_allows_by_keyboard_and_the_answer_comes_to_another_port(page, url, passcode, callback, host):
    redirect_uri = f"http://{host}:{callback}/callback"
    page.goto(asks(url, redirect_uri))
    expect(page.get_by_label("The passcode of this lab")).to_be_focused()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("That is not the passcode of this lab.")
    page.keyboard.type(passcode)
    page.keyboard.press("Enter")
    expect(page.get_by_text("it came back")).to_be_visible()
    said = parse_qs(urlsplit(page.url).query)
    assert said.keys() == {"code", "state", "iss"}
    assert said["iss"] == [url]


def test_the_owner_denies_and_the_client_is_told(page, url, callback):
    page.goto(asks(url, f"http://127.0.0.1:{callback}/callback"))
    page.get_by_role("button", name="Deny").click()
    expect(page.get_by_text("it came back")).to_be_visible()
    assert parse_qs(urlsplit(page.url).query)["error"] == ["access_denied"]


def test_a_hostile_name_is_text_and_runs_nothing(page, url, callback):
    name = "<img src=x onerror=document.title='run'><script>document.title='run'</script>"
    page.goto(asks(url, f"http://127.0.0.1:{callback}/callback", name))
    expect(page.get_by_text(name)).to_be_visible()
    expect(page).to_have_title("Allow access to this lab? - rolloutlab")


def test_the_page_is_shown_in_no_frame(page, url, callback):
    page.goto(f"{url}/v1/health")
    with page.expect_console_message(lambda said: "frame-ancestors" in said.text):
        page.evaluate(
            "src => document.body.append(Object.assign(document.createElement('iframe'), {src}))",
            asks(url, f"http://127.0.0.1:{callback}/callback"),
        )
