"""Signing in from a notebook, in a JupyterLab that asks for a token and is served under an address as of a hub."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from rolloutlab.service.lifecycle import Folder
from rolloutlab.session import Session
from rolloutlab.settings import Settings

from .authority import authority
from .conftest import OPENED, running
from .jupyter import Jupyter
from .notebook import NotebookPage

pytestmark = pytest.mark.process

TOKEN = "of-this-jupyter"
CONFIG = Path(__file__).parent.parent.parent / "jupyter-config"
OPTIONS = (f"--IdentityProvider.token={TOKEN}", "--ServerApp.base_url=/user/jo/")
SERVER = "https://mcp.example/mcp"
CELL = """
import secrets
from urllib.parse import urlencode
from rolloutlab.auth.redirect.broker import Broker
from rolloutlab.auth.prompt import AuthorizationRequest, Question
from rolloutlab.api.http.client import HttpClient
from rolloutlab.widgets.login.frontend import context_of, front_end

http = HttpClient()
states, redirects = [], []

async def prepare(redirect):
    states.append(secrets.token_urlsafe(32))
    redirects.append(redirect)
    question = Question("{server}", "id.example", "{server}", ("lab:read", "lab:<b>write"), "rolloutlab")
    query = urlencode({{"redirect_uri": redirect, "state": states[-1]}})
    return AuthorizationRequest(f"{authority}?{{query}}", states[-1], question)

def sign_in(server="{server}", **options):
    global broker
    broker = Broker(front_end(context_of(get_ipython())), **options)
    answer = http.run(broker(server, prepare), broker.tick)
    if "error" not in answer:
        broker.show_outcome(server, True, "lab:read")
    return sorted(answer), answer["state"] == states[-1]
"""
SERVED = """%load_ext rolloutlab
import rolloutlab
lab = rolloutlab.lab()
print(lab.settings.service_folder, lab.embedded.address().base_url + "/context")"""
CODE_AND_STATE = "(['code', 'state'], True)"


@pytest.fixture(scope="module")
def hub(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    folder = tmp_path_factory.mktemp("hub")
    (folder / "run").mkdir(mode=0o700)
    environment = {"JUPYTER_CONFIG_PATH": str(CONFIG), "XDG_RUNTIME_DIR": str(folder / "run")}
    server = Jupyter(folder, {**environment, "ROLLOUTLAB_HOME": str(folder / "lab")}, options=OPTIONS)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def served(hub: Jupyter) -> Iterator[Session]:
    """The lab of the kernels, whose embedded service runs."""
    yield from running(Session(Settings(home=hub.notebooks.parent / "lab", linger=1)))


@pytest.fixture(scope="module")
def sign_in_page() -> Iterator[str]:
    with authority() as address:
        yield address


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser of its own: it is signed in at this Jupyter server alone."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context
    context.close()


@pytest.fixture
def notebook(
    request: pytest.FixtureRequest, hub: Jupyter, context: BrowserContext, sign_in_page: str, front_end: str
) -> Iterator[NotebookPage]:
    """A new notebook that is ready to sign in elsewhere."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    page = NotebookPage(context.new_page(), hub.url, hub.notebooks / f"{name}.ipynb", front_end, TOKEN)
    request.node.stash[OPENED] = page
    page.open()
    page.run(CELL.format(server=SERVER, authority=sign_in_page))
    yield page
    page.close()


@contextmanager
def opened(notebook: NotebookPage, login: Locator) -> Iterator[Page]:
    """The page behind the link, opened by keyboard."""
    link = login.get_by_role("link", name="Open the sign-in page")
    with notebook.page.context.expect_page() as popup:
        link.press("Enter")
    yield popup.value
    popup.value.close()


def standing(login: Locator) -> Locator:
    return login.locator(".rl-status").first


def allowed(notebook: NotebookPage, login: Locator) -> None:
    with opened(notebook, login) as popup:
        popup.get_by_role("link", name="Allow").click()
        expect(popup.get_by_role("heading")).to_have_text("You can close this page")


def address_of(notebook: NotebookPage, login: Locator, answer: str = "Allow") -> str:
    """Where the browser would come back to; it does not go there."""
    with opened(notebook, login) as popup:
        return str(popup.get_by_role("link", name=answer).get_attribute("href"))


