"""Signing in from cells, on a service that runs as a process of its own; a program plays the browser."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rolloutlab.errors import LabError
from rolloutlab.magics import register
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
from tests.forked import Forked
from tests.magics.conftest import Notebook

pytest.importorskip("mcp")
if find_spec("torch") is None:  # imported by the service alone
    pytest.skip("torch is not installed", allow_module_level=True)

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A lab that is served: its address and its folder."""
    home = tmp_path_factory.mktemp("served")
    process = Forked(["rolloutlab", "serve", "--home", str(home), "--port", "0"], stdout=subprocess.PIPE)
    assert process.stdout.readline(), "the service ended at its start"
    yield json.loads((home / "service" / "service.json").read_text())["base_url"], home
    process.terminate()
    process.communicate(timeout=240)


@pytest.fixture
def browser(served, monkeypatch):
    """Has sign-ins opened by the program that plays the browser."""
    monkeypatch.setenv("ROLLOUTLAB_BROWSER", f"{sys.executable} {ROOT / 'notebooks' / 'browser.py'}")
    monkeypatch.setenv("ROLLOUTLAB_HOME", str(served[1]))


@pytest.fixture
def away(bare, served, tmp_path):
    """A notebook with a lab of its own that is connected to the served one, without a key."""
    url, _ = served
    session = Session(Settings(home=tmp_path, service=Address(url, f"{url}/v1")))
    register(bare, session)
    yield Notebook(bare)
    session.close()


def test_a_service_that_wants_a_sign_in_says_what_to_type(away, served):
    message = away.error("%%chat x --max-tokens 4\nuser: hi")
    assert f"{served[0]}/v1 wants you to sign in" in message
    assert f"-> %login {served[0]}/v1" in message


def test_a_service_that_one_is_signed_in_to_samples(away, served, browser):
    [standing] = away.run("%login")
    assert (standing.server, standing.scopes) == (f"{served[0]}/v1", ("service",))
    assert len(away.run("%%chat x --max-tokens 4\nuser: hi")) == 1
    assert repr(away.run("%whoami")).startswith(f"{served[0]}/v1\n")
    assert repr(away.run("%logout")) == "you are signed in nowhere -> %login embedded"
    assert "wants you to sign in" in away.error("%%chat x --max-tokens 4\nuser: hi")


def test_a_service_is_connected_once_one_is_signed_in_there(bare, served, browser, tmp_path):
    url, _ = served
    session = Session(Settings(home=tmp_path))
    register(bare, session)
    notebook = Notebook(bare)
    try:
        assert f"-> %login {url}/v1" in notebook.error(f"%connect {url}")
        notebook.run(f"%login {url}/v1")
        assert "it samples and trains" in repr(notebook.run(f"%connect {url}"))
        assert len(notebook.run("%%chat x --max-tokens 4\nuser: hi")) == 1
    finally:
        session.close()


def test_tools_of_a_context_server_are_added_listed_and_tried(away, served, browser):
    url = f"{served[0]}/context"
    assert f"-> %login {url}" in away.error(f"%tools add {url} as memory")
    away.run(f"%login {url}")
    tools = away.run(f"%tools add {url} as memory")
    assert "search_trajectories" in [tool.name for tool in tools]
    assert repr(away.run("%tools memory")) == repr(tools)
    assert "<code>" in tools._repr_html_()
    assert away.run("%tools") == [tools]
    assert away.run(f"%tools add {url}").name == "context"
    assert "is not a Python name" not in away.error("%tools call memory")
    assert json.loads(away.run('%tools call memory.list_groups {"limit": 3}')) is not None


def test_what_a_context_server_refuses_is_told_in_two_lines_and_no_more(away, served, capsys):
    for cell in (f"%tools add {served[0]}/context as memory", "%tools add http://127.0.0.1:9/mcp as nobody"):
        away.shell.run_cell(cell, store_history=False)
        message = capsys.readouterr()
        assert len((message.out + message.err).strip().splitlines()) <= 2


def test_a_tool_that_needs_more_asks_once_for_it(away, served, browser):
    url = f"{served[0]}/context"
    away.run(f"%login {url}")
    away.run(f"%tools add {url} as memory")
    message = [{"role": "user", "content": "What is 1 + 1?"}, {"role": "assistant", "content": "2"}]
    added = away.lab.tools.call("memory.add_trajectory", into="sums", messages=message, reward=1.0)
    assert "sums:1/0/0" in added
    [standing] = away.lab.whoami()
    assert set(standing.scopes) == {"lab:read", "lab:write"}