def test_the_answer_comes_back_under_the_notebooks_own_address_to_a_kernel_busy_with_the_waiting_cell(notebook, hub):
    out = notebook.start("sign_in()")
    login = out.locator(".rl-login")
    expect(standing(login)).to_have_text("waiting for you to sign in")
    facts = login.locator("dl")
    for fact in (SERVER, "id.example", "lab:read lab:<b>write", "rolloutlab"):
        expect(facts).to_contain_text(fact)
    link = login.get_by_role("link", name="Open the sign-in page")
    expect(link).to_have_attribute("target", "_blank")
    expect(link).to_have_attribute("rel", "noopener noreferrer")
    notebook.screenshot("login-waiting", login)
    assert notebook.faint(login) == []
    with opened(notebook, login) as popup:
        expect(popup.locator("#opener")).to_have_text("null")
        popup.get_by_role("link", name="Allow").click()
        expect(popup.get_by_role("heading")).to_have_text("You can close this page")
        assert popup.url == f"{hub.url}/rolloutlab/callback"  # code and state are gone from the history
        notebook.screenshot("login-end")
    notebook.wait_until_ended()
    expect(standing(login)).to_have_text("signed in, for lab:read")
    expect(login.get_by_role("link")).to_have_count(0)
    assert CODE_AND_STATE in notebook.text_of(out)
    notebook.screenshot("login-signed-in", login)
    said = notebook.run("redirects").inner_text()
    assert f"{hub.url}/rolloutlab/callback" in said


@pytest.mark.parametrize("front_end", ["lab"])
def test_nothing_secret_is_logged_or_saved(notebook, hub):
    login = notebook.start("sign_in()").locator(".rl-login")
    address = address_of(notebook, login)
    state = address.rpartition("=")[2]
    assert notebook.page.evaluate("() => window.harness.panel().context.save()") is None
    assert state not in notebook.path.read_text()
    allowed(notebook, login)
    notebook.wait_until_ended()
    saved = """
import json
from ipywidgets import Widget
state = json.dumps(Widget.get_manager_state(), default=str)
print("mcp.example" in state, any(secret in state for secret in [*states, "authorize?", "the-code"]))
"""
    assert "True False" in notebook.run(saved).inner_text()
    log = hub.log.read_text()
    assert state not in log
    assert "the-code" not in log


@pytest.mark.parametrize("front_end", ["lab"])
def test_a_page_that_blocks_popups_does_not_matter_as_none_is_opened_by_a_script(notebook):
    notebook.page.evaluate("() => { window.open = () => { window.opened = true; return null } }")
    login = notebook.start("sign_in()").locator(".rl-login")
    allowed(notebook, login)
    notebook.wait_until_ended()
    expect(standing(login)).to_have_text("signed in, for lab:read")
    assert not notebook.page.evaluate("window.opened")


def test_the_address_that_the_browser_ended_on_can_be_pasted_while_the_kernel_is_busy(notebook):
    out = notebook.start("sign_in()")
    login = out.locator(".rl-login")
    address = address_of(notebook, login)
    login.get_by_text("Paste an address instead").press("Enter")
    field = login.get_by_label("Address of the page that the browser ended on")
    field.fill("http://127.0.0.1/?code=evil&state=wrong")
    field.press("Enter")
    expect(field).to_have_accessible_description(re.compile("of another sign-in"))
    notebook.screenshot("login-paste", login)
    field.fill(address)
    field.press("Enter")
    notebook.wait_until_ended()
    expect(standing(login)).to_have_text("signed in, for lab:read")
    expect(field).to_have_value("")
    assert CODE_AND_STATE in notebook.text_of(out)


@pytest.mark.clause("J7")
@pytest.mark.parametrize("front_end", ["lab"])
def test_an_answer_with_another_state_is_refused_and_the_right_one_still_counts(notebook, hub):
    login = notebook.start("sign_in()").locator(".rl-login")
    with opened(notebook, login) as popup:
        right = str(popup.get_by_role("link", name="Allow").get_attribute("href"))
        popup.goto(re.sub("state=.*", "state=wrong", right))
        expect(popup.get_by_role("heading")).to_have_text("Nothing waits for this answer")
        expect(standing(login)).to_have_text("waiting for you to sign in")
        popup.goto(right)
        expect(popup.get_by_role("heading")).to_have_text("You can close this page")
        notebook.wait_until_ended()
        popup.goto(right)
        expect(popup.get_by_role("heading")).to_have_text("Nothing waits for this answer")


@pytest.mark.parametrize("front_end", ["lab"])
def test_a_denial_is_shown_and_is_an_answer(notebook):
    out = notebook.start("sign_in()")
    login = out.locator(".rl-login")
    with opened(notebook, login) as popup:
        popup.get_by_role("link", name="Deny").click()
        expect(popup.get_by_role("heading")).to_have_text("You can close this page")
    notebook.wait_until_ended()
    expect(standing(login)).to_have_text("denied: nothing was given")
    assert "(['error', 'state'], True)" in notebook.text_of(out)