def test_a_grant_that_is_kept_is_used_by_another_kernel(away, served, browser, bare, monkeypatch):
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    url = f"{served[0]}/context"
    [standing] = away.run(f"%login {url} --keep")
    assert str(away.lab.settings.sign_in_folder) in standing.place
    other = Session(away.lab.settings)
    try:
        assert len(other.tools.add(url, "memory")) == 5
        [path] = away.lab.settings.sign_in_folder.glob("*.json")
        path.chmod(0o640)
        for line in (f"!rm '{path}'", "other users can read"):
            assert line in repr(other.whoami())
        with pytest.raises(LabError, match="other users can read"):
            other.login(url)
        path.chmod(0o600)
    finally:
        other.close()
    away.run(f"%logout {url}")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%login http://tools.example/mcp", "not encrypted"),
        ("%login tools.example", "no https"),
        ("%login --secret-env KEY", "a secret belongs to a client"),
        ("%login https://a.example --client-id me --secret-env NOT_SET", "NOT_SET is not set"),
        ("%logout https://tools.example/mcp", "you are not signed in to https://tools.example/mcp"),
        ("%tools nothing", "no context server 'nothing'"),
        ("%tools call nothing.at_all", "no context server 'nothing'"),
        ("%tools call docs.find {nothing}", "the arguments are not JSON"),
        ("%tools call docs.find [1]", "the arguments are not a JSON object"),
        ("%tools add", "needs the URL of a context server"),
        ("%tools call", "needs the name of a tool"),
        ("%tools add https://tools.example/mcp as", "no name after as"),
        ("%tools add https://10.0.0.1", "no name can be derived from"),
        ("%logout embedded", "the embedded service does not run"),
        ("%tools a b c d e", "%tools takes add, call or"),
        ("%tools add https://tools.example/mcp as 1x", "'1x' is not a Python name"),
        ("%%chat x --tools nothing\nuser: hi", "no function and no context server 'nothing'"),
    ],
)
def test_mistakes_say_what_to_type(away, cell, message):
    error = away.error(cell)
    assert message in error
    assert "\n  -> " in error


@pytest.mark.parametrize(
    ("cell", "hint"),
    [
        ("%tools add foo", "%tools add https://tools.example/mcp as foo"),
        ("%tools add http://tools.example/mcp as docs", "%tools add https://tools.example/mcp as docs"),
        ("%tools add https://10.0.0.1", "%tools add https://10.0.0.1 as docs"),
        ("%login tools.example/mcp", "%login https://tools.example/mcp"),
        ("%tools call", '%tools call docs.find {"query": "paris"}'),
    ],
)
def test_what_is_hinted_can_be_typed_as_it_stands(away, cell, hint):
    assert away.error(cell).endswith(f"\n  -> {hint}")


def test_a_sign_out_that_the_server_does_not_hear_of_is_told(away, served, browser, monkeypatch):
    url = f"{served[0]}/context"
    away.run(f"%login {url}")

    def nothing_said(_grant):
        yield from ()
        return False

    monkeypatch.setattr("rolloutlab.auth.session.revoke", nothing_said)
    with pytest.warns(UserWarning, match="did not confirm that it revoked the tokens"):
        away.lab.logout(url)


def test_where_nobody_can_be_asked_the_error_says_how_to_give_a_token(away, served, monkeypatch):
    monkeypatch.delenv("ROLLOUTLAB_BROWSER", raising=False)
    monkeypatch.setattr(sys, "stdin", None)
    error = away.error(f"%login {served[0]}/context")
    assert "this front end cannot reach" in error
    assert "\n  -> " in error


def test_a_program_that_cannot_be_run_or_fails_ends_the_sign_in(away, served, monkeypatch):
    monkeypatch.setenv("ROLLOUTLAB_BROWSER", "/no/such/program")
    assert "cannot be run" in away.error(f"%login {served[0]}/context")
    monkeypatch.setenv("ROLLOUTLAB_BROWSER", f"{sys.executable} -c 'raise SystemExit(1)'")
    assert "was cancelled" in away.error(f"%login {served[0]}/context")
    monkeypatch.setenv("ROLLOUTLAB_BROWSER", "'never closed")
    assert "cannot be read" in away.error(f"%login {served[0]}/context")


def test_a_program_that_has_ended_before_it_is_given_the_address_ends_the_sign_in(away, served, monkeypatch):
    class Ended(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", Ended)
    monkeypatch.setenv("ROLLOUTLAB_BROWSER", f"{sys.executable} -c 'raise SystemExit(1)'")
    assert "was cancelled" in away.error(f"%login {served[0]}/context")


def test_signing_in_again_keeps_what_was_to_last(away, served, browser):
    context = f"{served[0]}/context"
    away.run(f"%login {context} --keep")
    [standing] = away.run(f"%login {context}")
    assert "until the kernel ends" not in standing.place
    away.run("%logout")