@pytest.mark.parametrize("front_end", ["lab"])
def test_a_sign_in_that_nobody_answers_expires(notebook):
    out = notebook.run("sign_in(seconds=1)", fails=True)
    expect(standing(out.locator(".rl-login"))).to_have_text("expired: no answer in time")
    expect(out.locator(".rl-login").get_by_role("link")).to_have_count(0)
    assert f"-> %login {SERVER}" in notebook.text_of(out)


@pytest.mark.parametrize("front_end", ["lab"])
def test_a_sign_in_is_cancelled_by_keyboard_while_the_kernel_is_busy(notebook):
    out = notebook.start("sign_in()")
    login = out.locator(".rl-login")
    expect(standing(login)).to_have_text("waiting for you to sign in")
    login.get_by_role("button", name="Cancel").press("Enter")
    notebook.wait_until_ended()
    expect(standing(login)).to_have_text("cancelled")
    assert "was cancelled" in notebook.text_of(out)


@pytest.mark.parametrize("front_end", ["lab"])
def test_two_sign_ins_at_once_get_each_its_own_answer(notebook):
    both = """
import asyncio
broker = Broker(front_end(context_of(get_ipython())))
async def two():
    return await asyncio.gather(*(broker(server, prepare) for server in ("https://one.example", "https://two.example")))
print([answer["state"] in states for answer in http.run(two(), broker.tick)], len(set(states)), len(set(redirects)))
"""
    out = notebook.start(both)
    logins = out.locator(".rl-login")
    expect(logins).to_have_count(2)
    for number in (1, 0):
        allowed(notebook, logins.nth(number))
        expect(standing(logins.nth(number))).to_have_text("the answer is here")
    notebook.wait_until_ended()
    assert "[True, True] 2 1" in notebook.text_of(out)


@pytest.mark.parametrize("front_end", ["lab"])
def test_without_the_servers_extension_the_answer_comes_back_to_a_listener_of_the_kernel(notebook):
    notebook.page.route("**/rolloutlab/here", lambda route: route.fulfill(status=404))
    out = notebook.start("sign_in(patience=3)")
    login = out.locator(".rl-login")
    expect(login).to_contain_text("paste it below")
    notebook.screenshot("login-loopback", login)
    with opened(notebook, login) as popup:
        popup.get_by_role("link", name="Allow").click()
        expect(popup.get_by_role("heading")).to_have_text("You can close this page")
        assert popup.url.startswith("http://127.0.0.1:")
    notebook.wait_until_ended()
    expect(standing(login)).to_have_text("signed in, for lab:read")
    assert CODE_AND_STATE in notebook.text_of(out)


@pytest.mark.parametrize("front_end", ["lab"])
def test_an_interrupted_cell_ends_the_sign_in(notebook):
    out = notebook.start("sign_in()")
    login = out.locator(".rl-login")
    expect(standing(login)).to_have_text("waiting for you to sign in")
    notebook.page.evaluate("() => window.harness.panel().sessionContext.session.kernel.interrupt()")
    notebook.wait_until_ended()
    expect(standing(login)).to_have_text("cancelled")
    assert "KeyboardInterrupt" in notebook.text_of(out)


@pytest.mark.parametrize("front_end", ["lab"])
def test_a_page_that_is_loaded_again_still_shows_what_became_of_it(notebook):
    out = notebook.start("sign_in()")
    allowed(notebook, out.locator(".rl-login"))
    notebook.wait_until_ended()
    notebook.reload()
    expect(standing(notebook.outputs(1).locator(".rl-login"))).to_have_text("signed in, for lab:read")
    expect(notebook.outputs(1).get_by_role("link")).to_have_count(0)


def test_a_person_signs_in_to_a_lab_and_its_tools_are_there(hub, served, context, front_end):
    notebook = NotebookPage(context.new_page(), hub.url, hub.notebooks / f"whole-{front_end}.ipynb", front_end, TOKEN)
    notebook.open()
    told = notebook.run(SERVED)
    folder, url = notebook.text_of(told).split()
    out = notebook.start(f"%login {url}")
    login = out.locator(".rl-login")
    with opened(notebook, login) as popup:
        expect(popup.get_by_role("heading")).to_have_text("Allow access to this lab?")
        popup.get_by_label("The passcode of this lab").fill(Folder(Path(folder)).passcode())
        popup.get_by_role("button", name="Allow").click()
        expect(popup.get_by_role("heading")).to_have_text("You can close this page")
    expect(standing(login)).to_contain_text("signed in")
    notebook.wait_until_ended()
    notebook.screenshot(f"signed-in-{front_end}", of=login)
    assert "search_trajectories" in notebook.text_of(notebook.run("%tools add embedded as memory"))
    assert "Signed in\nnowhere" in notebook.text_of(notebook.run("%logout"))
    assert notebook.errors() == []
    notebook.close()
